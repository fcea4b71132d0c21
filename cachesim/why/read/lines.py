r"""Lines of a server's log: encodings, colours, and prefixes of supervisors.

    Jun 02 10:11:12 host llama-server[812]: 0.00.042.511 I slot launch_slot_: id  0 | task 7 | ...
    \------------ journald ------------/  \-- clock --/ level   function         message

Docker writes one JSON object per line or a name and a bar, Loki and Google Cloud an object too,
llama-swap and the router a port in brackets. All of that goes: a line begins where its component
does.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from cachesim.why.read.observed import (
    IK,
    KOBOLD,
    LLAMA,
    LM_STUDIO,
    LM_STUDIO_LLAMA,
    MLX,
    MLX_OPENAI,
    OLLAMA,
    OMLX,
    PYTHON,
    SGLANG,
)

LONGEST_LINE: Final = 1 << 16
"""Most bytes of a line that are parsed: a request of SGLang has up to 2,048 tokens of its prompt
and reply; other lines are far shorter.
"""

COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\(B|^\r")
SLOT: Final = re.compile(r"\bslot +\S{1,40}: +id +(-?\d{1,6}) +\| +task +(-?\d{1,9}) +\| ?(.*)")
OTHER: Final = re.compile(r"\b(srv|que|cmn) +(\S{1,40}): ?(.*)")
KEYED: Final = re.compile(r"\[ *\S{1,60}\] ([^|]{1,200}) \|(.*)")
SLOT_KEY: Final = re.compile(r"\bid_slot=(-?\d{1,6})\b")
TASK_KEY: Final = re.compile(r"\bid_task=(-?\d{1,9})\b")
ORIGIN: Final = re.compile(
    r"^\W{0,4}(\S{1,60}) +\| |(\S{1,60}\[\d{1,9}\]): |^\[(\d{2,5}|pod/[^\]\s]{1,200})\] "
)
"""Prefix of a line: docker compose's name, journald's unit and process, the router's port or
kubectl's pod and container.
"""

CLOCK: Final = re.compile(r"(?:^|[\s|\]:])(\d{1,6})\.(\d\d)\.(\d\d\d)\.(\d\d\d) ([A-Z]) ")
LEVEL: Final = frozenset("DIWET")
SGLANG_REQUEST: Final = re.compile(
    r"(?:^|\] |\| )(?:Finish|Receive)(?: OpenAI)?: obj=|\"event\": \"request\.(?:finished|received)"
)
SGLANG_COUNT: Final = re.compile(
    r"\b(prompt_tokens|(?:num|total)_retractions|completion_tokens|cached_tokens)\W{3}(\d{1,12})\b"
)
"""A request in SGLang's log, as text or JSON, which may quote its prompt and reply; and its counts
behind them.
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its prefix."""

    number: int
    text: str  # without colours, otherwise as it came
    body: str  # the message
    slot: int | None = None
    task: int | None = None
    component: str = ""  # slot, srv, que; nothing for lines that name none
    seconds: float | None = None  # by the server's own clock
    origin: str = ""  # of a slot's line: the server that a supervisor names before it
    is_keyed: bool = False  # its numbers are keys, as ik_llama.cpp writes them


@dataclass(slots=True)
class Tally:
    """Line counts by length, and truncated lines."""

    lines: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    cut: Counter[int] = field(default_factory=Counter)
    endings: dict[int, set[bytes]] = field(default_factory=dict)  # of lines that may be cut
    swaps: bool = False  # a router ended a model's server for another model

    def count(self, raw: bytes) -> None:
        text = raw.rstrip()
        length = len(text)
        self.lengths[length] += 1
        if ENDS.search(text) is None:
            self.cut[length] += 1
            if length < WIDEST and len(self.endings.setdefault(length, set())) < KINDS:
                self.endings[length].add(DIGITS.sub(b"0", text[-TAIL:]))
        self.swaps |= GIVEN_UP.search(text) is not None

    @property
    def wrapped_at(self) -> int:
        """The width at which a terminal wrapped the lines; 0 if none did."""
        longest = max(self.lengths, default=0)
        times, kinds = self.cut[longest], len(self.endings.get(longest, ()))
        many = times >= MANY and times * 10 >= self.lines and kinds == KINDS
        return longest if many and longest < WIDEST else 0


class Looping:
    """Lines that a server writes without end: up to a million in four seconds.

    0.05.602.294 I slot   operator(): id  0 | task 5 | cached n_tokens = 5000, memory_seq_rm [5000
    0.05.602.323 I slot   operator(): id  0 | task 5 | cached n_tokens = 5000, memory_seq_rm [5000

    A prompt that is read says another number in each turn.
    """

    __slots__ = ("_said",)

    def __init__(self) -> None:
        self._said: dict[bytes, int] = {}  # message -> times, since another line came

    def has_said(self, raw: bytes) -> bool:
        """True for a line that was read often enough, but for its time."""
        if CUT not in raw:
            self._said.clear()
            return False
        said = raw[raw.find(b" ") :]
        times = self._said[said] = self._said.get(said, 0) + 1
        if len(self._said) > MOST_SLOTS:
            self._said.clear()
        return times > TURNS


CUT: Final = b"memory_seq_rm ["

TURNS, MOST_SLOTS = 16, 64
"""Equal lines that are read, and slots whose lines may take turns."""

GIVEN_UP: Final = re.compile(rb" LRU name=|giving up its slot to a queued request")
"""Words of a router that ends an idle or least recently used model."""

MANY, WIDEST = 8, 400
"""Lines of one length, the longest of all, that indicate a wrapping terminal; its largest width."""

KINDS, TAIL, DIGITS = 3, 8, re.compile(rb"\d+")
"""Endings of these lines, in their last bytes: a terminal breaks messages of several kinds."""

ENDS: Final = re.compile(rb"(?:tokens per second\)|tokens|generated\)|MiB\)?|ms|f_keep = [\d.-]+)$")
"""Ends of fixed-width messages, whose lines are equally long."""


OURS: Final = re.compile(
    rb"slot |srv |que |cmn |llama|eval time|build|print_info|general\.arch|model|verbosity|"
    rb"listening|draft|id_slot|rompt |Llama\.|Cache: |hit rate|cached-token|HTTP/1|httpd at|"
    rb' matched=|completion_tokens|"MESSAGE" ?: ?\[|CtxLimit:|Tokens: |Processed |e reuse summary|'
    rb"re-prefills|n_past=|load config: |refix cache restore|hat completion: |Failed to remove|"
    rb"\bb\d{4,5}\b"
)
"""Patterns of the lines that are parsed; others are only counted."""


def lines_of(file: BinaryIO, tally: Tally | None = None, *, after: int = 0) -> Iterator[Line]:
    """The lines that may be parsed; a log of any size takes little memory.

    `after`: number of lines before.
    """
    number, looping = after, Looping()
    for number, raw in enumerate(pieces_of(file), after + 1):
        if looping.has_said(raw):
            continue
        if tally is not None:
            tally.count(raw)
        if OURS.search(raw) is not None:
            line = _read_line(number, raw)
            if line is not None:
                yield line
    if tally is not None:
        tally.lines += number - after


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """Lines as bytes, truncated; UTF-16 (PowerShell) becomes UTF-8."""
    head = file.readline(LONGEST_LINE)
    wide = next((name for mark, name in WIDE if head.startswith(mark)), None)
    if wide is not None:
        rest = head[2:]
        while True:
            more = file.read(LONGEST_LINE)
            if not more:
                break
            rest += more
            even = len(rest) // 2 * 2
            *whole, last = rest[:even].decode(wide, "replace").split("\n")
            yield from (piece.encode("utf-8", "replace") for piece in whole)
            rest = last[-LONGEST_LINE:].encode(wide, "replace") + rest[even:]
        yield rest.decode(wide, "replace").encode("utf-8", "replace")
        return
    while head:
        yield head
        if not head.endswith(b"\n") and len(head) >= LONGEST_LINE:
            _skip_rest(file)
        head = file.readline(LONGEST_LINE)


WIDE: Final = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


def _skip_rest(file: BinaryIO) -> None:
    while True:
        more = file.readline(LONGEST_LINE)
        if not more or more.endswith(b"\n"):
            return


def _read_line(number: int, raw: bytes) -> Line | None:
    text = raw.decode("utf-8", "replace").rstrip("\r\n\x00 ")
    if not text:
        return None
    text = unwrapped(text)
    found = SGLANG_REQUEST.search(text, 0, 300)
    if found is not None:
        counts = SGLANG_COUNT.findall(text, max(0, text.rfind("meta_info")))
        body = " ".join(("meta_info", *(f"{name}={count}" for name, count in counts)))
        return Line(number, body, body) if counts else None
    text = _from_json(text)
    seconds = _clock(text)
    found = SLOT.search(text)
    if found:
        slot, task = int(found[1]), int(found[2])
        return Line(
            number, text, found[3], slot, task, "slot", seconds, _origin(text[: found.start()])
        )
    found = OTHER.search(text)
    if found:
        return Line(number, text, found[3], component=found[1], seconds=seconds)
    return _keyed(number, text, seconds) or Line(number, text, text, seconds=seconds)


def _origin(front: str) -> str:
    found = ORIGIN.search(front) if front else None
    return "" if found is None else next(filter(None, found.groups()))


def _keyed(number: int, text: str, seconds: float | None) -> Line | None:
    """A line of ik_llama.cpp: `INFO [ function] message | tid=".." id_slot=0 id_task=7 p0=12`."""
    found = KEYED.search(text) if "] " in text and " |" in text else None
    if found is None:
        return None
    slot, task = SLOT_KEY.search(found[2]), TASK_KEY.search(found[2])
    return Line(
        number,
        text,
        body=f"{found[1]} |{found[2]}",
        slot=None if slot is None else int(slot[1]),
        task=None if task is None else int(task[1]),
        component="" if slot is None else "slot",
        seconds=seconds,
        is_keyed=True,
    )


WRAPPED: Final = ("log", "MESSAGE", "message", "line", "textPayload", "jsonPayload")
"""Keys of a line in the objects of Docker, journald, Elastic, Loki and Google Cloud."""

LISTED: Final = re.compile(r' +"textPayload": (".*"),?$')
"""A line of `gcloud logging read --format json`, which writes an object over many lines."""


def unwrapped(text: str) -> str:
    """A line without colours, and without the JSON object of a log collector around it."""
    text = COLOUR.sub("", text) if "\x1b" in text else text
    listed = LISTED.match(text) if text.startswith(" ") else None
    if listed is not None:
        text = f'{{"textPayload": {listed[1]}}}'
    if not text.startswith("{") or not any(f'"{key}"' in text for key in WRAPPED):
        return text
    message = _message_in(_object(text))
    return text if message is None else unwrapped(message.rstrip("\r\n"))


def _message_in(entry: dict[str, object]) -> str | None:
    for key in WRAPPED:
        value = entry.get(key)
        found = _message_in(value) if isinstance(value, dict) else _as_text(value)
        if found is not None:
            return found
    return None


def _as_text(message: object) -> str | None:
    """A message; journald writes one with colours as a list of its bytes."""
    if isinstance(message, list):
        try:
            return bytes(message).decode("utf-8", "replace")
        except (TypeError, ValueError):
            return None
    return message if isinstance(message, str) else None


def _from_json(text: str) -> str:
    """A line of ik_llama.cpp with `--log-format json`; a supervisor's prefix stays."""
    if not text.endswith("}") or '"msg"' not in text:
        return text
    prefix, mark, rest = text.partition("{")
    entry = _object(mark + rest)
    if not isinstance(entry.get("msg"), str):
        return text
    keys = " ".join(f"{name}={json.dumps(value)}" for name, value in entry.items())
    return f"{prefix}[{entry.get('function', '?')}] {entry['msg']} | {keys}"


def _object(text: str) -> dict[str, object]:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _clock(text: str) -> float | None:
    """Minutes, seconds, milliseconds, microseconds since the server started."""
    found = CLOCK.search(text[:200])
    if found is None or found[5] not in LEVEL:
        return None
    return int(found[1]) * 60 + int(found[2]) + int(found[3]) / 1e3 + int(found[4]) / 1e6


# -- styles of log lines ---------------------------------------------------------------------------

# A log that names no build is known by its words. Releases between two styles look like one of
# them; where their build is printed, their own rules are run.


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Words that occur together in one format only, and the lines printed by default."""

    release: str = ""
    """The release to replay if the log names none."""
    engine: str = LLAMA
    words: tuple[tuple[str, ...], ...]
    lacks: str = "\0"
    """A word of another server's lines with the same words."""
    prints_checkpoints: bool = True
    """Restores, creations and full re-processing, at the default verbosity."""
    prints_depth: bool = False
    """Common prefix and memory depth of each prompt that may continue."""

    @property
    def name(self) -> str:
        """Name of the engine in its log."""
        return self.release if self.engine == LLAMA else self.engine


JUNE: Final = Style(
    release="b9538",
    words=(
        ("context checkpoints enabled, max",),
        ("total state size", "(draft:"),
        (" cached n_tokens = ", "update_slots"),
    ),
)

MAY: Final = Style(
    release="b9093",
    words=(("slot.prompt.tokens.size()",), ("| n_tokens = ", "memory_seq_rm [")),
    prints_depth=True,
)

STYLES: Final[tuple[Style, ...]] = (
    Style(
        engine=IK,
        words=(
            ("slot is processing task |",),
            ("kv cache rm [p0, end) |",),
            ("======== Cache: cache_size",),
            ("slot released |",),
        ),
    ),
    Style(
        engine=OLLAMA,
        words=((" total=", " matched=", " cached=", " left="),),
        prints_checkpoints=False,
    ),
    Style(
        engine=LM_STUDIO,
        words=(("Prompt cache restore: cached_tokens=",),),
        prints_checkpoints=False,
    ),
    Style(
        engine=SGLANG,
        words=(("meta_info prompt_tokens=", " cached_tokens="),),
        prints_checkpoints=False,
    ),
    Style(
        engine=LM_STUDIO_LLAMA,
        words=(("Cache reuse summary: ", " prefix, "),),
        prints_checkpoints=False,
    ),
    Style(
        engine=OMLX,
        words=(
            (" re-prefills ", " tokens (reused "),
            ("Prefix cache restore for ", " suffix="),
            ("omlx.", "hat completion: model="),
        ),
        prints_checkpoints=False,
    ),
    Style(
        engine=KOBOLD,
        words=(("CtxLimit:", "Process"), ("Processing Prompt", " tokens)")),
        prints_checkpoints=False,
    ),
    Style(
        engine=MLX_OPENAI,
        words=(("Total Input Tokens: ",), ("Processed ", " tok/s)")),
        prints_checkpoints=False,
    ),
    Style(
        engine=MLX,
        words=(("Prompt processing progress: ",), ("Starting httpd at ",)),
        lacks="%",  # LM Studio prints a share under the same name
        prints_checkpoints=False,
    ),
    Style(
        engine=PYTHON,
        words=(("Llama.generate: ",), ("Llama._create_completion: ",), ("Model metadata: {'",)),
        prints_checkpoints=False,
    ),
    Style(
        release="b11549",
        words=(
            ("f_sim_best",),
            ("base f_keep = ", "f_sim ="),
            ("initializing, n_slots",),
            ("checking checkpoint with",),
        ),
        prints_checkpoints=False,
    ),
    JUNE,
    MAY,
)
"""Newest first: a log with lines of two formats is of the newer."""

BY_NAME: Final = {style.name: style for style in STYLES}
WORDS: Final = [(words, style) for style in STYLES for words in style.words]


def style_in(text: str) -> str | None:
    """The name of the style of a line's words."""
    for words, style in WORDS:
        if words[0] in text and style.lacks not in text and all(word in text for word in words):
            return style.name
    return None


def prints_checkpoints(names: set[str]) -> bool:
    """True if one of some styles prints restores, creations and full re-processing by default."""
    return any(BY_NAME[name].prints_checkpoints for name in names)


def prints_depth(names: set[str]) -> bool:
    """True if one of some styles prints the common prefix of each prompt that may continue."""
    return any(BY_NAME[name].prints_depth for name in names)
