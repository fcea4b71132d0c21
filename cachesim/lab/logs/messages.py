"""Patterns of llama-server's cache messages: a literal word, then the numbers.

The function that a line names changed from release to release, the message hardly did: only the
message is looked at. The documentation says which release prints what at which level.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cachesim.lab.logs.lines import Line

Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A message: its name, the literal words of its lines, and its numbers."""

    name: str
    words: str
    shape: re.Pattern[str]


def _pattern(name: str, words: str, shape: str) -> Pattern:
    return Pattern(name, words, re.compile(shape))


_W: Final = r"(?P<pos_min>-?\d+), pos_max = (?P<pos_max>-?\d+), n_tokens = (?P<n_tokens>\d+)"
_R: Final = r"-?\d+(?:\.\d+)?|-?nan|-?inf"

SLOT_PATTERNS: Final = (
    _pattern(
        "by-similarity",
        "selected slot by LCP",
        rf"sim(?:_best)? = (?P<sim>{_R}) \(> (?P<threshold>{_R}) thold\), f_keep = (?P<keep>{_R})",
    ),
    _pattern("slot-sim", "checking sim", r"sim = \S+ \((?P<common>\d+)/(?P<n_tokens>\d+)\)"),
    _pattern("by-age", "selected slot by LRU", r"t_last = (?P<t_last>-?\d+)"),
    _pattern("by-id", "selected slot by id", r"by id \(?(?P<id>\d+)"),
    _pattern("launched", "processing task", r"processing task(?:, is_child = (?P<child>\d))?"),
    _pattern(
        "prompt",
        "new prompt",
        r"n_ctx_slot = (?P<n_ctx>\d+), n_keep = (?P<keep>-?\d+), "
        r"(?:task\.n_tokens|n_prompt_tokens) = (?P<n_tokens>\d+)",
    ),
    _pattern(
        "depth",
        "slot.prompt.tokens.size()",
        r"n_past = (?P<n_past>\d+), slot\.prompt\.tokens\.size\(\) = (?P<held>\d+), seq_id = \d+, "
        r"pos_min = (?P<pos_min>-?\d+), n_swa = (?P<n_swa>\d+)",
    ),
    _pattern(
        "checked",
        "hecking checkpoint with",
        r"with \[(?P<pos_min>-?\d+), (?P<pos_max>-?\d+)\] against (?P<bound>-?\d+)",
    ),
    _pattern(
        "restored",
        "restored context checkpoint",
        rf"pos_min = {_W}(?:, n_past = (?P<n_past>\d+))?, size = (?P<size>\d+(?:\.\d+)?) MiB",
    ),
    _pattern("forced", "forcing full prompt re-processing", r"(?P<all>forcing)"),
    _pattern(
        "erased",
        "erased invalidated context checkpoint",
        rf"pos_min = {_W}, n_swa = (?P<n_swa>\d+)(?:, pos_next = (?P<pos_next>\d+))?",
    ),
    _pattern("dropped", "erasing old context checkpoint", rf"pos_min = {_W}"),
    _pattern(
        "created",
        "created context checkpoint",
        rf"(?P<index>\d+) of (?P<most>\d+) \(pos_min = {_W}, size = (?P<size>\d+(?:\.\d+)?) MiB",
    ),
    _pattern(
        "one-token",
        "need to evaluate at least 1 token",
        r"n_past = (?P<n_past>\d+), task\.n_tokens\(\) = (?P<n_tokens>\d+)",
    ),
    _pattern(
        "removed", "memory_seq_rm [", r"n_tokens = (?P<n_tokens>\d+), memory_seq_rm \[(?P<p0>\d+),"
    ),
    _pattern("empty", "empty prompt - releasing slot", r"(?P<all>empty)"),
    _pattern("refused-cut", "failed to truncate", r"(?P<all>failed)"),
    _pattern("progress", "prompt processing progress", r"n_tokens = (?P<n_tokens>\d+)"),
    _pattern(
        "read", "done, n_tokens", r"^prompt (?:processing )?done, n_tokens = (?P<n_tokens>\d+)"
    ),
    _pattern(
        "shifted",
        "context shift, n_keep",
        r"n_keep = (?P<keep>\d+), n_left = (?P<left>-?\d+), n_discard = (?P<discard>-?\d+)",
    ),
    _pattern(
        "chunk",
        "reusing chunk with size",
        r"size (?P<size>\d+), shifting KV cache \[(?P<was>\d+), \d+\) -> \[(?P<at>\d+),",
    ),
    _pattern(
        "drafts",
        "draft acceptance",
        r"\( *(?P<accepted>\d+) accepted / *(?P<drafted>\d+) generated",
    ),
    _pattern(
        "released",
        "stop processing: n_tokens",
        r"n_tokens = (?P<n_tokens>\d+), truncated = (?P<truncated>\d)",
    ),
    _pattern("slot-opened", "new slot", r"n_ctx = (?P<n_ctx>\d+)"),
    _pattern("idle-saved", "saving idle slot to prompt cache", r"(?P<all>saving)"),
    _pattern("slot-cleared", "clearing prompt with", r"with (?P<n_tokens>\d+) tokens"),
    _pattern("timing-head", "", r"^\s*(?P<all>)$"),
)
"""Messages of lines that name a slot and a task."""

