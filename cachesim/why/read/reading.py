"""Parser of logs: servers with their requests, in the log's own numbers.

selected slot ...        chooses, for the next launch in that slot
saving, looking, found   the swap that comes before it
processing task          launched: from here on the slot's lines are this request's
...                      depth, checkpoints, timings
stop processing          released

A pattern of a message is a literal word, then the numbers. The function that a line names changed
from release to release, the message hardly did: only the message is looked at. The documentation
says which release prints what at which level.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from cachesim.errors import InputError
from cachesim.why.read.counts import COUNT_PATTERNS, Counts
from cachesim.why.read.lines import BY_NAME, Line, style_in
from cachesim.why.read.mixture import ADVICE, Mixture
from cachesim.why.read.observed import (
    ENDLESS,
    IK,
    LLAMA,
    MLX,
    OVERWRITTEN,
    PYTHON,
    SGLANG,
    Compared,
    LogEvent,
    Observed,
    Search,
    ServerLog,
    SlotChoice,
)
from cachesim.why.read.patterns import Fields, bounded, first, pattern
from cachesim.why.read.python_calls import Calls, milliseconds

_W: Final = r"(?P<pos_min>-?\d+), pos_max = (?P<pos_max>-?\d+)(?:, n_tokens = (?P<n_tokens>\d+))?"
"""The span of a checkpoint; April's lines do not have its number of tokens."""

_R: Final = r"-?\d+(?:\.\d+)?|-?nan|-?inf"

SLOT_PATTERNS: Final = (
    pattern(
        "by-similarity",
        "selected slot by LCP",
        rf"sim(?:_best)? = (?P<sim>{_R}) \(> (?P<threshold>{_R}) thold\), f_keep = (?P<keep>{_R})",
    ),
    pattern("slot-sim", "checking sim", r"sim = \S+ \((?P<common>\d+)/(?P<n_tokens>\d+)\)"),
    pattern("by-age", "selected slot by LRU", r"t_last = (?P<t_last>-?\d+)"),
    pattern("by-id", "selected slot by id", r"by id \(?(?P<id>\d+)"),
    pattern("launched", "processing task", r"processing task(?:, is_child = (?P<child>\d))?"),
    pattern(
        "prompt",
        "new prompt",
        r"n_ctx_slot = (?P<n_ctx>\d+), n_keep = (?P<keep>-?\d+), "
        r"(?:task\.n_tokens|n_prompt_tokens) = (?P<n_tokens>\d+)",
    ),
    pattern(
        "depth",
        "slot.prompt.tokens.size()",
        r"n_past = (?P<n_past>\d+), slot\.prompt\.tokens\.size\(\) = (?P<held>\d+), seq_id = \d+, "
        r"pos_min = (?P<pos_min>-?\d+), n_swa = (?P<n_swa>\d+)",
    ),
    pattern(
        "checked",
        "hecking checkpoint with",
        r"with \[(?P<pos_min>-?\d+), (?P<pos_max>-?\d+)\] against (?P<bound>-?\d+)",
    ),
    pattern(
        "restored",
        "restored context checkpoint",
        rf"pos_min = {_W}(?:, n_past = (?P<n_past>\d+))?, size = (?P<size>\d+(?:\.\d+)?) MiB",
    ),
    pattern("forced", "forcing full prompt re-processing", r"(?P<all>forcing)"),
    pattern(
        "erased",
        "erased invalidated context checkpoint",
        rf"pos_min = {_W}, n_swa = (?P<n_swa>\d+)(?:, pos_next = (?P<pos_next>\d+))?",
    ),
    pattern(
        "dropped",
        "erasing old context checkpoint",
        r"pos_min = (?P<pos_min>-?\d+), pos_max = (?P<pos_max>-?\d+)"
        r"(?:, n_tokens = (?P<n_tokens>\d+))?",
    ),
    pattern(
        "created",
        "created context checkpoint",
        rf"(?P<index>\d+) of (?P<most>\d+) \(pos_min = {_W}, size = (?P<size>\d+(?:\.\d+)?) MiB",
    ),
    pattern(
        "one-token",
        "need to evaluate at least 1 token",
        r"n_past = (?P<n_past>\d+), task\.n_tokens\(\) = (?P<n_tokens>\d+)",
    ),
    pattern("removed", "memory_seq_rm [", r"memory_seq_rm \[(?P<p0>\d+),"),
    pattern("removed", "kv cache rm [", r"kv cache rm \[(?P<p0>\d+),"),
    pattern("empty", "empty prompt - releasing slot", r"(?P<all>empty)"),
    pattern("refused-cut", "failed to truncate", r"(?P<all>failed)"),
    pattern(
        "progress",
        "prompt processing progress",
        r"progress, (?:n_past|n_tokens) = (?P<held>\d+),.{0,60} progress = (?P<share>[01]\.\d+)",
    ),
    pattern(
        "timed-progress",
        "prompt processing, n_tokens",
        r"n_tokens = +(?P<read>\d+), progress = (?P<share>[01]\.\d+)",
    ),
    pattern(
        "read", "done, n_", r"^prompt (?:processing )?done, n_(?:tokens|past) = (?P<n_tokens>\d+)"
    ),
    pattern(
        "shifted",
        "context shift, n_keep",
        r"n_keep = (?P<keep>\d+), n_left = (?P<left>-?\d+), n_discard = (?P<discard>-?\d+)",
    ),
    pattern(
        "chunk",
        "reusing chunk with size",
        r"size (?P<size>\d+), shifting KV cache \[(?P<was>\d+), \d+\) -> \[(?P<at>\d+),",
    ),
    pattern(
        "drafts",
        "draft acceptance",
        r"\( *(?P<accepted>\d+) accepted / *(?P<drafted>\d+) generated",
    ),
    pattern(
        "released",
        "stop processing: n_",
        r"n_(?:tokens|past) = (?P<n_tokens>\d+), truncated = (?P<truncated>\d)",
    ),
    pattern("slot-opened", "new slot", r"n_ctx = (?P<n_ctx>\d+)"),
    pattern("idle-saved", "saving idle slot to prompt cache", r"(?P<all>saving)"),
    pattern("slot-cleared", "clearing prompt with", r"with (?P<n_tokens>\d+) tokens"),
    pattern("timing-head", "", r"^\s*(?P<all>)$"),
)
"""Messages of lines that name a slot and a task."""

