"""Claims on a wrong memory, checked in the raw cells and rows.

A claim is true if it holds for a token that the wrong answer was computed from, and whose place in
the request is the one that the account names.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from cachesim.play.session import Record
from cachesim.units import Tokens, as_tokens
from conformance.claims.played import Played
from conformance.claims.watched import NOBODY, Cell, Watch

PLACES: Final = {
    "the recurrent state": "recurrent",
    "attention": "attention",
    "the window": "window",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One token of the request, and its reads in a place."""

    watch: Watch
    birth: int
    place: str
    at: int  # its place in the request
    text: Tokens  # the request's tokens
    padding: int | None
    window: int  # tokens that a window shows; 0: all of its chunk, or no window
    padded: Tokens  # what a row has by the account, where padding went through it

    @property
    def cells(self) -> list[Cell]:
        return self.watch.cells(self.birth, self.place)

    @property
    def own(self) -> int:
        """Its own position in memory."""
        return self.watch.own(self.birth, self.place)

    def tokens_at(self, position: int) -> list[int]:
        return [cell.token for cell in self.cells if cell.position == position and cell.birth]

    def is_due(self, position: int, token: int) -> bool:
        """True if the request has a token at a position, and an uncached run would attend to it."""
        first = self.at - self.window + 1 if self.window else 0
        return max(0, first) <= position < len(self.text) and self.text[position] == token

    def folded(self) -> Tokens:
        former = self.watch.born[self.birth].former
        held = None if former is None else self.watch.history(former, "recurrent")
        return self.padded if held is None else held


def common(one: Tokens, other: Tokens) -> int:
    return len(list(takewhile(bool, (a == b for a, b in zip(one, other, strict=False)))))


# --- cells ------------------------------------------------------------------------------------


def _nothing(seen: Reading, found: re.Match[str]) -> bool:
    position, token = int(found[1]), int(found[2])
    there = [cell for cell in seen.cells if cell.position == position and cell.birth != NOBODY]
    return not there and position < seen.own and seen.is_due(position, token)


def _other(seen: Reading, found: re.Match[str]) -> bool:
    held, position, token = int(found[1]), int(found[2]), int(found[3])
    there = seen.tokens_at(position)
    return held in there and token not in there and seen.is_due(position, token)


def _right_after_others(seen: Reading, found: re.Match[str]) -> bool:
    position, right = int(found[1]), int(found[2])
    there = [cell for cell in seen.cells if cell.position == position]
    if not any(seen.is_due(position, cell.token) for cell in there):
        return False
    due = seen.text[: position + 1]
    held = [seen.watch.history(cell.birth, seen.place) or () for cell in there]
    return any(each != due and common(each, due) == right for each in held)


def _too_many(seen: Reading, found: re.Match[str]) -> bool:
    """One cell for each token before this one as far as it can be seen, then so many more."""
    right, more = int(found[1] or 0), int(found[2])
    held = [cell for cell in seen.cells if cell.birth != NOBODY]
    low = held[0].position if held else 0
    due = list(seen.text[low:right])
    rest = [cell.token for cell in held]
    return right == seen.at and rest[: len(due)] == due and len(rest) - len(due) == more


def _missing(seen: Reading, found: re.Match[str]) -> bool:
    """One cell for each token as far as it can be seen, and none for the last few before this."""
    right, missing = int(found[1] or 0), int(found[2])
    held = [cell for cell in seen.cells if cell.birth != NOBODY]
    low = held[0].position if held else 0
    there = [cell.token for cell in held] == list(seen.text[low:right])
    return there and right == seen.own == seen.at - missing


def _one_too_many(seen: Reading, found: re.Match[str]) -> bool:
    position, token = int(found[1]), int(found[2])
    there = seen.tokens_at(position)
    return token in there and (len(there) > 1 or position >= min(seen.own, seen.at))


def _empty_row(seen: Reading, found: re.Match[str]) -> bool:
    position = int(found[1])
    there = [cell for cell in seen.cells if cell.position == position]
    beside = position == seen.own or any(cell.birth for cell in there)
    return beside and any(cell.birth == NOBODY for cell in there)


# --- rows -------------------------------------------------------------------------------------


def _row_other(seen: Reading, found: re.Match[str]) -> bool:
    said = found.groupdict()
    held, due, right = seen.folded(), seen.text[: seen.at], int(said.get("right", 0))
    more = int(said["more"] or 0) * (1 if said["kind"] == "more" else -1)
    named = (int(said["holds"]), int(said["due"]))
    return (
        int(said.get("number", 1)) == right + 1
        and common(held, due) == right < min(len(held), len(due))
        and (held[right], due[right]) == named
        and len(held) - len(due) == more
    )


def _row_too_many(seen: Reading, found: re.Match[str]) -> bool:
    held, due = seen.folded(), seen.text[: seen.at]
    right, more = int(found[1] or 0), held[len(due) :]
    padding = set(more) == {seen.padding}
    whole = held[: len(due)] == due and right == len(due)
    return whole and len(more) == int(found[2]) and padding == bool(found[3])


def _row_missing(seen: Reading, found: re.Match[str]) -> bool:
    held, due = seen.folded(), seen.text[: seen.at]
    right, missing = int(found[1] or 0), int(found[2])
    return due[: len(held)] == held and right == len(held) == len(due) - missing


