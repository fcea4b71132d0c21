"""The first difference of two recorded requests, in terms of the client.

earlier   [ system: It is 10:31. ... ][ user: Hello ]
later     [ system: It is 10:32. ... ][ user: Hello ][ assistant ... ]
here
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from cachesim.engines.tokens import get_common_prefix
from cachesim.why.read.dump import Recorded
from cachesim.why.read.segments import BLOCK, Segment, shared

AROUND: Final = 24
"""Characters printed on each side of a difference."""

COUNT: Final = re.compile(r"[0-9]{1,15}")
FAR: Final = 10_000
"""Distance from which two numbers are no counter."""

CLOCK: Final = re.compile(
    r"\d{1,2}:\d{2}(:\d{2})?|\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}|"
    r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d|"
    r"(Mon|Tues?|Wednes|Thurs?|Fri|Satur|Sun)day|\b1[6-9]\d{8}(\d{3})?\b"
)
TOKEN: Final = re.compile(r"[0-9A-Fa-f-]{5,}|(?=\w*\d)[A-Za-z0-9_]{12,}")
DIGIT: Final = re.compile(r"\d")
WORD: Final = re.compile(r"[\w:./+-]+")
STOPS: Final = ".,:/+-"
"""Characters that end a sentence or a clause, and are not part of the preceding word."""

NEAR: Final = 12
"""Characters beside a clock within which a number is part of it: `22 November 2026`."""

CUT: Final = 48
"""Length of the prefix by which a truncated text is found."""

PIECES: Final = re.compile(r"[\w-]+"), re.compile(r"\w+")
"""Shapes of an identifier inside a longer word, such as a path."""

ESCAPES: Final = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})
"""Escapes of line breaks in a sentence."""
REMINDER: Final = re.compile(
    r"(?:(?<!\s)\s+)?<(system-reminder|system_reminder|reminder|environment_details|environment_context)\b.*?</\1>\s*",
    re.DOTALL,
)
SUMMARY: Final = re.compile(
    r"summar|compact(ed|ion)|previous conversation|continued from", re.IGNORECASE
)
CLEARED: Final = re.compile(r"\b(cleared|omitted|elided|removed|truncated)\b", re.IGNORECASE)
SYSTEM: Final = frozenset(("system", "developer"))


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A client's rewrite of a prompt; `words` describe a whole part or the changed word."""

    kind: str
    words: str
    advice: str
    is_whole: bool = True

    def describe(self, where: str, at: int, before: str, after: str) -> str:
        """Description for the client's author."""
        where, before, after = (each.translate(ESCAPES) for each in (where, before, after))
        if self.is_whole:
            return self.words.format(where=where, at=at)
        words = f"{where} differs at character {at}"
        if before or after:
            words += f": `{before}` / `{after}`"
        return f"{words}: {self.words}" if self.words else words


def _word(kind: str, words: str, advice: str) -> Rewrite:
    return Rewrite(kind, words, advice, is_whole=False)


