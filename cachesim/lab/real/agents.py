"""Requests of coding agents: long shared beginnings, tool results, edits, compaction, sub-agents.

    head   [ system prompt ][ tools ]                        thousands of tokens, in every request
    turn   [ head ][ user ][ reply ][ result ][ reply ][ result ] ...       grows until compacted

Tokens are plain integers; a server's way to spell them is not known here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final, TypeAlias

Row: TypeAlias = tuple[int, ...]
Fresh: TypeAlias = Callable[[int], Sequence[int]]

MOST_WORKERS: Final = 3
MOST_TALKS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Token counts of the parts; a session never asks for more than `longest`."""

    longest: int
    system: tuple[int, int] = (600, 2400)
    tools: tuple[int, int] = (800, 3600)
    user: tuple[int, int] = (10, 120)
    result: tuple[int, int] = (30, 2600)
    summary: tuple[int, int] = (150, 700)

    @classmethod
    def within(cls, longest: int) -> "Sizes":
        """The same proportions in a context of so many tokens."""

        def part(least: float, most: float) -> tuple[int, int]:
            return max(1, int(least * longest)), max(2, int(most * longest))

        return cls(
            longest=longest,
            system=part(0.04, 0.15),
            tools=part(0.05, 0.22),
            user=part(0.001, 0.008),
            result=part(0.002, 0.16),
            summary=part(0.01, 0.045),
        )


