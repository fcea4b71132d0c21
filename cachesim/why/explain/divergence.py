"""The first difference of two recorded requests, in terms of the client.

earlier   [ system: It is 10:31. ... ][ user: Hello ]
later     [ system: It is 10:32. ... ][ user: Hello ][ assistant ... ]
here
"""

import html
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from cachesim.engines.tokens import get_common_prefix
from cachesim.typed import mapping
from cachesim.why.explain.changes import excerpt, line_around, named
from cachesim.why.explain.marked import notes_in, reasoning_in, without, without_reasoning
from cachesim.why.explain.rewrites import REWRITES
from cachesim.why.read.dump import Recorded
from cachesim.why.read.segments import BLOCK, Segment, shared

CUT: Final = 48
"""Length of the prefix by which a truncated text is found."""

LABEL: Final = re.compile(r"\W*([^\d\n]{6,24})")
"""The beginning of a note without a tag, by which it is found in a later message."""

TOKENS: Final = re.compile(r"\d+(?: \d+)*")
"""A prompt given as the numbers of its tokens."""

TYPED: Final = str.maketrans(
    dict(zip("\u201c\u201d\u201e\u2018\u2019\u2013\u2014", '"""\'\'--', strict=True))
    | dict.fromkeys("\ufeff\u200b\u200c\u200d\u2060", "")
)
"""Quotes and dashes as a keyboard has them; marks that are not seen are left out."""

SUMMARY: Final = re.compile(
    r"summar|compact(ed|ion)|previous conversation|continued from", re.IGNORECASE
)
CLEARED: Final = re.compile(
    r"\b(clear|omit|elid|remov|truncat|clip|snip|trim|prun|compress|shorten|collaps|strip|redact|archiv|hidden|placeholder)",
    re.IGNORECASE,
)
SYSTEM: Final = frozenset(("system", "developer"))
NAME: Final = re.compile(r"[^\W\d_a-z][^\W\d_]{1,30}(?!\w)")
CALL_ID: Final = re.compile(r'"(?:id|call_id|tool_call_id|tool_use_id)": ?"[^"\\]*"')


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
        lost = then.find(now[:CUT]) if len(now) >= CUT and self.now.role not in SYSTEM else 0
        lost = lost if any(map(str.isalnum, then[: max(lost, 0)])) else 0
        return lost if lost > 0 and 2 * shared(now, then[lost:]) >= len(then) - lost else 0

    def where(self, kind: str) -> str:
        """The part of the prompt, as a kind of rewrite names it."""
        if kind == "attachment-moved" and self.moved_to is not None:
            return f"{self.then.name} moved to {place_of(self.moved_to)}"
        if kind == "attachment-moved" and self.moved_from is not None:
            return f"{self.moved_from.name} moved to {place_of(self.now)}"
        if kind == "attachment-dropped" and self.then.kind == "text":
            return f"the attachment of {self.then.name}"
        if kind.startswith("reasoning-") and self.now.kind == self.then.kind == "text":
            return f"the reasoning in {self.now.name}"
        if kind == "beginning-cut":
            return f"the first {self.cut} characters of {self.now.name}"
        gone = kind in {
            "reasoning-dropped",
            "reply-left-out",
            "attachment-dropped",
            "tools-removed",
        }
        return self.then.name if gone else self.now.name

    @property
    def is_clients(self) -> bool:
        """True if no user writes at this place."""
        now = self.now
        if now.role in SYSTEM or now.kind == "tool":
            return True
        return any(start <= self.at < end for start, end in notes_in(now.text))

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


def _of_kinds(place: Place) -> str:
    now, then = place.now, place.then
    kinds = {now.kind, then.kind}
    if "tool" in kinds:
        return _of_tools(place)
    if "reasoning" in kinds and now.kind != then.kind:
        return "reasoning-dropped" if then.kind == "reasoning" else "reasoning-added"
    if kinds == {"text"} and _attachment_became_text(place):
        return "attachment-dropped"
    return _of_attachments(place) if "attachment" in kinds else ""


def _attachment_became_text(place: Place) -> bool:
    """True if a message's text grew where its attachment stood."""
    mine, theirs = (
        [segment for segment in parts if segment.part == beside.part]
        for parts, beside in ((place.rest, place.now), (place.old, place.then))
    )
    had, has = (any(part.kind == "attachment" for part in parts) for parts in (theirs, mine))
    return had and not has and place.now.text.startswith(place.then.text.strip())


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
    mine, theirs = ([_tool(part) for part in parts] for parts in (place.rest, place.old))
    now, then = mine[0], theirs[0]
    if _same_json(place.now.text, place.then.text):
        return "keys-reordered"
    if now == then:
        word = _of_word(place)
        if all(word.isdigit() for word in _words_of(place, "")):
            word = ""  # a limit, and no identifier
        return word if word in {"clock", "identifier", "working-directory"} else "tool-described"
    if not (now and then) and _is_of_another(place):
        return "side-task"
    moved, gone = bool(now) and now in theirs, bool(then) and then in mine
    if moved and gone:
        return "tools-reordered"
    if gone or not then:
        return "tools-added"
    return "tools-removed" if moved or not now else "tools-changed"