REWRITES: Final = {
    each.kind: each
    for each in (
        _word("clock", "a clock", "Put the time at the end of the conversation, or leave it out."),
        _word(
            "identifier",
            "an identifier",
            "Keep the identifier out of the prompt, or put it at its end.",
        ),
        _word("counter", "a counter", "Put what counts up at the end of the conversation."),
        _word(
            "whitespace",
            "only blanks differ",
            "Send the text unchanged; do not trim or reformat it.",
        ),
        _word(
            "keys-reordered",
            "keys in a different order",
            "Serialise JSON with its keys in one order.",
        ),
        _word(
            "reserialised",
            "the same JSON, formatted differently",
            "Send the arguments of a call back as exactly the text that came.",
        ),
        _word(
            "attachment-changed",
            "a different attachment, or the same one re-encoded",
            "Send an attachment's bytes unchanged instead of re-encoding it.",
        ),
        _word(
            "unicode",
            "the same text in another Unicode form",
            "Send the text unchanged; do not normalise it.",
        ),
        _word(
            "truncated",
            "the text is cut",
            "Keep messages whole: a cut message is reprocessed from the cut on.",
        ),
        _word(
            "cleared",
            "an old result was cleared",
            "Clear many old results at once and seldom: each time, all after it is reprocessed.",
        ),
        _word(
            "reminder-changed",
            "a different reminder",
            "Append a new reminder at the end and leave the old one as it was.",
        ),
        _word("edited", "", "Nothing, if the user edited it; otherwise send history unchanged."),
        Rewrite(
            "reasoning-dropped",
            "{where} is gone",
            "Send the reasoning back as it came, or use a template that keeps it.",
        ),
        Rewrite(
            "reasoning-added",
            "{where} was not there before",
            "Send every message again as it was sent before.",
        ),
        Rewrite(
            "reply-left-out",
            "the reply is left out, {where}",
            "Send the reply back as it came, before what follows it.",
        ),
        Rewrite(
            "tools-reordered",
            "the tools come in a different order, from {where} on",
            "Sort the tools by name before sending them.",
        ),
        Rewrite(
            "tools-changed",
            "the list of tools differs from {where} on",
            "Keep the list of tools as it is for a whole conversation.",
        ),
        Rewrite("attachment-moved", "{where}", "Keep attachments in the message they came with."),
        Rewrite(
            "attachment-dropped",
            "{where} is gone",
            "Keep attachments as long as their message: all after one is reprocessed.",
        ),
        Rewrite(
            "attachment-added",
            "{where} was not there before",
            "Add an attachment to the newest message.",
        ),
        Rewrite(
            "beginning-cut",
            "{where} are cut",
            "Drop text at the beginning in large steps and seldom: all after is reprocessed.",
        ),
        Rewrite(
            "system-changed",
            "{where} is another text, before the same conversation",
            "Keep the system prompt, and put what changes into the newest message.",
        ),
        Rewrite(
            "reminder-moved",
            "a reminder moved, at {where}",
            "Leave reminders where they were put, and append new ones.",
        ),
        Rewrite(
            "reminder-added",
            "a reminder was put into {where}",
            "Leave old messages alone; put reminders into the newest one.",
        ),
        Rewrite(
            "message-removed",
            "a message before {where} is gone",
            "Let old messages stay until a whole summary replaces them.",
        ),
        Rewrite(
            "history-truncated",
            "several messages before {where} are gone",
            "Drop old messages in large steps and seldom: then all after is reprocessed.",
        ),
        Rewrite(
            "compacted",
            "the history was replaced by a summary, from {where} on",
            "Nothing: a summary has to be prefilled once.",
        ),
        Rewrite(
            "message-inserted",
            "{where} was inserted",
            "Append new messages instead of inserting them.",
        ),
        Rewrite(
            "messages-reordered",
            "messages come in a different order, from {where} on",
            "Send messages in the order in which they were said.",
        ),
        Rewrite(
            "messages-joined",
            "{where} joins several messages into one",
            "Keep messages as they were sent instead of joining them.",
        ),
        Rewrite("role", "{where} has a different role", "Keep the role of each message."),
        Rewrite(
            "side-task",
            "a different system prompt, as side tasks have: {where}",
            "Give side tasks a smaller server, or in llama-server a slot (`--parallel`).",
        ),
        Rewrite(
            "same-template",
            "{where} differs at character {at}, and the conversation begins "
            "there: another task from one template, or its first message edited",
            "Put what differs at the end of the template: what stands before it is reused.",
        ),
        Rewrite(
            "other-conversation",
            "a different conversation, from {where} on",
            "In llama-server, give each conversation a slot of its own (`--parallel`).",
        ),
    )
}
"""Known client behaviours by name."""

CONVERSATIONS: Final = frozenset(("side-task", "same-template", "other-conversation"))
"""Divergences without a rewrite: the requests are of different conversations."""