@dataclass(frozen=True, slots=True)
class Said:
    """A message: `user`, `tool` or `assistant` says it."""

    role: str
    tokens: Row


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation: system prompt and tools, then its messages, the replies among them."""

    head: tuple[Row, ...]
    messages: tuple[Said, ...]

    @property
    def tokens(self) -> Row:
        """The prompt that asks for its next reply."""
        rows = (*self.head, *(each.tokens for each in self.messages))
        return tuple(token for row in rows for token in row)

    def with_more(self, *messages: Said) -> "Talk":
        return replace(self, messages=(*self.messages, *messages))


class Agents:
    """The talks of one user's agents, and what is asked next."""

    def __init__(self, rng: Random, fresh: Fresh, sizes: Sizes) -> None:
        self._rng, self._fresh, self._sizes = rng, fresh, sizes
        system, tools = self._row(sizes.system), self._tools()
        self._talks = [Talk((system, *tools), (self._user(),))]  # answered, newest last
        self._asked: tuple[Talk, ...] = ()
        self._workers: tuple[Talk, ...] = ()  # sub-agents at work
        self.way = "first"  # how the last talks came about

    @property
    def head(self) -> Row:
        return tuple(token for row in self._talks[-1].head for token in row)

    def next(self) -> tuple[Talk, ...]:
        """The next requests: of one agent, or of several sub-agents."""
        self._asked = self._drawn() if self._asked else (self._talks[-1],)
        if any(len(each.tokens) > self._sizes.longest for each in self._asked):
            self._workers, self.way = (), "compacted"
            self._asked = self.compacted(self._talks[-1])
        return self._asked

    def learn(self, replies: Sequence[Sequence[int]]) -> None:
        """Take the replies; clients that hide the thoughts send half of a reply back."""
        answered = []
        for talk, reply in zip(self._asked, replies, strict=True):
            said = tuple(reply)
            kept = said[len(said) // 2 :] if self._one_in(5) else said
            answered.append(talk.with_more(Said("assistant", kept)))
        if self.way == "sent_out":
            self._workers = tuple(answered)
        elif self.way != "title":
            self._talks = [*self._talks, *answered][-MOST_TALKS:]

    # -- how it goes on ----------------------------------------------------------------------------

    def _drawn(self) -> tuple[Talk, ...]:
        rng, talk = self._rng, self._talks[-1]
        if self._workers and not self._one_in(3):
            return tuple(each.with_more(self._result()) for each in self._workers)
        if self._workers:  # what they found goes to who sent them
            found = tuple(token for each in self._workers for token in each.messages[-1].tokens)
            self._workers, self.way = (), "more_results"
            return (talk.with_more(Said("tool", found)),)
        ways = rng.choices([way for way, _ in WAYS], [often for _, often in WAYS])
        self.way = ways[0].__name__
        return ways[0](self, talk)

    def more_results(self, talk: Talk) -> tuple[Talk, ...]:
        """A tool was called, and this came of it."""
        return (talk.with_more(self._result()),)

    def more_questions(self, talk: Talk) -> tuple[Talk, ...]:
        """The user goes on."""
        return (talk.with_more(self._user()),)

    def again(self, talk: Talk) -> tuple[Talk, ...]:
        """The last reply was not liked."""
        return (replace(talk, messages=talk.messages[:-1] or talk.messages),)

    def title(self, talk: Talk) -> tuple[Talk, ...]:
        """A short question beside it, as for a title: no system prompt, no tools."""
        about = self._user().tokens + talk.messages[0].tokens[:40]
        return (Talk((), (Said("user", about),)),)

    def parked(self, _: Talk) -> tuple[Talk, ...]:
        """A talk that was left comes back."""
        return (self._rng.choice(self._talks).with_more(self._user()),)

    def edited(self, talk: Talk) -> tuple[Talk, ...]:
        """Shorten or rewrite a message in the middle; the others stay."""
        at = self._rng.randrange(len(talk.messages))
        old = talk.messages[at]
        cut = old.tokens[: self._rng.randint(0, len(old.tokens))]
        new = Said(old.role, cut + tuple(self._fresh(self._rng.choice((1, 5, 40)))))
        messages = (*talk.messages[:at], new, *talk.messages[at + 1 :])
        return (replace(talk, messages=messages).with_more(self._user()),)

    def branched(self, _: Talk) -> tuple[Talk, ...]:
        """Back to an earlier turn, and another question there."""
        talk = self._rng.choice(self._talks)
        kept = talk.messages[: self._rng.randint(0, len(talk.messages))]
        return (replace(talk, messages=(*kept, self._user())),)

    def sent_out(self, talk: Talk) -> tuple[Talk, ...]:
        """Sub-agents: under the same head, or with all that was said so far."""
        whole = self._one_in(3)
        base = talk if whole else replace(talk, messages=())
        tasks = range(self._rng.randint(2, MOST_WORKERS))
        return tuple(base.with_more(self._user()) for _ in tasks)

    def compacted(self, talk: Talk) -> tuple[Talk, ...]:
        """A summary in place of what was said, but for the last messages."""
        kept = talk.messages[-2:] if self._one_in(2) else ()
        while sum(len(each.tokens) for each in kept) > self._sizes.longest // 3:
            kept = kept[1:]
        summary = Said("user", self._row(self._sizes.summary))
        return (replace(talk, messages=(summary, *kept, self._user())),)

    def with_clock(self, talk: Talk) -> tuple[Talk, ...]:
        """A date in the system prompt is another one now: as many tokens, one of them new."""
        system = talk.head[0] if talk.head else ()
        if not system:
            return self.more_questions(talk)
        at = self._rng.randrange(len(system))
        head = (system[:at] + tuple(self._fresh(1)) + system[at + 1 :], *talk.head[1:])
        return (replace(talk, head=head).with_more(self._user()),)

    def with_other_tools(self, talk: Talk) -> tuple[Talk, ...]:
        """The tools come in another order, or one is new."""
        tools = list(talk.head[1:])
        if self._one_in(2):
            self._rng.shuffle(tools)
        else:
            tools.insert(self._rng.randint(0, len(tools)), self._row((5, 60)))
        return (replace(talk, head=(*talk.head[:1], *tools)),)

    # -- rows --------------------------------------------------------------------------------------

    def _tools(self) -> tuple[Row, ...]:
        whole, count = self._row(self._sizes.tools), self._rng.randint(2, 6)
        cuts = sorted(self._rng.randrange(len(whole)) for _ in range(count - 1))
        pairs = zip([0, *cuts], [*cuts, len(whole)], strict=True)
        return tuple(whole[first:last] for first, last in pairs)

    def _user(self) -> Said:
        return Said("user", self._row(self._sizes.user))

    def _result(self) -> Said:
        return Said("tool", self._row(self._sizes.result))

    def _row(self, bounds: tuple[int, int]) -> Row:
        low, high = bounds
        few = self._rng.random() < 0.6
        return tuple(self._fresh(self._rng.randint(low, low + (high - low) // 4 if few else high)))

    def _one_in(self, count: int) -> bool:
        return self._rng.randrange(count) == 0


WAYS: Final[Sequence[tuple[Callable[[Agents, Talk], tuple[Talk, ...]], int]]] = (
    (Agents.more_results, 8),
    (Agents.more_questions, 3),
    (Agents.sent_out, 3),
    (Agents.again, 2),
    (Agents.edited, 2),
    (Agents.branched, 2),
    (Agents.parked, 2),
    (Agents.compacted, 1),
    (Agents.title, 1),
    (Agents.with_clock, 1),
    (Agents.with_other_tools, 1),
)
"""Next moves of an agent, and their weights."""
