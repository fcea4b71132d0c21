"""The numbers of a report as requests: their lengths, and what each shares with earlier ones.

    cache hit total=23169 matched=21742 cached=16383     |<------ S 21742 ------>| a 1427 |
    cache hit total=38086 matched=22000 cached=16383     |<------ S 21742 ------>| a 258 | b 16086 |

Lines that a server printed have a request each; where there is none, sentences have one. A length
that no number says is a guess, and marked as one wherever it is written.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from cachesim.why.read.observed import Observed, ServerLog

LONG: Final = 262_144
"""Tokens of a scenario's longest prompt."""

MOST_REQUESTS: Final = 24
"""Most requests of a draft: the last ones of the report."""

UNKNOWN_PROMPT: Final = 1000
UNKNOWN_REST: Final = 40
"""Tokens written where a report gives no number."""

# A search tries a pattern at each character. So no part of one may go on without a bound: a line of
# 70,000 characters would be read 70,000 times (tests/why/test_patterns.py).

DIGITS: Final = r"\d{1,3}(?:,\d{3}){1,4}|\d{1,15}"
NUMBER: Final = rf"({DIGITS})"

SHARED: Final = rf"(?P<shared>{DIGITS})"
SHAPES: Final = (
    rf"shared={SHARED} entry_len=(?P<held>\d{{1,15}}) requested_len=(?P<whole>\d{{1,15}})",
    rf"n_past = {SHARED}, slot\.prompt\.tokens\.size\(\) = (?P<held>\d{{1,15}})",
    rf"total=(?P<whole>\d{{1,15}}) {{1,8}}matched={SHARED} {{1,8}}cached=(?P<cached>\d{{1,15}})",
)
"""Common prefix of two prompts, beside other counts, as servers log it."""

USAGE: Final = (
    r"prompt_tokens[\"'`:= ]{1,12}(?P<whole>\d{1,15})[^#]{0,200}?"
    r"cached_tokens[\"'`:= ]{1,12}(?P<cached>\d{1,15})"
)
"""The counts of an answer, as its JSON has them."""

LOGGED: Final = (
    ("rapid-mlx", SHAPES[0]),
    ("ollama", SHAPES[2]),
    ("sglang", r"#new-token: (?P<fresh>\d{1,15}), {0,4}#cached-token: (?P<cached>\d{1,15})"),
    ("", USAGE),
    ("", r"(?:[Pp]rompt|[Ii]nput)=(?P<whole>\d{1,15})[^\n]{0,60}[Cc]ached=(?P<cached>\d{1,15})"),
)
"""Lines with the counts of a request that `cachesim why` does not read, or only with the words
before them; and the server that prints them, if only one does."""

CHUNKS: Final = frozenset({2048, 4096, 8192, 16384})
"""Tokens of a prompt's part, as SGLang divides it; the next line is of the same prompt."""

OF: Final = rf"{NUMBER}\s{{0,8}}(?:/|of|out of)\s{{0,8}}{NUMBER}"
REUSED: Final = (
    rf"\b{OF}[^.\n]{{0,24}}?(?:cached|tokens|hit|reused)",
    rf"cached[_ ]tokens?[\"'`:= ]{{1,12}}{OF}",
)
"""Reused tokens of a prompt."""

PROCESSED: Final = r"[^\n]{0,200}(?:Process(?:ing|ed)|Generating|re-prefills)\b[^\n]{0,200}"
"""A line on what is processed, whose numbers are not reused tokens."""

THOUSANDS: Final = r"\b(\d{1,4})[kK]\+?[- ]tokens?\b"

WHOLE: Final = (
    rf"task\.n_tokens = {NUMBER}",
    rf"prompt_tokens[\"'`:= ]{{1,12}}{NUMBER}",
    rf"\b{NUMBER}[- ]tokens?[- ](?:prompt|request|conversation)",
    rf"prompt (?:of|with) {NUMBER} tokens",
)

CACHED: Final = (
    rf"(?:(?<![a-z])cached[_ ]?tokens?|prefix_cache_hits_total)(?:[\"'`:= ]| is | was ){{1,12}}"
    rf"{NUMBER}"
)

RESTORED: Final = r"cached_tokens=(\d{1,15}) uncached_tokens=(\d{1,15})"
"""Reused tokens and the others but the last, as LM Studio logs them."""

FULL: Final = r"full prompt re-?processing|\bMISS\b"
"""A prompt of which nothing is reused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of tokens in a report; None where it has none."""

    whole: int | None = None  # of the later prompt
    shared: int | None = None  # of it, with what was there
    held: int | None = None  # of the conversation that was there
    cached: int | None = None  # reused, as reported
    fresh: int | None = None  # processed, as reported