@dataclass(frozen=True, slots=True)
class Place:
    """First difference of two requests: part `index`, `at` characters into it."""

    later: Sequence[Segment]
    earlier: Sequence[Segment]
    index: int
    at: int

    @property
    def now(self) -> Segment:
        """The later request's part."""
        return self.later[self.index]

    @property
    def then(self) -> Segment:
        """The part of the earlier request that differs."""
        return self.earlier[self.index]

    @property
    def moved_to(self) -> Segment | None:
        """The new message of a moved attachment."""
        found = (segment for segment in self.rest if segment.same(self.then))
        found = (segment for segment in found if segment.part != self.then.part)
        return next(found, None) if self.then.kind == "attachment" else None

    @property
    def moved_from(self) -> Segment | None:
        """The former message of an attachment that moved to the front."""
        found = (segment for segment in self.old if segment.same(self.now))
        found = (segment for segment in found if segment.part != self.now.part)
        return next(found, None) if self.now.kind == "attachment" else None

    @property
    def cut(self) -> int:
        """Characters removed from the beginning of the text; 0 for none."""
        now, then = self.now.text, self.then.text
        lost = then.find(now[:CUT]) if len(now) >= CUT else 0
        return lost if lost > 0 and 2 * shared(now, then[lost:]) >= len(then) - lost else 0

    def where(self, kind: str) -> str:
        """The part of the prompt, as a kind of rewrite names it."""
        if kind == "attachment-moved" and self.moved_to is not None:
            return f"{self.then.name} moved to {place_of(self.moved_to)}"
        if kind == "attachment-moved" and self.moved_from is not None:
            return f"{self.moved_from.name} moved to {place_of(self.now)}"
        if kind == "beginning-cut":
            return f"the first {self.cut} characters of {self.now.name}"
        gone = kind in {"reasoning-dropped", "reply-left-out", "attachment-dropped"}
        return self.then.name if gone else self.now.name

    @property
    def rest(self) -> Sequence[Segment]:
        """The later request from the difference on."""
        return self.later[self.index :]

    @property
    def old(self) -> Sequence[Segment]:
        """The earlier request from the difference on."""
        return self.earlier[self.index :]


def place_of(segment: Segment) -> str:
    """The message of a part."""
    return f"{segment.part} ({segment.role})" if segment.role else segment.part


def excerpt(segment: Segment, at: int) -> str:
    """The text around a character, cut to a word."""
    text = segment.text
    if not text:
        return ""
    start = at
    while start > 0 and at - start < AROUND and WORD.fullmatch(text[start - 1]):
        start -= 1
    found = WORD.match(text, start)
    word = found.group().rstrip(STOPS) if found else ""
    end = max(at + 1, start + len(word))
    return text[start : min(end, start + 2 * AROUND)]


def _of_kinds(place: Place) -> str:
    now, then = place.now, place.then
    kinds = {now.kind, then.kind}
    if "tool" in kinds:
        return _of_tools(place)
    if "reasoning" in kinds and now.kind != then.kind:
        return "reasoning-dropped" if then.kind == "reasoning" else "reasoning-added"
    return _of_attachments(place) if "attachment" in kinds else ""


def _of_attachments(place: Place) -> str:
    now, then = place.now, place.then
    if place.moved_to is not None or place.moved_from is not None:
        return "attachment-moved"
    if then.kind != "attachment":
        return "attachment-added"
    if now.kind != "attachment" or any(segment.same(now) for segment in place.old):
        return "attachment-dropped"
    return "attachment-added" if any(e.same(then) for e in place.rest) else "attachment-changed"


def _of_tools(place: Place) -> str:
    mine = [segment.key for segment in place.rest if segment.kind == "tool"]
    theirs = [segment.key for segment in place.old if segment.kind == "tool"]
    if len(mine) == len(theirs) and set(mine) == set(theirs):
        return "tools-reordered"
    now, then = place.now.text, place.then.text
    if _same_json(now, then):
        return "keys-reordered"
    if len(mine) == len(theirs) and mine[1:] == theirs[1:]:
        return _of_word(place) or "tools-changed"
    return "tools-changed"


def _of_reminders(place: Place) -> str:
    now, then = place.now, place.then
    if now.role != then.role or not (now.text and then.text):
        return ""
    mine, theirs = (REMINDER.sub("", segment.text).strip() for segment in (now, then))
    has, had = (REMINDER.search(segment.text) is not None for segment in (now, then))
    if mine != theirs or not (has or had):
        return ""
    if has and had:
        return _of_word(place) or "reminder-changed"
    return "reminder-added" if has else "reminder-moved"


