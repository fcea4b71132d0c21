"""`check_prompt_cache`: laws of a prompt cache, a store of conversations.

a prefix       a returned entry covers a prefix of the prompt, of the reported length
true states    the returned state has folded in exactly those tokens
salts apart    an entry computed under one salt is never returned under another
no aliasing    changing a returned state changes no stored entry
one token left a whole prompt is never covered: the last token is needed for the answer
newest found   the last insertion covers as much of a prompt as in a cache without other entries
sizes add up   the store's size is never negative, and an empty store has none

A cache of blocks decides at its blocks' edges, so prompts are made of pieces as long as a block:

    unit 8    | 0 0 0 0 0 0 0 0 | 1 0 0 0 0 0 0 0 | 0 0 0 |     pieces differ in their first token,
              | 0 0 0 0 0 0 0 1 | 1 0 0 0 0 0 0 0 |             in their last, or in the middle

Two such prompts share a prefix, a suffix, or both and nothing between, and end at a block's edge,
or a token before or after it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, permutations
from math import gcd
from typing import Any, Final, Literal, Protocol, TypeAlias

from hypothesis import strategies as st

from cachesim.testing.laws import EXAMPLES, BrokenLawError, Story, VacuousCheckError, hold
from cachesim.units import Token, Tokens


class Fed(int):
    """A token fed to a state: its value and its preceding tokens.

    Keys and values of a token depend on all tokens before it and on the adapter, so a block of the
    right tokens that was computed after others is a wrong one.
    """

    after: int
    salt: int

    @classmethod
    def of(cls, token: int, before: Sequence[int], salt: int) -> "Fed":
        """A token after those of a state."""
        fed = cls(token)
        last = before[-1] if before else None
        fed.after = hash((last.after if isinstance(last, Fed) else hash(tuple(before)), last))
        fed.salt = salt
        return fed


@dataclass(slots=True)
class State:
    """A stand-in for the caches of one conversation: the tokens fed to it.

    `trim` works for a state that can be cut, as keys and values can; a recurrent one refuses. A
    cache of blocks keeps parts of `tokens` and makes a state of several.
    """

    tokens: list[int] = field(default_factory=list)
    trimmable: bool = True

    def feed(self, tokens: Sequence[int], *, salt: int = 0) -> None:
        """Append tokens, in place."""
        for token in tokens:
            self.tokens.append(Fed.of(token, self.tokens, salt))

    def trim(self, count: int) -> bool:
        """Remove the last tokens, in place; False if refused, without a change."""
        if not self.trimmable or count > len(self.tokens):
            return False
        del self.tokens[len(self.tokens) - count :]
        return True


class PromptCacheUnderTest(Protocol):
    """The interface of a prompt cache to be checked; with `salts` both take `salt=` too."""

    def insert(self, tokens: Tokens, state: State) -> None:
        """Store the state of a conversation under its tokens."""
        ...

    def fetch(self, tokens: Tokens) -> tuple[int, State] | None:
        """The number of leading tokens covered, and their state; None without a match."""
        ...


Verb: TypeAlias = Literal["insert", "ask"]
Likeness: TypeAlias = Literal["new", "again", "longer", "shorter", "other-head"]

VERBS: Final[tuple[Verb, ...]] = ("insert", "ask")
LIKENESSES: Final[tuple[Likeness, ...]] = ("new", "longer", "again", "other-head", "shorter")
"""Relation of a prompt to an earlier one: unrelated, equal, extended, a prefix, or with another
first piece.
"""

UNITS: Final = (1, 8, 16)
"""Lengths of a piece drawn beside the cache's own unit."""

PROBED: Final = (*range(1, 161), 256, 512, 1024, 2048, 4096)
"""Prompt lengths by which a cache's unit is found."""

VARIANTS: Final = 5
PIECES: Final = 3

OTHER: Final = 3
"""A token of no piece."""

RECENT: Final = 4
"""Number of an example's prompts from which its last requests are drawn."""