KEYED_PATTERNS: Final = (
    _pattern("launched", "slot is processing task |", r"(?P<all>processing)"),
    _pattern("removed", "kv cache rm [p0, end) |", r"\bp0=(?P<p0>\d+)"),
    _pattern("one-token", "have to evaluate at least 1 token", r"(?P<all>evaluate)"),
    _pattern("empty", "empty prompt - releasing slot |", r"(?P<all>empty)"),
    _pattern(
        "shifted", "slot context shift |", r"\bn_left=(?P<left>-?\d+) n_discard=(?P<discard>-?\d+)"
    ),
    _pattern(
        "released",
        "slot released |",
        r"\bn_cache_tokens=(?P<n_tokens>\d+) truncated=(?P<truncated>\w+)",
    ),
    _pattern("slot-opened", "new slot |", r"\bn_ctx_slot=(?P<n_ctx>\d+)"),
    _pattern(
        "prompt-time",
        "prompt eval time ",
        r"= +(?P<ms>\d+\.\d+) ms / +(?P<tokens>\d+) tokens",
    ),
    _pattern(
        "reply-time",
        "generation eval time ",
        r"= +(?P<ms>\d+\.\d+) ms / +(?P<tokens>\d+) runs",
    ),
)
"""Messages of ik_llama.cpp whose numbers are keys: `slot released | ... n_cache_tokens=40`."""

SERVER_PATTERNS: Final = (
    _pattern(
        "saving",
        "saving prompt with length",
        r"length (?P<n_tokens>\d+), total state size = (?P<size>\d+(?:\.\d+)?) MiB",
    ),
    _pattern("already", "already in the cache", r"(?P<all>already)"),
    _pattern("obsolete", "removing obsolete cached prompt", r"length (?P<n_tokens>\d+)"),
    _pattern(
        "looking",
        "looking for better prompt",
        rf"base f_keep = (?P<keep>{_R}), (?:f_)?sim = (?P<sim>{_R})",
    ),
    _pattern(
        "compared",
        "prompt with length",
        rf"length (?P<n_tokens>\d+), lcp = (?P<lcp>\d+), f_keep = (?P<keep>{_R}), f_sim",
    ),
    _pattern(
        "found", "found better prompt", rf"f_keep = (?P<keep>{_R}), (?:f_)?sim = (?P<sim>{_R})"
    ),
    _pattern(
        "cache-state",
        "cache state:",
        r"(?P<entries>\d+) prompts, (?P<size>\d+(?:\.\d+)?) MiB "
        r"\(limits: (?P<limit>\d+(?:\.\d+)?) MiB, "
        r"(?P<tokens>\d+) tokens",
    ),
    _pattern(
        "entry",
        "- prompt 0x",
        r"0x[0-9a-f]+: +(?P<n_tokens>\d+) tokens, checkpoints: +(?P<checkpoints>\d+), "
        r"+(?P<size>\d+(?:\.\d+)?) MiB",
    ),
    _pattern(
        "found-in-slot",
        "======== Cache: cache_size",
        r"cache_size = (?P<held>\d+), n_past = +(?P<n_past>\d+), "
        r"n_past_prompt = (?P<in_prompt>\d+)",
    ),
    _pattern(
        "slot-kept",
        "======== Prompt cache: cache size",
        rf"cache size: (?P<held>\d+),.* f_keep: (?P<keep>{_R})",
    ),
    _pattern(
        "progress-of-one", "Prompt processing progress: ", r"progress: (?P<done>\d+)/(?P<whole>\d+)"
    ),
    _pattern("post", '"POST /', r'"POST (?P<path>/\S*completions) HTTP/[\d.]+" (?P<status>\d+)'),
    _pattern(
        "lookup",
        'msg="cache ',
        r'"cache (?:hit|miss)".* total=(?P<n_tokens>\d+) matched=(?P<matched>\d+) '
        r"cached=(?P<cached>\d+) left=(?P<left>\d+)",
    ),
    _pattern(
        "prefix-restored",
        "Prompt cache restore:",
        r"cached_tokens=(?P<cached>\d+) uncached_tokens=(?P<left>\d+)",
    ),
    _pattern("completion", '"completion_tokens"', r'completion_tokens": (?P<generated>\d+)'),
    _pattern("room", "making room", r"(?P<all>making)"),
    _pattern("limit", "limit reached", r"(?P<which>\w+) limit reached"),
    _pattern("cancelled", "cancel task", r"id_task = (?P<task>\d+)"),
    _pattern("chat", "Chat format:", r"format: (?P<format>\S+)"),
    _pattern(
        "too-long",
        "exceeds the available context size",
        r"(?:task id = (?P<task>\d+), .*)?"
        r"request \((?P<n_tokens>\d+) tokens\) exceeds the available context size \((?P<n_ctx>\d+)",
    ),
)
"""Messages of the server as a whole that belong to requests."""