KEYED_PATTERNS: Final = (
    pattern("launched", "slot is processing task |", r"(?P<all>processing)"),
    pattern("removed", "kv cache rm [p0, end) |", r"\bp0=(?P<p0>\d+)"),
    pattern("one-token", "have to evaluate at least 1 token", r"(?P<all>evaluate)"),
    pattern("empty", "empty prompt - releasing slot |", r"(?P<all>empty)"),
    pattern(
        "shifted", "slot context shift |", r"\bn_left=(?P<left>-?\d+) n_discard=(?P<discard>-?\d+)"
    ),
    pattern(
        "released",
        "slot released |",
        r"\bn_cache_tokens=(?P<n_tokens>\d+) truncated=(?P<truncated>\w+)",
    ),
    pattern("slot-opened", "new slot |", r"\bn_ctx_slot=(?P<n_ctx>\d+)"),
    pattern(
        "prompt-time",
        "prompt eval time ",
        r"= +(?P<ms>\d+[.,]\d+) ms / +(?P<tokens>\d+) tokens",
    ),
    pattern(
        "reply-time",
        "generation eval time ",
        r"= +(?P<ms>\d+[.,]\d+) ms / +(?P<tokens>\d+) runs",
    ),
)
"""Messages of ik_llama.cpp whose numbers are keys: `slot released | ... n_cache_tokens=40`."""