def _of_system(place: Place) -> str:
    now, then = place.now, place.then
    first = all(segment.kind == "tool" for segment in place.later[: place.index])
    if {now.role, then.role} & SYSTEM and first:
        alike = now.same(then) or (now.role == then.role and (not now.text or _alike(place)))
        return "" if alike else _of_other_system(place)
    begins = all(
        segment.kind == "tool" or segment.role in SYSTEM for segment in place.later[: place.index]
    )
    if not begins or now.role != then.role:
        return ""
    if _is_first_of_template(place):
        return "same-template"
    later, earlier = ({part.key for part in parts} for parts in (place.rest, place.old))
    if later & earlier or SUMMARY.search(now.text) or _alike(place):
        return ""
    return "other-conversation" if now.text and not _of_word(place) else ""


def _of_other_system(place: Place) -> str:
    """Another system prompt: before the same history, or of a side task."""
    later, earlier = ({part.key for part in parts} for parts in (place.rest, place.old[1:]))
    same = len(place.rest) >= len(place.old) and 0 < len(earlier) <= 2 * len(later & earlier)
    return "system-changed" if same else "side-task"


def _is_first_of_template(place: Place) -> bool:
    now, then = place.now, place.then
    others = {(segment.role, segment.part) for segment in place.rest} - {(now.role, now.part)}
    if now.role != "user" or others or _of_messages(place):
        return False
    alike = bool(now.text) and (_alike(place) or 2 * place.at >= min(len(now.text), len(then.text)))
    return alike and not (_of_length(place) or _of_word(place))


def _of_order(place: Place) -> str:
    now, then, rest, old = place.now, place.then, place.rest, place.old
    gone = next((i for i, segment in enumerate(old) if segment.key == now.key), 0)
    came = next((i for i, segment in enumerate(rest) if segment.key == then.key), 0)
    if gone and came:
        return "messages-reordered"
    if gone:
        return "message-removed" if gone == 1 else "history-truncated"
    return "message-inserted" if came else _of_messages(place)


def _of_messages(place: Place) -> str:
    now, then, old = place.now, place.then, place.old
    if now.role == "user" and then.role == "assistant":
        return "reply-left-out"
    if now.role == "user" and SUMMARY.search(now.text) and not SUMMARY.search(then.text):
        return "compacted"
    next_text = old[1].text if len(old) > 1 else ""
    if next_text and now.text.startswith(then.text) and next_text in now.text[len(then.text) :]:
        return "messages-joined"
    return ""


def _of_text(place: Place) -> str:
    now, then = place.now, place.then
    if now.role != then.role:
        return "role"
    if now.kind == then.kind == "tool call" or now.text[:1] in {"{", "["}:
        same = _of_calls(place)
        if same:
            return same
    if not now.text or not then.text:
        return "edited" if now.hashes else "truncated"
    return _of_length(place) or _of_word(place) or "edited"


def _of_length(place: Place) -> str:
    now, then = place.now.text, place.then.text
    if _of_blanks(place):
        return "whitespace"
    if unicodedata.normalize("NFC", now) == unicodedata.normalize("NFC", then):
        return "unicode"
    if len(now) < len(then) / 2 and CLEARED.search(now):
        return "cleared"
    cut = len(now) < len(then) and place.at >= len(now) * 0.6
    return "truncated" if then.startswith(now) or (cut and not _of_word(place)) else ""


def _of_blanks(place: Place) -> str:
    same = "".join(place.now.text.split()) == "".join(place.then.text.split())
    return "whitespace" if same else ""


def _of_calls(place: Place) -> str:
    if _same_json(place.now.text, place.then.text):
        return _of_blanks(place) or "keys-reordered"
    return "reserialised" if _same_json(place.now.text, place.then.text, inner=True) else ""


def _of_word(place: Place) -> str:
    now, then, at = place.now, place.then, place.at
    before, after = excerpt(then, at), excerpt(now, at)
    if _is_clock(then.text, at, before) and _is_clock(now.text, at, after):
        return "clock"
    if COUNT.fullmatch(before) and COUNT.fullmatch(after) and abs(int(before) - int(after)) < FAR:
        return "counter"
    for piece in PIECES:
        one, other = _piece(piece, then.text, at), _piece(piece, now.text, at)
        if TOKEN.fullmatch(one) and TOKEN.fullmatch(other) and DIGIT.search(one + other):
            return "identifier"
    return ""