def _is_of_another(place: Place) -> bool:
    """True if one request has no tools, and another system prompt."""
    both = place.later, place.earlier
    texts = [next((part.text for part in parts if part.role in SYSTEM), "") for parts in both]
    bare = any(all(part.kind != "tool" for part in parts) for parts in both)
    return bare and 2 * shared(*texts) < min(map(len, texts))


def _tool(segment: Segment) -> str:
    """A tool's name, or its hashes; empty for other parts."""
    if segment.kind != "tool" or not segment.text:
        return str(segment.key) if segment.kind == "tool" else ""
    fields = mapping(json.loads(segment.text))
    return str(mapping(fields.get("function")).get("name") or fields.get("name") or segment.text)


def _of_notes(place: Place) -> str:
    now, then = place.now, place.then
    if _note_has_moved(place):
        return "reminder-moved"
    if now.role != then.role or not (now.text and then.text):
        return ""
    has, had = notes_in(now.text), notes_in(then.text)
    mine, theirs = without(now.text, has).strip(), without(then.text, had).strip()
    if mine != theirs or not (has or had):
        return _of_label(place)
    if has and had:
        return _of_word(place) or "reminder-changed"
    return "reminder-added" if has else "reminder-moved"


def _note_has_moved(place: Place) -> bool:
    """True if a message is gone, all behind it stayed, and one like it comes later.

    earlier   [ a ][ NOTE ][ b ]
    later     [ a ][ b ][ reply ][ NOTE ][ c ]
    """
    then, behind = place.then, [segment.key for segment in place.old[1:]]
    stayed = behind == [segment.key for segment in place.rest[: len(behind)]]
    stayed = stayed and len(place.rest) > len(place.old)
    found = LABEL.match(then.text)
    if not stayed or found is None or then.role == "assistant" or then.kind != "text":
        return False
    news = (message for message in place.rest[len(behind) or 1 :] if message.role == then.role)
    return any(message.text.startswith(found.group()) for message in news)


def _of_label(place: Place) -> str:
    """A note without tags that went from the end, or the beginning, of a message to a later one."""
    now, then = place.now.text.strip(), place.then.text.strip()
    if place.now.role in SYSTEM or not now or now == then:
        return ""
    extra = then[len(now) :] if then.startswith(now) else then[: -len(now)]
    found = LABEL.match(extra.strip()) if then in {now + extra, extra + now} else None
    later = (segment.text for segment in place.rest[1:] if segment.role == place.now.role)
    return "reminder-moved" if found and any(found[1] in text for text in later) else ""


def _of_reasoning(place: Place) -> str:
    """Reasoning that left a text, or came into it, where the rest of the text stayed."""
    now, then = place.now, place.then
    if now.role != then.role or now.kind != "text" or then.kind != "text":
        return ""
    has, had = reasoning_in(now.text), reasoning_in(then.text)
    if has == had or without_reasoning(now.text) != without_reasoning(then.text):
        return ""
    return "reasoning-dropped" if has < had else "reasoning-added"


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
    if same:
        return _of_word(place) or _of_name(place) or "system-changed"
    return "examples" if _of_word(place) == "examples" else "side-task"


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
    told = now.role == "user" or now.role != then.role
    if told and SUMMARY.search(now.text) and not SUMMARY.search(then.text):
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
    if now.part == "prompt" and _are_tokens(now.text) and _are_tokens(then.text):
        return "tokens-changed"
    if now.role in SYSTEM:
        form = _of_form(place) if now.text and then.text else ""
        return form or _of_word(place) or _of_name(place) or "system-changed"
    if not now.text or not then.text:
        return _edited(place) if now.hashes else "truncated"
    return _of_length(place) or _of_word(place) or _of_name(place) or _edited(place)


def _edited(place: Place) -> str:
    """A change without another name; users edit messages, and no results or calls of tools."""
    now, then = place.now, place.then
    if now.role == "tool" or '"tool_result"' in now.text[:CUT]:
        return "result-changed"
    if now.kind == "tool call" or now.role not in {"user", "assistant"}:
        return "history-changed"
    if now.role == "user" or not (now.text and then.text):
        return "edited"
    if _bare(now.text) == _bare(then.text):
        return "reformatted"
    if len(now.text) < len(then.text) and then.text.endswith(now.text[place.at :]):
        return "piece-removed"
    return "edited" if _alike(place) else "regenerated"


def _bare(text: str) -> str:
    """A text without its marks and escapes: letters and digits."""
    return "".join(filter(str.isalnum, html.unescape(text)))


def _of_name(place: Place) -> str:
    """One name in the place of another, wherever it stood."""
    now, then = place.now.text, place.then.text
    old, new = (NAME.match(excerpt(text, place.at)) for text in (then, now))
    if old is None or new is None or re.sub(rf"\b{old[0]}\b", new[0], then) != now:
        return ""
    speaks = place.at == 0 and now[len(new[0]) :].startswith(":")
    is_name = speaks or place.now.role in SYSTEM or then.count(old[0]) > 1
    return "name" if is_name else ""