TIMING_PATTERNS: Final = (
    _pattern(
        "prompt-time",
        "prompt eval time =",
        r"prompt eval time = +(?P<ms>\d+(?:\.\d+)?) ms / +(?P<tokens>\d+) tokens",
    ),
    _pattern(
        "reply-time",
        "eval time =",
        r"eval time = +(?P<ms>\d+(?:\.\d+)?) ms / +(?P<tokens>\d+) tokens",
    ),
)
"""Lines of a timing block; releases of May name neither slot nor task."""


PYTHON_PATTERNS: Final = (
    _pattern(
        "py-hit", "prefix-match hit", r"(?P<n_tokens>\d+) prefix-match hit, remaining (?P<rest>\d+)"
    ),
    _pattern("py-refused", "prefix-match found but", r"(?P<n_tokens>\d+) prefix-match found but"),
    _pattern("py-held", "full prompt already cached", r"(?P<all>full)"),
    _pattern("py-cache", "Llama._create_completion: cache", r"cache (?P<what>hit|miss)$"),
    _pattern(
        "py-prompt-time",
        ": prompt eval time =",
        r"= +(?P<ms>\d+\.\d+) ms / +(?P<tokens>\d+) tokens",
    ),
    _pattern(
        "py-reply-time", ":        eval time =", r"= +(?P<ms>\d+\.\d+) ms / +(?P<tokens>\d+) runs"
    ),
    _pattern("py-end", ":       total time =", r"(?P<all>total)"),
)
"""Messages of llama-cpp-python with `verbose=True`, and llama.cpp's own counts after each call."""


def message_of(line: Line) -> tuple[str, Fields] | None:
    """The message of a line with its numbers; None for lines not about caches."""
    body = line.body
    if "Llama." in body or "llama_perf_context_print:" in body:
        return _first(PYTHON_PATTERNS, body)
    if "eval time =" in body and not line.is_keyed:
        return _first(TIMING_PATTERNS, body)
    if line.component == "slot":
        return _first(KEYED_PATTERNS if line.is_keyed else SLOT_PATTERNS, body)
    return _first(SERVER_PATTERNS, body)


DIGITS, WIDEST = 12, 200
"""Most digits of a number, and most characters of a field."""


def _is_sane(field: str | None) -> bool:
    return field is None or len(field) <= (WIDEST if not field[:1].isdecimal() else DIGITS + 8)


def _first(patterns: tuple[Pattern, ...], body: str) -> tuple[str, Fields] | None:
    for pattern in patterns:
        if pattern.words in body:
            found = pattern.shape.search(body)
            if found is not None and all(map(_is_sane, found.groups())):
                return pattern.name, {k: v for k, v in found.groupdict().items() if v is not None}
    return None