SERVER_PATTERNS: Final = (
    pattern(
        "saving",
        "saving prompt with length",
        r"length (?P<n_tokens>\d+), total state size = (?P<size>\d+(?:\.\d+)?) MiB",
    ),
    pattern("already", "already in the cache", r"(?P<all>already)"),
    pattern("obsolete", "removing obsolete cached prompt", r"length (?P<n_tokens>\d+)"),
    pattern(
        "looking",
        "looking for better prompt",
        rf"base f_keep = (?P<keep>{_R}), (?:f_)?sim = (?P<sim>{_R})",
    ),
    pattern(
        "compared",
        "prompt with length",
        rf"length {{1,12}}(?P<n_tokens>\d+), lcp = {{1,12}}(?P<lcp>\d+), "
        rf"f_keep = (?P<keep>{_R}), f_sim",
    ),
    pattern(
        "found", "found better prompt", rf"f_keep = (?P<keep>{_R}), (?:f_)?sim = (?P<sim>{_R})"
    ),
    pattern(
        "cache-state",
        "cache state:",
        r"(?P<entries>\d+) prompts, (?P<size>\d+(?:\.\d+)?) MiB "
        r"\(limits: (?P<limit>\d+(?:\.\d+)?) MiB, "
        r"(?P<tokens>\d+) tokens",
    ),
    pattern(
        "entry",
        "- prompt ",
        r"prompt (?:0x)?[0-9a-fA-F]+: +(?P<n_tokens>\d+) tokens, "
        r"checkpoints: +(?P<checkpoints>\d+), +(?P<size>\d+(?:\.\d+)?) MiB",
    ),
    pattern(
        "found-in-slot",
        "======== Cache: cache_size",
        r"cache_size = (?P<held>\d+), n_past = +(?P<n_past>\d+), "
        r"n_past_prompt = (?P<in_prompt>\d+)",
    ),
    pattern(
        "slot-kept",
        "======== Prompt cache: cache size",
        rf"cache size: (?P<held>\d+),.{{0,400}} f_keep: (?P<keep>{_R})",
    ),
    pattern(
        "progress-of-one", "Prompt processing progress: ", r"progress: (?P<done>\d+)/(?P<whole>\d+)"
    ),
    pattern("post", '"POST /', r'"POST (?P<path>/\S*completions) HTTP/[\d.]+" (?P<status>\d+)'),
    pattern("room", "making room", r"(?P<all>making)"),
    pattern("limit", "limit reached", r"(?P<which>\w+) limit reached"),
    pattern("cancelled", "cancel task", r"id_task = (?P<task>\d+)"),
    pattern("chat", "Chat format:", r"format: (?P<format>\S+)"),
    pattern(
        "too-long",
        "exceeds the available context size",
        r"(?:task id = (?P<task>\d+), .{0,200})?"
        r"request \((?P<n_tokens>\d+) tokens\) exceeds the available context size \((?P<n_ctx>\d+)",
    ),
)
"""Messages of the server as a whole that belong to requests."""

TIMING_PATTERNS: Final = (
    pattern(
        "prompt-time",
        "prompt eval time =",
        r"prompt eval time = +(?P<ms>\d+(?:[.,]\d+)?) ms / +(?P<tokens>\d+) tokens",
    ),
    pattern(
        "reply-time",
        "eval time =",
        r"eval time = +(?P<ms>\d+(?:[.,]\d+)?) ms / +(?P<tokens>\d+) tokens",
    ),
)
"""Lines of a timing block; releases of May name neither slot nor task."""


PYTHON_PATTERNS: Final = (
    pattern(
        "py-hit", "prefix-match hit", r"(?P<n_tokens>\d+) prefix-match hit, remaining (?P<rest>\d+)"
    ),
    pattern("py-refused", "prefix-match found but", r"(?P<n_tokens>\d+) prefix-match found but"),
    pattern("py-held", "full prompt already cached", r"(?P<all>full)"),
    pattern("py-cache", "Llama._create_completion: cache", r"cache (?P<what>hit|miss)$"),
    pattern(
        "py-prompt-time",
        ": prompt eval time =",
        r"= +(?P<ms>\d+[.,]\d+) ms / +(?P<tokens>\d+) tokens",
    ),
    pattern("py-reply-time", "eval time =", r"= +(?P<ms>\d+[.,]\d+) ms / +(?P<tokens>\d+) runs"),
    pattern("py-end", "total time =", r"(?P<all>total)"),
)
"""Messages of llama-cpp-python with `verbose=True`, and llama.cpp's own counts after each call."""


