"""Where two recorded requests part, in the words of whoever wrote the client.

earlier   [ system: It is 10:31. ... ][ user: Hello ]
later     [ system: It is 10:32. ... ][ user: Hello ][ assistant ... ]
here
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from cachesim.logs.dump import Recorded
from cachesim.logs.rewrites import REWRITES, Place, excerpt, kind_of_rewrite
from cachesim.logs.segments import BLOCK, Segment, shared

ENOUGH: Final = 8
"""Of so many earlier requests that a request goes on from, the one that shares most is taken."""


@dataclass(frozen=True, slots=True)
class Parting:
    """The first place at which a request is not the one it continues."""

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
        """As JSON has it."""
        return {
            "kind": self.kind,
            "part": self.part,
            "where": self.where,
            "character": self.character,
            "before": self.before,
            "after": self.after,
            "sentence": self.sentence,
            "advice": self.advice,
            "equal_characters": self.equal_characters,
        }

    @classmethod
    def from_dict(cls, seen: Mapping[str, Any]) -> Self | None:
        """What a recorder saw; None where that is of no kind that is known here."""
        rewrite = REWRITES.get(str(seen.get("kind")))
        if rewrite is None:
            return None
        numbers = [seen.get("character"), seen.get("equal_characters")]
        at, equal = (each if isinstance(each, int) and each >= 0 else 0 for each in numbers)
        before, after = (str(seen.get(key) or "")[:100] for key in ("before", "after"))
        where = str(seen.get("where") or seen.get("part") or "the prompt")[:200]
        return cls(
            kind=rewrite.kind,
            part=str(seen.get("part") or "prompt")[:100],
            where=where,
            character=at,
            before=before,
            after=after,
            sentence=rewrite.says(where, at, before, after),
            advice=rewrite.advice,
            equal_characters=equal,
        )


def parting_of(later: Recorded, earlier: Recorded) -> Parting | None:
    """Where `later` parts from `earlier`; None where it only goes on."""
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
            begun = segment.role == "assistant" and index == len(later.segments) - 1
            if begun or at >= min(segment.length, whole.length):
                return None
            known = (*known[:index], whole)
        place = Place(later.segments, known, index, at)
        return _parting(place, equal + at)
    return None


def _as_sent(reply: Sequence[Segment], sent: Sequence[Segment]) -> tuple[Segment, ...]:
    """A reply as the parts of the message that it should come back as.

    Calls come back wrapped in other JSON than they came in, and nobody can tell a change from that.
    """
    if any(each.kind == "tool call" for each in (*reply, *sent[: len(reply) + 1])):
        return ()
    part = sent[0].part if sent else "reply"
    return tuple(replace(each, part=part) for each in reply)


def _prefill_with_reply(other: Segment, earlier: Recorded) -> Segment:
    """An assistant's text that a client began, with the reply that went on from it."""
    said = "".join(each.text for each in earlier.reply if each.kind == "text")
    if other.role != "assistant" or earlier.cancelled or not (other.text and said):
        return other
    return replace(other, text=other.text + said, characters=0)


def _goes_on(segment: Segment, other: Segment, at: int) -> bool:
    """Recognise a prompt, or the beginning of a reply, that is an earlier one with more text."""
    begun = segment.kind == "text" and segment.role == other.role == "assistant"
    if (segment.part != "prompt" and not begun) or segment.length < other.length:
        return False
    return at >= (other.length // BLOCK * BLOCK if other.hashes else other.length)


def _parting(place: Place, equal: int) -> Parting:
    kind = kind_of_rewrite(place)
    before, after = excerpt(place.then, place.at), excerpt(place.now, place.at)
    where = place.where(kind)
    rewrite = REWRITES[kind]
    sentence = rewrite.says(where, place.at, before, after)
    return Parting(
        kind, place.now.part, where, place.at, before, after, sentence, rewrite.advice, equal
    )


def _common(one: Segment, other: Segment) -> int:
    if one.kind != other.kind or one.role != other.role:
        return 0
    if one.hashes or other.hashes:
        blocks = 0
        for mine, theirs in zip(one.hashes, other.hashes, strict=False):
            if mine != theirs:
                break
            blocks += 1
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
            at += _said_again(mine.text[at:], other.reply)
        return equal + at
    return equal


def _slid(one: Recorded, other: Recorded) -> int:
    mine, theirs = (
        next((each.text for each in request.segments if each.part == "prompt"), "")
        for request in (one, other)
    )
    lost = theirs.find(mine[:BLOCK]) if len(mine) >= BLOCK else -1
    return shared(mine, theirs[lost:]) if lost > 0 else 0


def _said_again(text: str, reply: Sequence[Segment]) -> int:
    said = "".join(each.text for each in reply)
    return len(said) if said and text.startswith(said) else 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """An earlier request, and what it says wherever it stands."""

    request: Recorded
    says: Mapping[object, int]  # part -> its characters

    @classmethod
    def of(cls, request: Recorded) -> Self:
        """A request to compare later ones with."""
        return cls(request, {each.key: each.length for each in request.segments})


@dataclass(frozen=True, slots=True)
class Kin:
    """The earlier requests that one is to be understood by."""

    begins_like: Recorded | None  # the one whose beginning it shares most of
    equal: int  # so many characters of it
    continues: Recorded | None  # the one whose conversation it is
    alike: int = 0  # characters that it shares with that one, wherever they stand


def kin_of(request: Recorded, earlier: Iterable[Candidate]) -> Kin:
    """Look among earlier requests, the latest first.

    A clock in the system prompt makes all requests alike up to the clock; which conversation one
    belongs to then shows in the messages after it.
    """
    begins_like: Recorded | None = None
    continues: Recorded | None = None
    equal, most, enough = 0, 0, ENOUGH
    mine = {each.key for each in request.segments}
    for each in earlier:
        common = _common_characters(request, each.request)
        alike = common + sum(size for key, size in each.says.items() if key in mine)
        if common < BLOCK:
            alike += _slid(request, each.request)
        if common > equal:
            begins_like, equal = each.request, common
        if alike > most:
            continues, most = each.request, alike
        if common >= each.request.characters > 0:
            enough -= 1
            if not enough:
                break
    return Kin(begins_like, equal, continues, most)