# -- the counts of each request --------------------------------------------------------------------


def observed_counts(server: ServerLog) -> list[Counts]:
    """The counts of a log that `cachesim why` reads, a request each."""
    counts = (_of_request(request) for request in server.requests)
    return [found for found in counts if found != Counts()]


def _of_request(request: Observed) -> Counts:
    shared = request.shared.value if request.shared is not None else None
    held, cached = None, request.first_cut
    if request.depth is not None:
        shared, held = request.depth[:2]
    elif request.checked:  # of a hybrid model, against the last position that matches
        shared = request.checked[0][2] + 1
        held = max([end for _, end, _ in request.checked]) + 1
    if request.restored is not None:
        cached = request.restored
    elif request.forced:
        cached = 0
    if cached is None and None not in {request.n_tokens, request.processed}:
        cached = max(0, (request.n_tokens or 0) - (request.processed or 0))
    return Counts(
        whole=_bounded(request.n_tokens),
        shared=_bounded(shared if isinstance(shared, int) else None),
        held=_bounded(held),
        cached=_bounded(cached),
        fresh=_bounded(request.processed),
    )


def _bounded(count: int | None) -> int | None:
    return None if count is None else min(max(count, 0), LONG)


def logged_counts(text: str) -> tuple[str, list[Counts]]:
    """The counts of other lines of a log in their order, and the server that prints such lines."""
    best: tuple[str, list[Counts]] = "", []
    for server, shape in LOGGED:
        found = [_named(match, text) for match in re.finditer(shape, text)]
        if server == "sglang":
            found = list(_joined(found))
        if len(found) > len(best[1]):
            best = server, found
    return best


def _named(match: re.Match[str], text: str) -> Counts:
    counts = {name: _known(value) for name, value in match.groupdict().items()}
    line = text[match.end() : match.end() + 400]
    if counts.get("cached") is None and re.search(FULL, line):
        counts["cached"] = 0
    return Counts(**counts)


def _joined(found: Sequence[Counts]) -> Iterator[Counts]:
    """SGLang's lines, those of a prompt that was divided into one."""
    before: Counts | None = None
    for line in found:
        fresh, cached = line.fresh or 0, line.cached or 0
        if before is not None and (before.fresh or 0) % 2048 == 0 and cached == 0:
            last = found[found.index(line) - 1].fresh
            if last in CHUNKS:
                fresh, cached = fresh + (before.fresh or 0), before.cached or 0
                before = Counts(whole=fresh + cached, cached=cached, fresh=fresh)
                continue
        if before is not None:
            yield before
        before = Counts(whole=fresh + cached, cached=cached, fresh=fresh)
    if before is not None:
        yield before


def counts_in(text: str) -> Counts:
    """The numbers of tokens that a report gives; logged ones before those in sentences."""
    for shape in SHAPES:
        if found := re.search(shape, text):
            groups = found.groupdict()
            whole = groups.get("whole") or _group(WHOLE[0], text)
            cached = groups.get("cached") or ("0" if re.search(FULL, text) else None)
            return Counts(
                shared=_known(groups["shared"]),
                held=_known(groups.get("held")),
                whole=_known(whole),
                cached=_known(cached),
            )
    said = re.sub(PROCESSED, "", text)
    for shape in REUSED:
        if found := re.search(shape, said, re.IGNORECASE):
            return Counts(cached=_number(found[1]), whole=_number(found[2]))
    if restored := [*re.finditer(RESTORED, text)]:
        cached, rest = map(_number, restored[-1].groups())
        return Counts(cached=cached, whole=cached + rest + 1)
    whole = next((each for shape in WHOLE if (each := _group(shape, text)) is not None), None)
    if whole is None and (thousands := _group(THOUSANDS, text)) is not None:
        whole = f"{thousands}000"
    named = [match[1] for match in re.finditer(CACHED, text, re.IGNORECASE)]
    full = ["0"] if re.search(FULL, text) else []
    return Counts(whole=_known(whole), cached=_known(next(iter([*named[::-1], *full]), None)))


def _group(shape: str, text: str) -> str | None:
    found = re.search(shape, text, re.IGNORECASE)
    return found[1] if found else None


def _known(text: str | None) -> int | None:
    return None if text is None else _number(text)


def _number(text: str) -> int:
    return min(int(text.replace(",", "")), LONG)