@dataclass(frozen=True, slots=True)
class Act:
    """A call: a prompt of pieces and a rest, or one derived from an earlier call."""

    verb: Verb
    pieces: tuple[int, ...]
    rest: int
    like: Likeness = "new"
    of: int = 0
    salt: int = 0


@dataclass(slots=True, kw_only=True)
class PromptCacheReport:
    """Counts of a check without findings."""

    units: tuple[int, ...]  # lengths of the pieces of prompts, the cache's own unit first
    examples: int = 0
    insertions: int = 0
    requests: int = 0
    fetched: Counter[int] = field(default_factory=Counter)  # covered tokens -> how often

    def __str__(self) -> str:
        """The number of fetches, and their lengths."""
        lengths = sorted(self.fetched)
        shown = ", ".join(f"{each} ({self.fetched[each]})" for each in lengths[:12])
        more = f" and {len(lengths) - 12} more lengths" if len(lengths) > 12 else ""
        covered = f"; tokens covered (how often): {shown}{more}" if lengths else ""
        return (
            f"{self.examples} examples, {self.insertions} insertions, {self.requests} requests of "
            f"which {self.fetched.total()} fetched something, with pieces of "
            f"{', '.join(map(str, self.units))} tokens{covered}"
        )


def check_prompt_cache(
    make: Callable[[], PromptCacheUnderTest],
    *,
    trimmable: bool = True,
    examples: int = EXAMPLES,
    unit: int | None = None,
    salts: bool = False,
    newest: bool | None = None,
) -> PromptCacheReport:
    """Search for a short sequence of insertions and requests that breaks a law.

    `make` builds an empty cache. `trimmable` False plays with states that cannot be cut. `unit` is
    the number of tokens in a block; without it, it is found by trying. With `salts` insertions and
    requests bring a `salt`. `newest` False allows a cache to drop what was inserted last, or to
    prefer an older entry that covers less; it is a law by default where states can be cut.

    Raises `BrokenLawError` with the law and the steps, and `VacuousCheckError` where no request
    ever fetched anything. Returns what was exercised.
    """
    own = unit or unit_of(make, trimmable=trimmable, salts=salts)
    report = PromptCacheReport(units=tuple(dict.fromkeys((own, *UNITS))))
    wants_newest = trimmable if newest is None else newest
    acts = st.builds(
        Act,
        st.sampled_from(VERBS),
        st.lists(st.integers(0, VARIANTS - 1), max_size=PIECES).map(tuple),
        st.integers(0, 3),
        st.sampled_from(LIKENESSES),
        st.integers(0, 3),
        st.integers(0, 1) if salts else st.just(0),
    )
    lengths = st.sampled_from(report.units if own == 1 else (own, own, *report.units))
    ways = st.tuples(lengths, st.lists(acts, min_size=1, max_size=24))

    def play(way: tuple[int, list[Act]]) -> None:
        player = _Player(make, report, trimmable=trimmable, salts=salts, newest=wants_newest)
        player.play(way[0], way[1])

    hold(play, ways, examples=examples)
    if not report.fetched:
        msg = (
            f"nothing was ever handed out, so nothing was checked: {report}. Does `fetch` need "
            "more tokens than these prompts have? Then write unit=N, the tokens of a block"
        )
        raise VacuousCheckError(msg)
    return report


def unit_of(make: Callable[[], Any], *, trimmable: bool = True, salts: bool = False) -> int:
    """The unit of a cache's answers in tokens: their greatest common divisor; 1 if unknown."""
    salt = {"salt": 0} if salts else {}
    states = (State(list(range(length)), trimmable) for length in PROBED)
    return gcd(*(_covered(make, state, salt) for state in states)) or 1


def _covered(make: Callable[[], Any], state: State, salt: dict[str, int]) -> int:
    tokens = tuple(map(Token, state.tokens))
    length = len(tokens)
    try:
        cache = make()
        cache.insert(tokens, state, **salt)
        found = cache.fetch((*tokens, Token(length)), **salt)
    except Exception:  # noqa: BLE001 - whatever it is, the search shows the way there
        return 0
    return found[0] if found is not None and 0 < found[0] <= length else 0


