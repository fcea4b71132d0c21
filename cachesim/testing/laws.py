"""Laws for other caches, and the operations that broke one."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, Protocol, TypeAlias, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

from cachesim.errors import InputError
from cachesim.testing.workloads import token_lists
from cachesim.units import Token, Tokens

T = TypeVar("T")

EXAMPLES: Final = 300


class BrokenLawError(AssertionError):
    """A broken law; the message lists the shortest sequence of operations found."""

    def __init__(self, law: str, why: str, story: Sequence[str]) -> None:
        steps = "\n".join(f"  {number}. {line}" for number, line in enumerate(story, 1))
        super().__init__(f"broken law: {law}\n{steps}\n  {why}")
        self.law = law
        self.why = why
        self.story = tuple(story)


class VacuousCheckError(AssertionError):
    """A check that could not fail: no case that it covers occurred."""


class Story:
    """Log of operations, and the report of a broken law."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        """Add an operation."""
        self.lines.append(line)

    def broken(self, law: str, why: str) -> NoReturn:
        """Raise BrokenLawError for the last operation."""
        raise BrokenLawError(law, why, self.lines)


def hold(
    play: Callable[[T], None], ways: st.SearchStrategy[T], *, examples: int, seed: int = 0
) -> None:
    """Run drawn examples until one breaks a law; Hypothesis shrinks it."""

    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=not seed,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(ways)
    def run(way: T) -> None:
        play(way)

    (with_seed(seed)(run) if seed else run)()


State: TypeAlias = Any
"""Saved state of a memory, opaque to the laws."""

SEQUENCES: Final = 2
Verb: TypeAlias = Literal["feed", "remove", "copy", "save", "load"]
METHODS: Final = ("feed", "seq_rm", "seq_pos_max", "seq_cp", "save", "load")
VERBS: Final[tuple[Verb, ...]] = ("feed", "remove", "copy", "save", "load")


class MemoryUnderTest(Protocol):
    """The interface of a memory to be checked; `copy` and `save` may raise NotImplementedError."""

    def feed(self, seq: int, tokens: Tokens) -> Hashable:
        """Append tokens to a sequence; the result distinguishes answers, such as logits."""
        ...

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """Remove [p0, p1), -1 for open; False if refused."""
        ...

    def seq_pos_max(self, seq: int) -> int:
        """The last position, -1 if empty."""
        ...

    def seq_cp(self, src: int, dst: int) -> None:
        """Copy a sequence to an empty one."""
        ...

    def save(self, seq: int) -> State:
        """The sequence's state."""
        ...

    def load(self, seq: int, state: object) -> bool:
        """Replace a sequence by a saved state."""
        ...


@dataclass(frozen=True, slots=True)
class Act:
    """An operation; fields that its verb does not use are ignored."""

    verb: Verb
    seq: int
    tokens: Tokens
    keep: int


def check_memory(make: Callable[[], MemoryUnderTest], *, examples: int = EXAMPLES) -> None:
    """Search for a short sequence of operations that breaks a law.

    `make` builds an empty memory for two sequences. Raises `BrokenLawError` with the law and the
    steps; returns when nothing was found.
    """
    acts = st.builds(
        Act,
        st.sampled_from(VERBS),
        st.integers(0, SEQUENCES - 1),
        token_lists(max_size=4),
        st.integers(0, 5),
    )
    ways = st.lists(acts, min_size=1, max_size=7)
    hold(lambda way: _Player(make).play(way), ways, examples=examples)


class _Player:
    """A memory beside the expected content of its sequences."""

    def __init__(self, make: Callable[[], MemoryUnderTest]) -> None:
        self._make = make
        self._memory = make()
        for name in METHODS:
            if not callable(getattr(self._memory, name, None)):
                msg = f"the memory has no method {name}; it needs {', '.join(METHODS)}"
                raise InputError(msg)
        self._held: list[Tokens] = [() for _ in range(SEQUENCES)]
        self._saved: tuple[Any, Tokens] | None = None
        self._story = Story()

    def play(self, way: list[Act]) -> None:
        """Apply the operations, then feed every sequence once more, which shows late damage."""
        for act in way:
            getattr(self, f"_{act.verb}")(act)
        for seq in range(SEQUENCES):
            self._feed(Act("feed", seq, (), 0), probe=True)

    def _feed(self, act: Act, *, probe: bool = False) -> None:
        tokens = act.tokens or (Token(1),)
        self._story.add(f"{'finally ' if probe else ''}feed({act.seq}, {list(tokens)})")
        got = self._memory.feed(act.seq, tokens)
        self._held[act.seq] += tokens
        cold = self._make().feed(0, self._held[act.seq])
        if got != cold:
            self._story.broken(
                "uncached answers",
                f"a fresh memory fed {list(self._held[act.seq])} answers differently",
            )

    def _remove(self, act: Act) -> None:
        seq, keep = act.seq, min(act.keep, len(self._held[act.seq]))
        before = self._positions()
        done = self._memory.seq_rm(seq, keep, -1)
        self._story.add(f"seq_rm({seq}, {keep}, -1) is {done}")
        after = self._positions()
        if not done and after != before:
            self._story.broken("refusal is inert", f"last positions were {before}, are {after}")
        if done and after[seq] != keep - 1:
            self._story.broken(
                "only shrinking", f"the last position is {after[seq]}, not {keep - 1}"
            )
        others = [after[i] == before[i] for i in range(SEQUENCES) if i != seq]
        if not all(others):
            self._story.broken("no aliasing", f"last positions were {before}, are {after}")
        if done:
            self._held[seq] = self._held[seq][:keep]

    def _positions(self) -> list[int]:
        return [self._memory.seq_pos_max(seq) for seq in range(SEQUENCES)]

    def _copy(self, act: Act) -> None:
        src, dst = act.seq, 1 - act.seq
        if self._held[dst]:
            return
        self._story.add(f"seq_cp({src}, {dst})")
        self._memory.seq_cp(src, dst)
        self._held[dst] = self._held[src]

    def _save(self, act: Act) -> None:
        self._story.add(f"save({act.seq})")
        self._saved = (self._memory.save(act.seq), self._held[act.seq])

    def _load(self, act: Act) -> None:
        if self._saved is None:
            return
        state, tokens = self._saved
        done = self._memory.load(act.seq, state)
        self._story.add(f"load({act.seq}, saved) is {done}")
        if done and self._memory.seq_pos_max(act.seq) != len(tokens) - 1:
            self._story.broken(
                "save, load",
                f"the last position is {self._memory.seq_pos_max(act.seq)}, not {len(tokens) - 1}",
            )
        if done:
            self._held[act.seq] = tokens