def message_of(line: Line) -> tuple[str, Fields] | None:
    """The message of a line with its numbers; None for lines not about caches."""
    body = line.body
    if "Llama." in body or "llama_perf_context_print:" in body:
        return first(PYTHON_PATTERNS, body)
    if "eval time =" in body and not line.is_keyed:
        return first(TIMING_PATTERNS, body)
    if line.component == "slot":
        return first(KEYED_PATTERNS if line.is_keyed else SLOT_PATTERNS, body)
    return first(SERVER_PATTERNS, body) or first(COUNT_PATTERNS, body)


RESTART: Final = frozenset({"build", "loading"})
"""Facts that occur once in a run of a server."""

FACTS: Final = tuple(
    (name, words, re.compile(bounded(shape)))
    for name, words, shape in (
        ("build", "build", r"(?:build_info: b|build: |build = |\bbuild=)(?P<value>\d+)"),
        ("loading", "loading model '", r"loading model '(?P<value>[^']*)'"),
        ("command", "llama-server", r"(?P<value>\S*llama-server(?:\.exe)?\s+-.*)"),
        ("slots", "n_slots", r"n_slots ?= ?(?P<value>\d+)"),
        ("commit", "build info |", r"commit=\"?(?P<value>[0-9a-f]{7,40})"),
        ("n_ctx_slot", "n_ctx_slot", r"initializing.{0,400}n_ctx_slot = (?P<value>\d+)"),
        ("kv_unified", "kv_unified", r"kv_unified\s*= ?'?(?P<value>true|false)"),
        ("slots", "load config: n_parallel", r"n_parallel=(?P<value>\d+)"),  # LM Studio
        ("n_ctx", "load config: n_parallel", r"n_ctx=(?P<value>\d+)"),
        ("model-file", "loaded meta data with", r"tensors from (?P<value>.{1,500}) \(version"),
        ("swa-cells", "creating     SWA KV cache", r"size = (?P<value>\d+) cells"),
        ("n_ctx", "n_ctx ", r"llama_context: n_ctx\s+= (?P<value>\d+)"),
        ("n_batch", "n_batch", r"llama_context: n_batch\s+= (?P<value>\d+)"),
        ("n_ubatch", "n_ubatch", r"llama_context: n_ubatch\s+= (?P<value>\d+)"),
        ("architecture", "general.architecture", r"str\s+= (?P<value>\S+)"),
        ("architecture", "print_info: arch ", r"arch\s+= (?P<value>\S+)"),
        ("n_swa", "print_info: n_swa ", r"n_swa\s+= (?P<value>\d+)"),
        ("ssm", "print_info: ssm_d_state", r"ssm_d_state\s+= (?P<value>\d+)"),
        ("cache-off", "prompt cache is disabled", r"(?P<value>disabled)"),
        ("cache-mib", "prompt cache is enabled", r"size limit: (?P<value>\d+|no limit)"),
        ("checkpoints", "context checkpoints enabled", r"max = (?P<value>\d+)"),
        ("checkpoints-off", "context checkpoints disabled", r"(?P<value>disabled)"),
        ("min-step", "context checkpoints enabled", r"min spacing = (?P<value>-?\d+)"),
        ("idle-saved", "idle slots will be saved", r"(?P<value>saved.{0,20} cleared|saved)"),
        ("idle-needs-unified", "requires --kv-unified", r"(?P<value>--kv-unified)"),
        ("idle-needs-cache", "--cache-idle-slots requires --cache-ram", r"(?P<value>--cache-ram)"),
        ("draft-mtp", "draft-mtp", r"(?P<value>adding)"),
        ("draft-mtp", "creating MTP draft context", r"(?P<value>creating)"),
        ("draft-model", "loading draft model", r"(?P<value>draft)"),
        ("swa-full", "full-size SWA cache", r"(?P<value>full)"),
        (
            "kv-size",
            "llama_kv_cache: size =",
            r"size =\s+(?P<value>[\d.]+ MiB \( *\d+ cells, *\d+)",
        ),
        ("rs-size", "llama_memory_recurrent: size =", r"size =\s+(?P<value>[\d.]+ MiB \( *\d+)"),
        ("verbosity", "verbosity = ", r"verbosity = (?P<value>-?\d+)"),
        ("listening", "listening on http", r"(?P<value>http\S+)"),
    )
)
"""Name, words of the line, shape of the value; several lines may have one fact."""