def _of_form(place: Place) -> str:
    now, then = (
        unicodedata.normalize("NFKC", message.text).translate(TYPED)
        for message in (place.now, place.then)
    )
    return _of_blanks(place) or ("unicode" if now == then and now else "")


def _of_length(place: Place) -> str:
    now, then = place.now.text, place.then.text
    if _of_form(place):
        return _of_form(place)
    if len(now) < len(then) / 2 and place.at < len(now) / 2 and CLEARED.search(now):
        return "cleared"
    if len(now) < len(then) and CLEARED.search(now[place.at : place.at + 2 * CUT]):
        return "truncated"
    stays = then.endswith(now[place.at :]) and 2 * (len(then) - len(now)) < len(then)
    cut = len(now) < len(then) and place.at >= len(now) * 0.6 and not stays
    return "truncated" if then.startswith(now) or (cut and not _of_word(place)) else ""


def _of_blanks(place: Place) -> str:
    same = "".join(place.now.text.split()) == "".join(place.then.text.split())
    return "whitespace" if same else ""


def _of_calls(place: Place) -> str:
    if _same_json(place.now.text, place.then.text):
        return _of_blanks(place) or "keys-reordered"
    if _same_json(*(CALL_ID.sub('"id": ""', message.text) for message in (place.now, place.then))):
        return "call-ids"
    return "reserialised" if _same_json(place.now.text, place.then.text, inner=True) else ""


def _of_word(place: Place) -> str:
    return named(place.then.text, place.now.text, place.at, is_clients=place.is_clients)


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
        return {key: _opened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_opened(item) for item in value]
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
    lines: tuple[str, ...] = ()  # `- Sun Mar 22`, `+ Mon Mar 23`: with the text around it

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
    if not earlier.cancelled and any(part.role == "assistant" for part in later.segments):
        known = (*known, *_as_sent(earlier.reply, later.segments[len(known) :]))
    for index, segment in enumerate(later.segments):
        if index >= len(known):
            return None
        other = known[index]
        if segment.same(other) and segment.role == other.role:
            equal += segment.length
            if _is_parted(later.segments, known, index):
                return _found(Place(later.segments, known, index, 0), "messages-split", equal)
            continue
        at = _common(segment, other)
        if segment.part == "prompt" and at == segment.length and segment is later.segments[-1]:
            return None  # a beginning of the earlier prompt
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
            or _of_reasoning(place)
            or _of_notes(place)
            or ("beginning-cut" if place.cut else "")
            or _of_system(place)
            or _of_order(place)
            or _of_text(place)
        )
        return _found(place, kind, equal + place.at)
    return None


def _is_parted(later: Sequence[Segment], earlier: Sequence[Segment], index: int) -> bool:
    """True if an equal text begins a message of its own, which it did not before."""
    if not index or later[index].role != "user" or later[index].kind != "text":
        return False
    is_new, was_new = (parts[index].part != parts[index - 1].part for parts in (later, earlier))
    return is_new and not was_new and later[index - 1].kind == "text"


def _found(place: Place, kind: str, equal: int) -> Divergence:
    """The divergence at a place, as its kind of rewrite words it."""
    before, after = _words_of(place, kind)
    where, rewrite, at = place.where(kind), REWRITES[kind], place.at
    at = place.now.text[:at].count(" ") if kind == "tokens-changed" else at
    return Divergence(
        kind,
        place.now.part,
        where,
        at,
        before,
        after,
        rewrite.describe(where, at, before, after),
        rewrite.advice,
        equal,
        lines=_lines(place),
    )


def _words_of(place: Place, kind: str) -> tuple[str, str]:
    """What stood at the difference and what stands there now: words, or names of tools."""
    if kind not in {"tools-added", "tools-removed", "tools-changed"}:
        return excerpt(place.then.text, place.at), excerpt(place.now.text, place.at)
    mine, theirs = (
        [_tool(part) for part in parts if part.kind == "tool" and part.text]
        for parts in (place.rest, place.old)
    )
    gone, new = ([n for n in theirs if n not in mine], [n for n in mine if n not in theirs])
    return ", ".join(gone)[:100], ", ".join(new)[:100]


def _lines(place: Place) -> tuple[str, ...]:
    then, now = (line_around(part.text, place.at) for part in (place.then, place.now))
    lines = {"-": then, "+": now} if then != now else {}
    return tuple(f"{sign} {text}" for sign, text in lines.items() if text)


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
    at = shared(one.text, other.text)
    near = one.text[max(0, at - CUT) : at + CUT], other.text[max(0, at - CUT) : at + CUT]
    if one.part == "prompt" and at < max(one.length, other.length) and all(map(_are_tokens, near)):
        return _end_of_tokens(one.text, other.text, at)
    return at


def _are_tokens(text: str) -> bool:
    return TOKENS.fullmatch(text.strip()) is not None


def _end_of_tokens(one: str, other: str, at: int) -> int:
    """The end of the last whole number that two lists of tokens share: `12 34` and `12 39`."""
    if at in {len(one), len(other)} and max(one, other, key=len)[at] == " ":
        return at
    return one.rfind(" ", 0, at) + 1 if at else 0


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