def _is_clock(text: str, at: int, word: str) -> bool:
    """True inside a date or a time, or a number beside one."""
    first = max(0, at - AROUND)
    near = NEAR if DIGIT.search(word) else 0
    found = CLOCK.finditer(text[first : at + AROUND])
    return any(match.start() - near <= at - first <= match.end() + near for match in found)


def _piece(shape: re.Pattern[str], text: str, at: int) -> str:
    start = at
    while start > 0 and at - start < 2 * AROUND and shape.fullmatch(text[start - 1]):
        start -= 1
    found = shape.match(text, start)
    return found.group() if found else ""


def _alike(place: Place) -> bool:
    now, then = place.now.text, place.then.text
    shorter = min(len(now), len(then))
    return place.at + shared(now[::-1], then[::-1]) >= shorter / 2


def _same_json(one: str, other: str, *, inner: bool = False) -> bool:
    """True if two texts are equal as JSON; `inner`: texts inside it may be JSON too."""
    try:
        mine, theirs = json.loads(one), json.loads(other)
    except (ValueError, RecursionError):
        return False
    return bool(_opened(mine) == _opened(theirs)) if inner else bool(mine == theirs)


def _opened(value: object) -> object:
    if isinstance(value, dict):
        return {key: _opened(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_opened(each) for each in value]
    if isinstance(value, str) and value[:1] in {"{", "["}:
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


ENOUGH: Final = 8
"""Number of earlier requests continued by a request, of which the longest match is taken."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between a request and the one it continues."""

    kind: str
    part: str  # of the later request
    where: str  # the same with its role, as it is spoken of
    character: int
    before: str  # what stood there
    after: str  # what stands there now
    sentence: str
    advice: str
    equal_characters: int

    def as_dict(self) -> dict[str, Any]:
        """The divergence as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, seen: Mapping[str, Any]) -> Self | None:
        """Rewrite from a recorder's line; None for an unknown kind."""
        rewrite = REWRITES.get(str(seen.get("kind")))
        if rewrite is None:
            return None
        numbers = [seen.get("character"), seen.get("equal_characters")]
        at, equal = (number if isinstance(number, int) and number >= 0 else 0 for number in numbers)
        before, after = (str(seen.get(key) or "")[:100] for key in ("before", "after"))
        where = str(seen.get("where") or seen.get("part") or "the prompt")[:200]
        return cls(
            kind=rewrite.kind,
            part=str(seen.get("part") or "prompt")[:100],
            where=where,
            character=at,
            before=before,
            after=after,
            sentence=rewrite.describe(where, at, before, after),
            advice=rewrite.advice,
            equal_characters=equal,
        )


def divergence_of(later: Recorded, earlier: Recorded) -> Divergence | None:
    """First difference of `later` from `earlier`; None for an extension."""
    equal = 0
    known = earlier.segments
    if not earlier.cancelled and any(each.role == "assistant" for each in later.segments):
        known = (*known, *_as_sent(earlier.reply, later.segments[len(known) :]))
    for index, segment in enumerate(later.segments):
        if index >= len(known):
            return None
        other = known[index]
        if segment.same(other) and segment.role == other.role:
            equal += segment.length
            continue
        at = _common(segment, other)
        if index == len(earlier.segments) - 1 and _goes_on(segment, other, at):
            whole = _prefill_with_reply(other, earlier)
            at = _common(segment, whole)
            is_prefill = segment.role == "assistant" and index == len(later.segments) - 1
            if is_prefill or at >= min(segment.length, whole.length):
                return None
            known = (*known[:index], whole)
        place = Place(later.segments, known, index, at)
        kind = (
            _of_kinds(place)
            or _of_reminders(place)
            or ("beginning-cut" if place.cut else "")
            or _of_system(place)
            or _of_order(place)
            or _of_text(place)
        )
        before, after = excerpt(place.then, place.at), excerpt(place.now, place.at)
        where = place.where(kind)
        rewrite = REWRITES[kind]
        sentence = rewrite.describe(where, place.at, before, after)
        return Divergence(
            kind,
            place.now.part,
            where,
            place.at,
            before,
            after,
            sentence,
            rewrite.advice,
            equal + at,
        )
    return None


def _as_sent(reply: Sequence[Segment], sent: Sequence[Segment]) -> tuple[Segment, ...]:
    """A reply as parts of the message that a client sends back.

    Calls come back wrapped in other JSON than they came in, which looks like a change.
    """
    if any(segment.kind == "tool call" for segment in (*reply, *sent[: len(reply) + 1])):
        return ()
    part = sent[0].part if sent else "reply"
    return tuple(replace(segment, part=part) for segment in reply)


def _prefill_with_reply(other: Segment, earlier: Recorded) -> Segment:
    """An assistant's prefilled text joined with its reply."""
    reply = "".join(segment.text for segment in earlier.reply if segment.kind == "text")
    if other.role != "assistant" or earlier.cancelled or not (other.text and reply):
        return other
    return replace(other, text=other.text + reply, characters=0)


def _goes_on(segment: Segment, other: Segment, at: int) -> bool:
    """True if a prompt, or the start of a reply, extends an earlier one."""
    is_prefill = segment.kind == "text" and segment.role == other.role == "assistant"
    if (segment.part != "prompt" and not is_prefill) or segment.length < other.length:
        return False
    return at >= (other.length // BLOCK * BLOCK if other.hashes else other.length)


def _common(one: Segment, other: Segment) -> int:
    if one.kind != other.kind or one.role != other.role:
        return 0
    if one.hashes or other.hashes:
        blocks = get_common_prefix(one.hashes, other.hashes)
        return min(blocks * BLOCK, one.length, other.length)
    return shared(one.text, other.text)


def _common_characters(one: Recorded, other: Recorded) -> int:
    equal = 0
    known = (*other.segments, *other.reply)
    for index, (mine, theirs) in enumerate(zip(one.segments, known, strict=False)):
        if mine.same(theirs) and mine.role == theirs.role:
            equal += mine.length
            continue
        at = _common(mine, theirs)
        if index == len(other.segments) - 1 and _goes_on(mine, theirs, at):
            text = mine.text[at:]
            reply = "".join(segment.text for segment in other.reply)
            at += len(reply) if reply and text.startswith(reply) else 0
        return equal + at
    return equal


def _slid(one: Recorded, other: Recorded) -> int:
    mine, theirs = (
        next((segment.text for segment in request.segments if segment.part == "prompt"), "")
        for request in (one, other)
    )
    lost = theirs.find(mine[:BLOCK]) if len(mine) >= BLOCK else -1
    return shared(mine, theirs[lost:]) if lost > 0 else 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """An earlier request with its normalised text."""

    request: Recorded
    sizes: Mapping[object, int]  # part -> its characters

    @classmethod
    def of(cls, request: Recorded) -> Self:
        """A request to compare later ones with."""
        return cls(request, {segment.key: segment.length for segment in request.segments})


@dataclass(frozen=True, slots=True)
class Kin:
    """The earlier requests with which one is compared."""

    begins_like: Recorded | None  # the one whose beginning it shares most of
    equal: int  # number of equal characters
    continues: Recorded | None  # the one whose conversation it is
    alike: int = 0  # characters that it shares with that one, wherever they stand


def kin_of(request: Recorded, earlier: Iterable[Candidate]) -> Kin:
    """The kin among earlier requests, searched from the latest.

    A clock in the system prompt makes all requests alike up to the clock; which conversation one
    belongs to then shows in the messages after it.
    """
    begins_like: Recorded | None = None
    continues: Recorded | None = None
    equal, most, enough = 0, 0, ENOUGH
    mine = {segment.key for segment in request.segments}
    for candidate in earlier:
        common = _common_characters(request, candidate.request)
        alike = common + sum(size for key, size in candidate.sizes.items() if key in mine)
        if common < BLOCK:
            alike += _slid(request, candidate.request)
        if common > equal:
            begins_like, equal = candidate.request, common
        if alike > most:
            continues, most = candidate.request, alike
        if common >= candidate.request.characters > 0:
            enough -= 1
            if not enough:
                break
    return Kin(begins_like, equal, continues, most)