TEXTS: Final = frozenset({"loading", "command", "model-file"})
LONGEST, WIDEST = 4000, 40
"""Most characters of a fact: a path or a command line; a number or a word."""

BRIEF: Final = (
    "llama", "n_", "build", "cache", "print_info", "model", "general", "kv", "draft", "idle",
    "SWA", "verbosity", "listening", "checkpoints enabled",
)  # fmt: skip
"""Markers of start-up lines; lines without a marker are skipped."""


def facts_of(line: Line) -> list[tuple[str, str]]:
    """Every fact of a line."""
    text = line.text
    if line.component == "slot" or not any(word in text for word in BRIEF):
        return []
    found = []
    for name, words, shape in FACTS:
        if words in text:
            match = shape.search(text)
            if match is not None and len(match["value"]) <= (LONGEST if name in TEXTS else WIDEST):
                found.append((name, match["value"]))
    return found


NAMED: Final = re.compile(r"(?:^|[\s(`*'\"/:,])b(\d{4,5})(?=$|[\s)`*'\",.:;])")
"""A build in the words around a pasted excerpt: `I see it on b10078 as well`."""

FOREIGN: Final = (("vLLM", "Prefix cache hit rate"), ("SGLang", "#cached-token:"))
"""Servers recognised by their lines that cannot be replayed from them."""


def found_in_slot(request: Observed, fields: Fields) -> None:
    """Common prefix of ik_llama.cpp's slot and the prompt, before the cut."""
    if request.depth is None:
        request.depth = int(fields["n_past"]), int(fields["held"]), 0
        request.offset = int(fields["in_prompt"]) - int(fields["n_past"])
        request.prints_tries = False


def _size(fields: Fields) -> int:
    """Tokens of a checkpoint: as printed, or up to its last position."""
    return int(fields.get("n_tokens", int(fields["pos_max"]) + 1))


def _update(server: ServerLog, request: Observed, name: str, fields: Fields) -> None:
    """Update a request by a message about it."""
    if name in {"checked", "restored", "erased", "created", "dropped"}:
        # One position alone is a recurrent state, several are a window.
        request.spans.append((int(fields["pos_min"]), int(fields["pos_max"])))
    match name:
        case "prompt":
            request.n_tokens = int(fields["n_tokens"])
            server.facts.setdefault("n_ctx_of_prompt", fields["n_ctx"])
        case "depth":
            request.depth = int(fields["n_past"]), int(fields["held"]), int(fields["n_swa"])
            request.swa = int(fields["n_swa"])
            request.keeps_all = int(fields["pos_min"]) == 0 and request.depth[1] > 1
            if fields["pos_min"] == str(request.depth[1] - 1):  # only the last position is kept
                request.spans.append((request.depth[1] - 1, request.depth[1] - 1))
        case "checked":
            span = int(fields["pos_min"]), int(fields["pos_max"])
            request.checked.append((*span, int(fields["bound"])))
        case "restored":
            request.restored_at = _size(fields)
            request.restored = int(fields.get("n_past", request.restored_at))
            server.checkpoint_mib.append((request.restored_at, float(fields["size"])))
        case "forced":
            request.forced = True
        case "erased":
            following = fields.get("pos_next")
            end = None if following is None else int(following)
            request.erased.append((_size(fields), end))
            request.swa = int(fields["n_swa"])
        case "created":
            n_tokens = _size(fields)
            request.created.append((int(fields["pos_min"]), int(fields["pos_max"]), n_tokens))
            server.facts.setdefault("checkpoints", fields["most"])
            server.checkpoint_mib.append((n_tokens, float(fields["size"])))
        case "dropped":
            low, high = int(fields["pos_min"]), int(fields["pos_max"])
            request.dropped.append((low, high, _size(fields)))
        case "one-token":
            request.one_token = True
            if request.n_tokens is None and "n_tokens" in fields:
                request.n_tokens = int(fields["n_tokens"])
        case "removed":
            p0 = int(fields["p0"])
            if request.first_cut is None:
                request.first_cut = p0
            elif request.n_tokens is not None and p0 > request.n_tokens:
                request.stale = ENDLESS
            request.cuts.append(p0)
        case "refused-cut":
            request.refused_cut, request.refused_at = True, request.first_cut
            request.first_cut = 0
        case "empty":
            request.is_empty = True
            request.n_tokens = request.first_cut = request.processed = request.generated = 0
        case "read":
            request.done_at = int(fields["n_tokens"])
            if request.n_tokens is None:
                request.n_tokens = request.done_at
        case "prompt-time" if not request.is_empty:
            request.processed, request.prompt_ms = int(fields["tokens"]), milliseconds(fields)
        case "reply-time" if not request.is_empty:
            request.generated, request.reply_ms = int(fields["tokens"]), milliseconds(fields)
        case "progress":
            request.shares.append((int(fields["held"]), fields["share"]))
        case "timed-progress":
            request.shares_read.append((int(fields["read"]), fields["share"]))
            server.facts["timed-progress"] = "printed"
        case "shifted":
            request.shifts.append((int(fields["left"]), int(fields["discard"])))
            if fields.get("keep"):
                request.shift_keep = int(fields["keep"])
        case "chunk":
            request.moved.append((int(fields["was"]), int(fields["at"]), int(fields["size"])))
        case "released":
            request.held_after = int(fields["n_tokens"])