# -- prompts that share what the counts say --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a draft: its pieces of texts, what is reported, and what of it is a guess."""

    pieces: tuple[tuple[int, int, int], ...]  # text, from, to
    counts: Counts | None = None  # None: it was before, and the report does not show it
    guesses: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        """Tokens of the prompt."""
        return sum(end - start for _, start, end in self.pieces)

    def cut(self, length: int) -> tuple[tuple[int, int, int], ...]:
        """The pieces of the first tokens."""
        kept = []
        for text, start, end in self.pieces:
            if length > 0:
                kept.append((text, start, min(end, start + length)))
            length -= end - start
        return tuple(kept)


@dataclass(slots=True)
class Prompts:
    """The prompts of a draft, request by request."""

    asked: list[Asked] = field(default_factory=list)
    _texts: int = 0

    def add(self, counts: Counts) -> None:
        """Add a request, and before it what must have been there."""
        counts, guesses = self._filled(counts)
        shared, whole = counts.shared or 0, counts.whole or 0
        holder = self._holder(shared, counts.held)
        if holder is None and shared:
            held, unsaid = counts.held, tuple[str, ...]()
            if held is None:  # less was reused than is shared, so it went on otherwise
                said = counts.cached is not None and "what it shares" not in guesses
                parts = said and (counts.cached or 0) + 1 < shared
                held, unsaid = shared + (UNKNOWN_REST if parts else 0), ("its length",)
            begin = self.asked[-1].pieces if self.asked else ()  # a conversation that grew
            missing = max(held, shared) - sum(end - start for _, start, end in begin)
            holder = Asked((*begin, self._text(missing)), guesses=unsaid)
            self.asked.append(holder)
        begin = () if holder is None else holder.cut(shared)
        rest = (self._text(whole - shared),) if whole > shared else ()
        self.asked.append(Asked((*begin, *rest), counts, guesses))

    def _text(self, length: int) -> tuple[int, int, int]:
        self._texts += 1
        return self._texts, 0, length

    def _holder(self, shared: int, held: int | None) -> Asked | None:
        """The last request that is long enough to have been shared with."""
        least = max(shared, held or 0)
        fitting = (asked for asked in reversed(self.asked) if asked.length >= least)
        return next(fitting, None) if shared else None

    def _filled(self, counts: Counts) -> tuple[Counts, tuple[str, ...]]:
        """The counts with a guess for each length that is missing, and the names of these."""
        guesses, before = [], self.asked[-1].length if self.asked else 0
        whole, shared, cached = counts.whole, counts.shared, counts.cached
        if whole is None and counts.fresh is not None:
            again = cached is None and (not before or 2 * counts.fresh >= before)
            cached = cached if cached is not None else 0 if again else before
            whole = counts.fresh + cached
            guesses += ["its length", "what is reused"] if counts.cached is None else []
        elif whole is None:
            whole = (shared or UNKNOWN_PROMPT) + (UNKNOWN_REST if shared else 0)
            guesses.append("its length")
        if shared is None:
            least = cached or 0
            alone = 0 if counts.fresh is not None else whole  # the same prompt is sent twice
            shared = min(max(before, least), whole) if before or least else alone
            guesses.append("what it shares")
        return replace(counts, whole=whole, shared=min(shared, whole)), tuple(guesses)


def prompts_of(counts: Sequence[Counts]) -> list[Asked]:
    """The requests of a report, with those that must have come before them."""
    prompts = Prompts()
    for request in counts[-MOST_REQUESTS:]:
        prompts.add(request)
    return prompts.asked


def spans_of(asked: Sequence[Asked]) -> tuple[dict[str, int], list[list[str]]]:
    """Spans with their lengths, and the spans of each request: texts are cut where others part."""
    ends: dict[int, set[int]] = {}
    for text, start, end in (piece for request in asked for piece in request.pieces):
        ends.setdefault(text, set()).update({start, end})
    cuts = {text: sorted(found) for text, found in ends.items()}
    names: dict[tuple[int, int], str] = {}
    spans: dict[str, int] = {}
    for text, found in cuts.items():
        for start, end in pairwise(found):
            names[text, start] = _name(len(names))
            spans[names[text, start]] = end - start
    prompts = [
        [
            names[text, at]
            for text, start, end in request.pieces
            for at in cuts[text][:-1]
            if start <= at < end
        ]
        for request in asked
    ]
    return spans, prompts


def _name(number: int) -> str:
    """S, a, b, ... z, a2, b2, ..."""
    if number == 0:
        return "S"
    turn, letter = divmod(number - 1, 26)
    return f"{chr(ord('a') + letter)}{turn + 1 if turn else ''}"
