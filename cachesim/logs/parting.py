"""Where two recorded requests part, in the words of whoever wrote the client.

earlier   [ system: It is 10:31. ... ][ user: Hello ]
later     [ system: It is 10:32. ... ][ user: Hello ][ assistant ... ]
here
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final

from cachesim.logs.dump import BLOCK, Recorded, Segment

AROUND: Final = 24
"""Characters of each side that are shown where two texts part."""

COUNT: Final = re.compile(r"[0-9]{1,15}")
FAR: Final = 10_000
"""Numbers that lie further apart do not count anything."""

CLOCK: Final = re.compile(
    r"\d{1,2}:\d{2}(:\d{2})?|\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}|"
    r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d|"
    r"(Mon|Tues?|Wednes|Thurs?|Fri|Satur|Sun)day|\b1[6-9]\d{8}(\d{3})?\b"
)
TOKEN: Final = re.compile(r"[0-9A-Fa-f-]{5,}|[A-Za-z0-9_]{16,}")
WORD: Final = re.compile(r"[\w:./+-]+")
REMINDER: Final = re.compile(r"<(system-reminder|system_reminder|reminder|environment_details)")


@dataclass(frozen=True, slots=True)
class Parting:
    """The first place at which a request is not the one it continues."""

    kind: str
    part: str  # of the later request
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
            "character": self.character,
            "before": self.before,
            "after": self.after,
            "sentence": self.sentence,
            "advice": self.advice,
        }


ADVICE: Final = {
    "clock": "Put the time at the end of the conversation, or leave it out.",
    "identifier": "Keep the identifier out of the prompt, or put it at its end.",
    "counter": "Put what counts up at the end of the conversation.",
    "reasoning-dropped": "Send the reasoning back as it came, or use a template that keeps it.",
    "reasoning-added": "Send every message again as it was sent before.",
    "tools-reordered": "Sort the tools by name before sending them.",
    "tools-changed": "Keep the list of tools as it is for a whole conversation.",
    "keys-reordered": "Serialise JSON with its keys in one order.",
    "attachment-moved": "Keep attachments in the message they came with.",
    "attachment-changed": "Send an attachment's very bytes again instead of encoding it anew.",
    "reminder-moved": "Leave reminders where they were put, and append new ones.",
    "message-removed": "Let old messages stay until a whole summary replaces them.",
    "message-inserted": "Append new messages instead of inserting them.",
    "whitespace": "Send the text unchanged; do not trim or reformat it.",
    "truncated": "Keep messages whole: a cut message is read again from the cut on.",
    "edited": "Nothing, if the user edited it; otherwise send history unchanged.",
    "other-conversation": "Give each conversation a slot of its own (`--parallel`).",
    "role": "Keep the role of each message.",
}


def parting_of(later: Recorded, earlier: Recorded) -> Parting | None:
    """Where `later` parts from `earlier`; None where it only goes on."""
    equal = 0
    for index, segment in enumerate(later.segments):
        if index >= len(earlier.segments):
            return None
        other = earlier.segments[index]
        if segment.same(other) and segment.role == other.role:
            equal += segment.length
            continue
        at = _common(segment, other)
        return _named(later, earlier, index, at, equal + at)
    return None


def _common(one: Segment, other: Segment) -> int:
    """How many leading characters of two segments are equal."""
    if one.kind != other.kind or one.role != other.role:
        return 0
    if one.hashes or other.hashes:
        blocks = 0
        for mine, theirs in zip(one.hashes, other.hashes, strict=False):
            if mine != theirs:
                break
            blocks += 1
        return min(blocks * BLOCK, one.length, other.length)
    low, high = 0, min(len(one.text), len(other.text))
    while low < high:
        middle = (low + high + 1) // 2
        if one.text[low:middle] == other.text[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_characters(one: Recorded, other: Recorded) -> int:
    """How many leading characters two requests share."""
    equal = 0
    for mine, theirs in zip(one.segments, other.segments, strict=False):
        if mine.same(theirs) and mine.role == theirs.role:
            equal += mine.length
            continue
        return equal + _common(mine, theirs)
    return equal


def _named(later: Recorded, earlier: Recorded, index: int, at: int, equal: int) -> Parting:
    now, then = later.segments[index], earlier.segments[index]
    kind = _kind(later, earlier, index, at)
    before, after = _excerpt(then, at), _excerpt(now, at)
    where = now.name if kind != "reasoning-dropped" else then.name
    sentence = _sentence(kind, where, at, before, after)
    return Parting(kind, now.name, at, before, after, sentence, ADVICE[kind], equal)


def _sentence(kind: str, where: str, at: int, before: str, after: str) -> str:
    if kind in WHOLE:
        return WHOLE[kind].format(where=where)
    words = f"{where} differs at character {at}"
    if before or after:
        words += f": `{before}` / `{after}`"
    return f"{words}: {NAMES[kind]}" if kind in NAMES else words


WHOLE: Final = {
    "reasoning-dropped": "{where} is gone",
    "reasoning-added": "{where} was not there before",
    "tools-reordered": "the tools come in another order, from {where} on",
    "tools-changed": "the list of tools is another from {where} on",
    "attachment-moved": "an attachment moved, at {where}",
    "reminder-moved": "a reminder moved, at {where}",
    "message-removed": "a message before {where} is gone",
    "message-inserted": "{where} was inserted",
    "other-conversation": "another conversation, from {where} on",
    "role": "{where} has another role",
}
NAMES: Final = {
    "clock": "a clock",
    "identifier": "an identifier",
    "counter": "a counter",
    "keys-reordered": "keys in another order",
    "attachment-changed": "another attachment, or the same encoded anew",
    "whitespace": "only blanks differ",
    "truncated": "the text is cut",
}


def _excerpt(segment: Segment, at: int) -> str:
    """The word at a place, for the word tells more than the character."""
    text = segment.text
    if not text:
        return ""
    start = at
    while start > 0 and at - start < AROUND and WORD.fullmatch(text[start - 1]):
        start -= 1
    found = WORD.match(text, start)
    end = max(at + 1, found.end() if found else at + 1)
    return text[start : min(end, start + 2 * AROUND)]


def _kind(later: Recorded, earlier: Recorded, index: int, at: int) -> str:
    now, then = later.segments[index], earlier.segments[index]
    return (
        _kind_of_order(later, earlier, index)
        or _kind_of_place(now, then)
        or _kind_of_text(now, then, at, index)
    )


def _kind_of_order(later: Recorded, earlier: Recorded, index: int) -> str:
    """What moved, went or came, as whole segments show it."""
    now, then = later.segments[index], earlier.segments[index]
    rest, old = later.segments[index:], earlier.segments[index:]
    if "tool" in {now.kind, then.kind}:
        return _kind_of_tools(rest, old)
    if "reasoning" in {now.kind, then.kind} and now.kind != then.kind:
        return "reasoning-dropped" if then.kind == "reasoning" else "reasoning-added"
    if "attachment" in {now.kind, then.kind}:
        moved = any(each.same(then) for each in rest) or any(each.same(now) for each in old)
        return "attachment-moved" if moved else "attachment-changed"
    if REMINDER.search(now.text) or REMINDER.search(then.text):
        return "reminder-moved"
    if len(old) > 1 and now.same(old[1]) and now.role == old[1].role:
        return "message-removed"
    came = len(rest) > 1 and then.same(rest[1]) and then.role == rest[1].role
    return "message-inserted" if came else ""


def _kind_of_tools(rest: Sequence[Segment], old: Sequence[Segment]) -> str:
    mine = sorted(each.text for each in rest if each.kind == "tool")
    theirs = sorted(each.text for each in old if each.kind == "tool")
    if mine == theirs:
        return "tools-reordered"
    return "keys-reordered" if _same_json(rest[0].text, old[0].text) else "tools-changed"


def _kind_of_place(now: Segment, then: Segment) -> str:
    if now.role != then.role:
        return "role"
    if now.kind == then.kind == "tool call" and _same_json(now.text, then.text):
        return "keys-reordered"
    return ""


def _kind_of_text(now: Segment, then: Segment, at: int, index: int) -> str:
    if not now.text or not then.text:
        return "edited" if now.hashes else "truncated"
    if "".join(now.text.split()) == "".join(then.text.split()):
        return "whitespace"
    word = _kind_of_word(now, then, at)
    if word:
        return word
    if index == 0 and at < len(then.text) / 10 and not _alike(now.text, then.text):
        return "other-conversation"
    return "truncated" if then.text.startswith(now.text) else "edited"


def _kind_of_word(now: Segment, then: Segment, at: int) -> str:
    """What kind of word changed."""
    before, after = _excerpt(then, at), _excerpt(now, at)
    if CLOCK.search(_line(then.text, at)) and CLOCK.search(_line(now.text, at)):
        return "clock"
    if COUNT.fullmatch(before) and COUNT.fullmatch(after) and abs(int(before) - int(after)) < FAR:
        return "counter"
    return "identifier" if TOKEN.fullmatch(before) and TOKEN.fullmatch(after) else ""


def _line(text: str, at: int) -> str:
    """What stands around a place."""
    return text[max(0, at - AROUND) : at + AROUND]


def _alike(one: str, other: str) -> bool:
    return SequenceMatcher(None, one[:2000], other[:2000]).quick_ratio() > 0.9


def _same_json(one: str, other: str) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def best_before(requests: Sequence[Recorded], number: int, *, reach: int = 200) -> Recorded | None:
    """The earlier request that shares most with this one."""
    candidates = requests[max(0, number - reach) : number]
    mine = requests[number]
    return max(
        candidates, key=lambda each: (common_characters(mine, each), each.number), default=None
    )