def _row_padding(seen: Reading, found: re.Match[str]) -> bool:
    held, due, right = seen.folded(), seen.text[: seen.at], int(found[1] or 0)
    run = held[right : right + int(found[2])]
    return common(held, due) == right and set(run) == {seen.padding} and due[right] == int(found[3])


MORE: Final = r"(?:; (?P<more>\d+) tokens? (?P<kind>more|fewer) than it should)?"

RIGHT: Final = r"(?:is correct for (\d+) tokens?, then |has )"

Check = Callable[[Reading, re.Match[str]], bool]

CELLS: Final[Mapping[str, Check]] = {
    r"holds nothing at position (\d+), where token (\d+) belongs": _nothing,
    r"holds token (\d+) at position (\d+), where this request has (\d+)": _other,
    r"holds the right token at position (\d+), but computed after other tokens:"
    r" its history is correct for (\d+) tokens?": _right_after_others,
    RIGHT + r"(\d+) tokens? too many": _too_many,
    RIGHT + r"(\d+) tokens? missing": _missing,
    r"holds a token too many at position (\d+): (\d+)": _one_too_many,
    r"has an empty row at position (\d+), beside that of the token there": _empty_row,
}
"""Of keys and values, what is said in which words."""

ROWS: Final[Mapping[str, Check]] = {
    r"starts with token (?P<holds>\d+), where this prompt has (?P<due>\d+)" + MORE: _row_other,
    r"is correct for (?P<right>\d+) tokens?; token (?P<number>\d+) in it is (?P<holds>\d+),"
    r" here it is (?P<due>\d+)" + MORE: _row_other,
    RIGHT + r"(\d+) (padding )?tokens? too many": _row_too_many,
    RIGHT + r"(\d+) tokens? missing": _row_missing,
    RIGHT + r"(\d+) padding tokens? where this request has (\d+)": _row_padding,
}
"""Of recurrent states."""


def because(played: Played, index: int, sentence: str) -> str:
    """The error of a sentence on a memory; nothing if it is true."""
    named = re.match(r"(the recurrent state|attention|the window) of layer (\d+) (.*)$", sentence)
    if named is None:
        return "no sentence that is judged"
    place, layer = PLACES[named[1]], int(named[2])
    network = played.oracle.network
    if layer != next((s.layer for s in network.shapes if s.place == place), None):
        return "another layer"
    whose = re.search(r" \(from (.*?), (.*?)\)", named[3])
    said = re.sub(r" \(from .*?\)(?=[ ,;:]|$)", "", named[3])
    forms = ROWS if place == "recurrent" else CELLS
    judged = [
        (check, found) for form, check in forms.items() if (found := re.fullmatch(form, said))
    ]
    if not judged:
        return "no sentence that is judged"
    [(check, found)] = judged
    true = [reading for reading in readings(played, index, place) if check(reading, found)]
    if not true:
        return "of no token that this answer was computed from"
    if whose is not None and not any(_is_of(played, reading, whose) for reading in true):
        return "another's token"
    return ""


def readings(played: Played, index: int, place: str) -> Iterator[Reading]:
    """The tokens at the place in the request that the account names, which led to the answer."""
    step, record, watch = played.steps[index], played.records[index], played.watch
    account, fault = step.explanation, played.faults[index]
    padded = () if fault is None else as_tokens([int(token) for token in fault.holds])
    assert record.reply is not None
    assert account is not None
    assert account.fault is not None
    assert account.wrong is not None
    at, wrong = account.fault.read_by, account.wrong.step
    spec = played.oracle.network.spec
    window = spec.window if place == "window" and not spec.chunked else 0
    for reply in (record.reply, *record.children):
        if wrong >= len(reply.logits):
            continue
        text = reply.prompt + reply.generated
        for birth in watch.behind(watch.rows.get(reply.logits[wrong].tobytes(), [])):
            read = place == "recurrent" or place in watch.born[birth].lanes
            if read and at < len(text) and watch.born[birth].token == text[at]:
                yield Reading(watch, birth, place, at, text, played.padding, window, padded)


def _is_of(played: Played, seen: Reading, whose: re.Match[str]) -> bool:
    """True if the named token is from that part of that step."""
    maker = next(record for record in played.records if record.name == whose[1])
    for held in _named(seen):
        at = len(held) - 1
        part = next((p.name for p in maker.parts if p.start <= at < p.end), "its reply")
        text, reply = text_of(maker), maker.reply
        if reply is not None and reply.error == "cancelled":  # what it computed may have stayed
            text = reply.prompt + reply.generated
        if part == whose[2] and text[: at + 1] == held:
            return True
    return False


def _named(seen: Reading) -> Iterator[Tokens]:
    """The histories that may end with the token that is named."""
    if seen.place == "recurrent":
        held = seen.folded()
        yield held[: common(held, seen.text[: seen.at]) + 1]
        return
    for cell in seen.cells:
        if cell.birth != NOBODY:
            yield seen.watch.history(cell.birth, seen.place) or ()


def text_of(record: Record) -> Tokens:
    """A request's content of the memory."""
    if record.reply is None or record.reply.error is not None:
        return ()
    return record.reply.prompt + record.reply.generated[:-1]