def piece(variant: int, length: int) -> list[int]:
    """Tokens that differ from those of another variant in one place, or in all but the last."""
    tokens = [0] * length
    if variant == 4:
        return [2] * (length - 1) + [0] if length > 1 else [2]
    if variant and length:
        tokens[(0, 0, -1, length // 2)[variant]] = 1
    return tokens


def shown(tokens: Sequence[int]) -> str:
    """Tokens as a list; runs of equal tokens are abbreviated."""
    if len(tokens) <= 12:
        return str(list(tokens))
    runs = ((token, len(list(group))) for token, group in groupby(tokens))
    parts = [f"{token} x {count}" if count > 1 else str(token) for token, count in runs]
    return f"[{', '.join(parts)}]"


class _Player:
    """A cache, the prompts of one example, and the calls so far."""

    def __init__(
        self,
        make: Callable[[], Any],
        report: PromptCacheReport,
        *,
        trimmable: bool,
        salts: bool,
        newest: bool,
    ) -> None:
        self._make = make
        self._cache = make()
        self._report = report
        self._trimmable = trimmable
        self._salts = salts
        self._newest = newest
        self._story = Story()
        self._prompts: list[tuple[list[int], int]] = []
        self._last: tuple[Tokens, int] | None = None  # what was inserted just before

    def play(self, unit: int, acts: Sequence[Act]) -> None:
        """Make the calls in order, then the closing requests."""
        self._report.examples += 1
        self._calls(unit, acts)
        for tokens, salt in self._closing(unit):
            try:
                self._fetch(tokens, salt)
            except BrokenLawError as error:
                raise self._alone(unit, acts, tokens, salt) or error from None

    def _alone(
        self, unit: int, acts: Sequence[Act], tokens: Tokens, salt: int
    ) -> BrokenLawError | None:
        again = _Player(
            self._make,
            PromptCacheReport(units=self._report.units),
            trimmable=self._trimmable,
            salts=self._salts,
            newest=self._newest,
        )
        try:
            again._calls(unit, acts)
            again._fetch(tokens, salt)
        except BrokenLawError as error:
            return error
        return None

    def _calls(self, unit: int, acts: Sequence[Act]) -> None:
        self._sizes(empty=True)
        for act in acts:
            tokens, salt = self._prompt(act, unit)
            self._prompts.append((tokens, salt))
            call = self._insert if act.verb == "insert" else self._fetch
            call(tuple(map(Token, tokens)), salt)
            self._sizes()

    def _prompt(self, act: Act, unit: int) -> tuple[list[int], int]:
        rests = (0, 1, unit - 1, unit // 2)
        rest = piece(act.pieces[-1] if act.pieces else 0, rests[act.rest])
        own = [token for variant in act.pieces for token in piece(variant, unit)] + rest or [0]
        if act.like == "new" or not self._prompts:
            return own, act.salt
        before, salt = self._prompts[-1 - act.of % len(self._prompts)]
        made = {
            "again": before,
            "longer": before + own,
            "shorter": before[: max(1, len(before) - max(1, len(own)))],
            "other-head": own[:unit] + before[unit:],
        }
        return made[act.like], act.salt if self._salts else salt

    def _closing(self, unit: int) -> Iterator[tuple[Tokens, int]]:
        """Closing requests: earlier prompts, and prompts that diverge from one early or late."""
        recent: list[tuple[list[int], int]] = []
        for each in reversed(self._prompts):
            if each not in recent and len(recent) < RECENT:
                recent.append(each)
        for tokens, salt in recent:
            yield tuple(map(Token, tokens)), salt
            for cut in sorted({len(tokens), len(tokens) - 1, len(tokens) // 2, unit}):
                yield tuple(map(Token, tokens[:cut] + [OTHER] * unit)), salt
        for (tokens, _), (other, salt) in permutations(recent, 2):
            yield tuple(map(Token, [*tokens[:unit], *other[unit:], OTHER])), salt

    def _with(self, salt: int) -> dict[str, int]:
        return {"salt": salt} if self._salts else {}

    def _under(self, salt: int) -> str:
        return f", salt={salt}" if self._salts else ""

    def _sizes(self, *, empty: bool = False) -> None:
        size = getattr(self._cache, "nbytes", None)
        if isinstance(size, int) and (size < 0 or (empty and size)):
            self._story.broken("sizes add up", f"nbytes is {size}{' at first' * empty}")

    def _state(self, tokens: Sequence[int], salt: int) -> State:
        state = State(trimmable=self._trimmable)
        state.feed(tokens, salt=salt)
        return state

    def _insert(self, tokens: Tokens, salt: int) -> None:
        self._report.insertions += 1
        self._story.add(
            f"insert({shown(tokens)}{self._under(salt)}) with a state that has folded in the same"
        )
        self._cache.insert(tokens, self._state(tokens, salt), **self._with(salt))
        self._last = tokens, salt

    def _fetch(self, tokens: Tokens, salt: int) -> None:
        story, last = self._story, self._last
        self._last = None
        self._report.requests += 1
        found = self._cache.fetch(tokens, **self._with(salt))
        call = f"fetch({shown(tokens)}{self._under(salt)})"
        if found is None:
            story.add(f"{call} gives nothing")
            self._check_newest(last, tokens, salt, 0)
            return
        covered, state = found
        story.add(f"{call} covers {covered}, with a state of {shown(state.tokens)}")
        self._check(tokens, salt, covered, state)
        self._check_newest(last, tokens, salt, covered)
        if covered:
            self._report.fetched[covered] += 1
        before, rest = list(state.tokens), [*tokens[covered:], 7]
        state.feed(rest, salt=salt)
        again = self._cache.fetch(tokens, **self._with(salt))
        if again is None:
            return
        story.add(f"the caller feeds {shown(rest)} to it, and fetches once more")
        if again[1].tokens != list(tokens[: again[0]]):
            story.broken(
                "no aliasing",
                f"the second one holds {shown(again[1].tokens)}; what the first caller did to "
                f"{shown(before)} shows",
            )

    def _check(self, tokens: Tokens, salt: int, covered: int, state: State) -> None:
        story = self._story
        if not 0 <= covered <= len(tokens):
            story.broken("a prefix", f"{covered} is not a number of tokens of this prompt")
        if covered == len(tokens):
            story.broken("one token left", "nothing is left to compute the answer from")
        wanted = self._state(tokens[:covered], salt).tokens
        if state.tokens != wanted:
            story.broken(
                "true states",
                f"the state should have folded in {shown(wanted)}: resuming from it gives a "
                f"different answer than a cold run",
            )
        for at, (held, right) in enumerate(zip(state.tokens, wanted, strict=True)):
            if not (isinstance(held, Fed) and isinstance(right, Fed)):
                continue  # a token of the cache's own: nothing is known of its context
            if held.salt != right.salt:
                story.broken("salts apart", f"token {at} was computed under salt {held.salt}")
            if held.after != right.after:
                story.broken("true states", f"token {at} was computed after other tokens")

    def _check_newest(
        self, last: tuple[Tokens, int] | None, tokens: Tokens, salt: int, covered: int
    ) -> None:
        """Check that a prompt just inserted is covered as in a cache without other entries.

        Answers are right without it, but tokens are computed that need not be.
        """
        if last is None or not self._newest:
            return
        alone = self._make()
        alone.insert(last[0], self._state(*last), **self._with(last[1]))
        found = alone.fetch(tokens, **self._with(salt))
        if found is not None and found[0] > covered:
            self._story.broken(
                "newest found",
                f"a cache with nothing but {shown(last[0])} in it covers {found[0]} tokens of this "
                f"prompt, and this one {covered}; write newest=False if that is intended",
            )