APART: Final = frozenset({LLAMA, IK, MLX, PYTHON, SGLANG})
"""Engines of which one process prints the lines of one alone."""

BACK: Final = 1.0
"""Largest difference between the clocks of a server's threads, in seconds."""

ALL_IDLE: Final = "all slots are idle"


class Reader:
    """Incremental parser of lines; `servers` are those found so far."""

    def __init__(self) -> None:
        self.servers: list[ServerLog] = []
        self.source = "the log"
        self.named: set[str] = set()  # builds that the words around an excerpt name
        self._left: set[str] = set()  # engines whose lines ended without a restart
        self._open()

    def _open(self, line: int = 1) -> None:
        self.server = ServerLog(first_line=line)
        self.servers.append(self.server)
        self._active: dict[int, Observed] = {}
        self._last: dict[int, int] = {}  # slot -> the task that it was released from
        self._chosen: dict[int, tuple[SlotChoice, Fields]] = {}
        self._search = Search()
        self._slot_common: dict[int, int] = {}
        self._chats: deque[bool] = deque(maxlen=64)
        self._timed: Observed | None = None
        self._posts: deque[int] = deque(maxlen=64)  # lines not yet assigned to a request
        self._reading: list[Observed] = []  # requests of mlx-lm whose prompts are being read
        self._found: Fields | None = None  # what the next line of a slot has in common with it
        self._idle = False  # the parking lines that follow belong to idle slots
        self._calls, self._counts = Calls(self.server), Counts(self.server)
        self._mixture = Mixture()

    def take(self, lines: Iterable[Line]) -> "Reader":
        """Parse all lines."""
        for line in lines:
            self.read(line)
        return self

    def read(self, line: Line) -> None:
        facts = facts_of(line)
        style = style_in(line.text)
        another = self.server.engine == PYTHON and "model-file" in {name for name, _ in facts}
        if another or any(
            name in RESTART
            and (self.server.requests or name in self.server.facts or self.server.engine == MLX)
            for name, _ in facts
        ):
            self._left.clear()
            self._open(line.number)
        elif style is not None:
            self._leave(BY_NAME[style].engine, line.number)
        seconds = line.seconds
        if seconds is not None:
            self.server.went_back += seconds <= self.server.clock - BACK
            self.server.clock = seconds
        message = message_of(line)
        for name, value in facts:
            self._note(name, value)
        if style is not None:
            self.server.styles.add(style)
        if message is not None and message[0] == "post" and self.server.engine != MLX:
            message = None  # any HTTP server prints such lines
        if ALL_IDLE in line.body and line.component == "srv":
            self._mixture.idle(self._at_work)
        if message is None and not facts:
            if not line.component and not line.is_keyed:
                self.named |= set(NAMED.findall(line.text))
            self.server.foreign |= {name for name, words in FOREIGN if words in line.text}
            return
        self.server.known_lines += 1
        if message is None:
            return
        name, fields = message
        if line.component == "slot":
            self._slot_line(line, name, fields)
            self._refuse_mixture(line)
        elif name.startswith("py-"):
            if self.server.engine == PYTHON:
                self._calls.take(line.number, name, fields)
        elif name in {"prompt-time", "reply-time"} and self._timed is not None:
            _update(self.server, self._timed, name, fields)
        else:
            self._server_line(line, name, fields)

    @property
    def _at_work(self) -> list[tuple[int, int]]:
        return [(slot, observed.task) for slot, observed in self._active.items()]

    def _refuse_mixture(self, line: Line) -> None:
        """Raise InputError if only two servers print these lines."""
        if line.seconds is not None:
            self._mixture.clock(line.seconds)
        if self.server.engine == LLAMA and (proof := self._mixture.proof):
            raise InputError(
                f"{self.source}:{line.number}: lines of two servers are mixed: {proof}. {ADVICE}"
            )

    def _leave(self, engine: str, line: int) -> None:
        """Begin another server at a line that only another engine prints.

        llama.cpp's words are printed by its descendants too, and mlx-lm's by LM Studio.
        """
        own = self.server.engine
        if engine == own or not self.server.styles or not {engine, own} <= APART:
            return
        if MLX in {engine, own} or (self.server.requests and engine != LLAMA):
            if engine in self._left:
                raise InputError(
                    f"{self.source}:{line}: lines of {own} and {engine} are mixed. Explain one "
                    "server at a time: keep its lines, as with grep"
                )
            self._left.add(own)
            self._open(line)

    def _note(self, name: str, value: str) -> None:
        facts = self.server.facts
        if name in {"loading", "build"}:
            self.server.begins_at_start = self.server.begins_at_start or not self.server.requests
        if name == "kv-size" and name in facts:
            facts["kv-size-2"] = value
        facts.setdefault(name, value)

    # --- slots

    def _slot_line(self, line: Line, name: str, fields: Fields) -> None:
        slot = line.slot if line.slot is not None else -1
        if line.task is not None and name != "launched":
            self._mixture.line(slot, line.task, line.number)
        if name in CHOICES:
            choice = CHOICES[name]
            if choice == "id" and slot in self._active:
                self._active[slot].is_named = True
            earlier = self._chosen.get(slot)
            if choice != "id" and earlier is not None and earlier[0] == "id":
                fields = {**earlier[1], **fields}
                choice = "id"
            self._chosen = {slot: (choice, fields)}
            self._search, self._idle = Search(), False
            return
        if name == "launched":
            self._launch(line, slot, fields)
            return
        if name == "slot-sim":
            self._slot_common[slot] = int(fields["common"])
            return
        if name == "slot-opened":
            self.server.facts.setdefault("n_ctx_slot", fields["n_ctx"])
            opened = int(self.server.facts.get("slots-opened", "0"))
            self.server.facts["slots-opened"] = str(max(opened, slot + 1))
            return
        if name == "idle-saved":
            self._idle = True
            return
        if name == "slot-cleared" and not self._active:  # servers clear them beside other work
            self.server.events.append(LogEvent("erased", -1, slot, line.number))
        request = self._active.get(slot)
        if request is None or (line.task not in {None, -1} and request.task != line.task):
            if line.task in {None, -1} or self._last.get(slot) == line.task:
                return  # of no request, or of one that has ended
            request = self.server.begin(line.number, slot, line.task)
            request.started_before = True
            self.server.events.append(LogEvent("launched", request.number, slot, line.number))
            self._active[slot] = request
        self._timed = request
        if self._found is not None:
            found_in_slot(request, self._found)
            self._found = None
        _update(self.server, request, name, fields)
        if name == "released":
            request.ended = True
            if request.generated is None and not request.too_long:
                request.cancelled = True
                if self.server.engine != LLAMA:
                    request.disconnected = None
            what = "cancelled" if request.cancelled else "released"
            self.server.events.append(
                LogEvent(what, request.number, slot, line.number)  # type: ignore[arg-type]
            )
            self._active.pop(slot, None)
            self._last[slot] = request.task

    def _launch(self, line: Line, slot: int, fields: Fields) -> None:
        server = self.server
        if line.task is not None:
            self._mixture.launch(slot, line.task, self._at_work)
        before = next(
            (observed for observed in reversed(server.requests) if observed.slot == slot), None
        )
        request = server.begin(line.number, slot, line.task)
        request.is_child, request.launched_at = fields.get("child") == "1", line.seconds
        if not request.is_child:  # children are launched before their parent, which has the lines
            choice, values = self._chosen.pop(slot, ("unknown", {}))
            request.choice = choice
            request.sim, request.keep = values.get("sim"), values.get("keep")
            request.threshold = values.get("threshold")
            request.search, self._search = self._search, Search()
            request.slot_common, self._slot_common = self._slot_common, {}
            request.is_chat = bool(self._chats) and self._chats.popleft()
        if before is not None and request.search.found_keep is None:
            request.shifted_before = before.shift_keep
        made = tuple(
            (observed.number, len(observed.created), len(observed.cuts))
            for observed in self._active.values()
        )
        server.events.append(LogEvent("launched", request.number, slot, line.number, made))
        self._active[slot] = request
        self._idle = True

    # --- the server as a whole

    def _server_line(self, line: Line, name: str, fields: Fields) -> None:
        match name:
            case "found-in-slot":  # ik_llama.cpp prints it before the launch line
                self._found = fields
            case "slot-kept":  # so is this: tokens kept by the chosen slot
                self._search.keep = fields["keep"]
            case "looking":  # the slot's own ratios are the threshold
                self._idle = False
                self._search.keep, self._search.sim = fields["keep"], fields["sim"]
            case "compared":
                compared = Compared(int(fields["n_tokens"]), int(fields["lcp"]))
                self._search.compared.append(compared)
            case "found":  # an entry is a better match than the slot
                self._search.found_keep, self._search.found_sim = fields["keep"], fields["sim"]
                for slot in self._chosen.keys() & self._active.keys():
                    self._active[slot].stale = OVERWRITTEN
            case "saving":
                self.server.sizes.append((int(fields["n_tokens"]), float(fields["size"])))
                if not self._idle:
                    self._search.saved = int(fields["n_tokens"])
            case "cache-state":
                self.server.facts.setdefault("cache-limit-mib", fields["limit"])
                self.server.facts.setdefault("cache-limit-tokens", fields["tokens"])
            case "cancelled":
                for request in self._active.values():
                    if request.task == int(fields["task"]):
                        request.cancelled = request.disconnected = True
            case "chat":  # rendered before its launch
                self._chats.append(True)
            case "too-long":
                # The slot is released at once. A line without a task is of the last request.
                task = int(fields.get("task", "-1"))
                at_work = [
                    observed for observed in self._active.values() if task in {-1, observed.task}
                ]
                if at_work:
                    refused = max(at_work, key=lambda observed: observed.number)
                    refused.too_long = True
                    refused.n_tokens = int(fields["n_tokens"])
            case "post":  # mlx-lm: a request starts; later lines identify it
                if fields["status"] == "200" and self.server.engine == MLX:
                    self._posts.append(line.number)
            case "progress-of-one":
                self._progress_of_one(line, fields)
            case _:
                self._counts.take(line.number, name, fields)

    def _progress_of_one(self, line: Line, fields: Fields) -> None:
        """mlx-lm: progress of a prompt's uncached part; its lines name no request.

        Concurrent ones are distinguished by their number of tokens to process.
        """
        done, whole = int(fields["done"]), int(fields["whole"])
        for request in self._reading:
            if request.processed == whole and (request.done_at or 0) < done:
                break
        else:
            at = self._posts.popleft() if self._posts else line.number
            request = self.server.begin(at)
            request.processed = whole
            self._reading.append(request)
        request.done_at = done
        if done >= whole:
            request.ended = True
            self._reading.remove(request)


CHOICES: Final[Mapping[str, SlotChoice]] = {
    "by-similarity": "similarity",
    "by-age": "age",
    "by-id": "id",
}
