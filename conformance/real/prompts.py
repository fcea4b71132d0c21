"""Random prompts: new ones, ones that grow, and the long shared ones of coding agents.

The parts of an agent's prompt:

    head   [ system prompt ][ tools ]                        thousands of tokens, in every request
    turn   [ head ][ user ][ reply ][ result ][ reply ][ result ] ...       grows until compacted
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, TypeAlias

from cachesim.prove.rows import read_row, spell

Row: TypeAlias = tuple[int, ...]
Fresh: TypeAlias = Callable[[int], Sequence[int]]

MOST_WORKERS: Final = 3
MOST_CONVERSATIONS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Token counts of the parts; a request never has more than `longest`."""

    longest: int
    system: tuple[int, int] = (600, 2400)
    tools: tuple[int, int] = (800, 3600)
    user: tuple[int, int] = (10, 120)
    result: tuple[int, int] = (30, 2600)
    summary: tuple[int, int] = (150, 700)

    @classmethod
    def within(cls, longest: int) -> "Sizes":
        """These proportions in a context of `longest` tokens."""

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
class Message:
    """A message of `user`, `tool` or `assistant`."""

    role: str
    tokens: Row


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation: system prompt and tools, then its messages, the replies among them."""

    head: tuple[Row, ...]
    messages: tuple[Message, ...]

    @property
    def tokens(self) -> Row:
        """The prompt of its next reply."""
        rows = (*self.head, *(message.tokens for message in self.messages))
        return tuple(token for row in rows for token in row)

    def with_more(self, *messages: Message) -> "Conversation":
        return replace(self, messages=(*self.messages, *messages))


class Agents:
    """The conversations of one user's agents, and their next requests."""

    def __init__(self, rng: Random, fresh: Fresh, sizes: Sizes) -> None:
        self._rng, self._fresh, self._sizes = rng, fresh, sizes
        whole, count = self._row(self._sizes.tools), self._rng.randint(2, 6)
        cuts = sorted(self._rng.randrange(len(whole)) for _ in range(count - 1))
        pairs = zip([0, *cuts], [*cuts, len(whole)], strict=True)
        system, tools = self._row(sizes.system), tuple(whole[first:last] for first, last in pairs)
        self._conversations = [Conversation((system, *tools), (self._user(),))]
        self._requested: tuple[Conversation, ...] = ()
        self._workers: tuple[Conversation, ...] = ()  # running sub-agents
        self.move = "first"  # the origin of the last conversations

    @property
    def head(self) -> Row:
        return tuple(token for row in self._conversations[-1].head for token in row)

    def next(self) -> tuple[Conversation, ...]:
        """The next requests: of one agent, or of several sub-agents."""
        self._requested = self._drawn() if self._requested else (self._conversations[-1],)
        if any(len(each.tokens) > self._sizes.longest for each in self._requested):
            self._workers, self.move = (), "compacted"
            self._requested = self.compacted(self._conversations[-1])
        return self._requested

    def learn(self, replies: Sequence[Sequence[int]]) -> None:
        """Add the replies; clients that hide the reasoning send half of a reply back."""
        answered = []
        for conversation, reply in zip(self._requested, replies, strict=True):
            whole = tuple(reply)
            kept = whole[len(whole) // 2 :] if self._one_in(5) else whole
            answered.append(conversation.with_more(Message("assistant", kept)))
        if self.move == "sent_out":
            self._workers = tuple(answered)
        elif self.move != "title":
            self._conversations = [*self._conversations, *answered][-MOST_CONVERSATIONS:]

    # -- continuations -----------------------------------------------------------------------------

    def _drawn(self) -> tuple[Conversation, ...]:
        rng, conversation = self._rng, self._conversations[-1]
        if self._workers and not self._one_in(3):
            return tuple(worker.with_more(self._result()) for worker in self._workers)
        if self._workers:  # what they found goes to who sent them
            found = tuple(token for worker in self._workers for token in worker.messages[-1].tokens)
            self._workers, self.move = (), "more_results"
            return (conversation.with_more(Message("tool", found)),)
        moves = rng.choices([move for move, _ in MOVES], [often for _, often in MOVES])
        self.move = moves[0].__name__
        return moves[0](self, conversation)

    def more_results(self, conversation: Conversation) -> tuple[Conversation, ...]:
        """A turn with a tool's result."""
        return (conversation.with_more(self._result()),)

    def more_questions(self, conversation: Conversation) -> tuple[Conversation, ...]:
        """The next question of the user."""
        return (conversation.with_more(self._user()),)

    def again(self, conversation: Conversation) -> tuple[Conversation, ...]:
        """A request to regenerate the last reply."""
        return (
            replace(conversation, messages=conversation.messages[:-1] or conversation.messages),
        )

    def title(self, conversation: Conversation) -> tuple[Conversation, ...]:
        """A short question beside it, as for a title: no system prompt, no tools."""
        about = self._user().tokens + conversation.messages[0].tokens[:40]
        return (Conversation((), (Message("user", about),)),)

    def resumed(self, _: Conversation) -> tuple[Conversation, ...]:
        """An earlier conversation is resumed."""
        return (self._rng.choice(self._conversations).with_more(self._user()),)

    def edited(self, conversation: Conversation) -> tuple[Conversation, ...]:
        """Shorten or rewrite a message in the middle; the others stay."""
        at = self._rng.randrange(len(conversation.messages))
        old = conversation.messages[at]
        cut = old.tokens[: self._rng.randint(0, len(old.tokens))]
        new = Message(old.role, cut + tuple(self._fresh(self._rng.choice((1, 5, 40)))))
        messages = (*conversation.messages[:at], new, *conversation.messages[at + 1 :])
        return (replace(conversation, messages=messages).with_more(self._user()),)

    def branched(self, _: Conversation) -> tuple[Conversation, ...]:
        """Back to an earlier turn, and another question there."""
        conversation = self._rng.choice(self._conversations)
        kept = conversation.messages[: self._rng.randint(0, len(conversation.messages))]
        return (replace(conversation, messages=(*kept, self._user())),)

    def sent_out(self, conversation: Conversation) -> tuple[Conversation, ...]:
        """Sub-agents: under the same head, or with all messages so far."""
        whole = self._one_in(3)
        base = conversation if whole else replace(conversation, messages=())
        tasks = range(self._rng.randint(2, MOST_WORKERS))
        return tuple(base.with_more(self._user()) for _ in tasks)

    def compacted(self, conversation: Conversation) -> tuple[Conversation, ...]:
        """A summary in place of all messages but the last."""
        kept = conversation.messages[-2:] if self._one_in(2) else ()
        while sum(len(each.tokens) for each in kept) > self._sizes.longest // 3:
            kept = kept[1:]
        summary = Message("user", self._row(self._sizes.summary))
        return (replace(conversation, messages=(summary, *kept, self._user())),)

    def with_clock(self, conversation: Conversation) -> tuple[Conversation, ...]:
        """Another date in the system prompt: as many tokens, one of them new."""
        system = conversation.head[0] if conversation.head else ()
        if not system:
            return self.more_questions(conversation)
        at = self._rng.randrange(len(system))
        head = (system[:at] + tuple(self._fresh(1)) + system[at + 1 :], *conversation.head[1:])
        return (replace(conversation, head=head).with_more(self._user()),)

    def with_other_tools(self, conversation: Conversation) -> tuple[Conversation, ...]:
        """The tools in another order, or with a new one."""
        tools = list(conversation.head[1:])
        if self._one_in(2):
            self._rng.shuffle(tools)
        else:
            tools.insert(self._rng.randint(0, len(tools)), self._row((5, 60)))
        return (replace(conversation, head=(*conversation.head[:1], *tools)),)

    # -- rows --------------------------------------------------------------------------------------

    def _user(self) -> Message:
        return Message("user", self._row(self._sizes.user))

    def _result(self) -> Message:
        return Message("tool", self._row(self._sizes.result))

    def _row(self, bounds: tuple[int, int]) -> Row:
        low, high = bounds
        few = self._rng.random() < 0.6
        return tuple(self._fresh(self._rng.randint(low, low + (high - low) // 4 if few else high)))

    def _one_in(self, count: int) -> bool:
        return self._rng.randrange(count) == 0


MOVES: Final[Sequence[tuple[Callable[[Agents, Conversation], tuple[Conversation, ...]], int]]] = (
    (Agents.more_results, 8),
    (Agents.more_questions, 3),
    (Agents.sent_out, 3),
    (Agents.again, 2),
    (Agents.edited, 2),
    (Agents.branched, 2),
    (Agents.resumed, 2),
    (Agents.compacted, 1),
    (Agents.title, 1),
    (Agents.with_clock, 1),
    (Agents.with_other_tools, 1),
)
"""Next moves of an agent, and their weights."""


REPLIES: Final = (1, 2, 5, 20, 60, 150)
"""Lengths of an agent's replies."""


class Writer:
    """Prompts that extend earlier ones."""

    def __init__(self, rng: Random, unit: int, longest: int) -> None:
        self.rng, self.unit, self.longest = rng, unit, longest
        self.next = 10
        self.recent = 6  # prompts that the next one may grow out of
        self.novelty = 0.2  # how many start over
        self.known: list[tuple[list[int], list[int]]] = []

    def fresh(self, count: int) -> list[int]:
        first = self.next
        self.next += count + self.rng.choice((1, 1, 9))
        return list(range(first, first + count))

    def length(self) -> int:
        """Often a whole number of units, or one more or less."""
        whole = self.unit * self.rng.randint(1, max(1, self.longest // self.unit))
        if self.rng.random() < 0.4:
            return max(2, min(self.longest, whole + self.rng.choice((-1, 0, 0, 1))))
        return self.rng.randint(2, self.longest)

    def prompt(self) -> list[int]:
        """New, again, longer, cut, branched, or the turn after."""
        rng = self.rng
        if not self.known or rng.random() < self.novelty:
            return self.fresh(self.length())
        prompt, reply = rng.choice(self.known[-self.recent :])
        whole, kind = prompt + reply, rng.random()
        if kind < 0.25:
            return list(prompt)
        if kind < 0.5:
            return whole + self.fresh(rng.randint(1, 20))
        cut = rng.randint(1, len(whole))
        if rng.random() < 0.4:
            cut = max(1, cut // self.unit * self.unit)
        return whole[:cut] + (self.fresh(rng.randint(1, 30)) if kind < 0.9 else [])

    def next_request(self, counts: Sequence[int]) -> dict[str, Any]:
        """A prompt, and a reply whose length is one of `counts`."""
        prompt = self.prompt()[: 2 * self.longest]
        reply = self.fresh(self.rng.choice(counts))
        self.known.append((prompt, reply))
        return request_of(prompt, reply)


class AgentUsers:
    """Users of agents; each request is answered at once."""

    def __init__(self, rng: Random, users: int, longest: int) -> None:
        self.rng = rng
        self._fresh = Writer(rng, 1, longest).fresh
        self._users = [Agents(rng, self._fresh, Sizes.within(longest)) for _ in range(users)]

    def group(self) -> list[dict[str, Any]]:
        """Requests of one user, or of several who do not wait for one another."""
        rng, users = self.rng, self._users
        chosen = rng.sample(users, len(users)) if rng.random() < 0.4 else [rng.choice(users)]
        return [request for user in chosen for request in self._requests_of(user)]

    def _requests_of(self, user: Agents) -> list[dict[str, Any]]:
        conversations = user.next()
        replies = [self._fresh(self.rng.choice(REPLIES)) for _ in conversations]
        user.learn(replies)
        pairs = zip(conversations, replies, strict=True)
        return [self.request(conversation.tokens, reply) for conversation, reply in pairs]

    def request(self, prompt: Row, reply: Sequence[int]) -> dict[str, Any]:
        request = request_of(prompt, reply)
        if self.rng.random() < 0.05:
            request["salt"] = "a"
        return request


def request_of(prompt: Sequence[int], reply: Sequence[int]) -> dict[str, Any]:
    """A request in the notation of workloads."""
    return {"prompt": spell(prompt), "generate": len(reply), "reply": spell(reply)}


WITH_IMAGES: Final = 0.1
"""Share of the workloads whose requests have images."""


def with_images(drawn: dict[str, Any], seed: int, number: int) -> dict[str, Any]:
    """Some drawn workloads, their prompts with one of two images at each of one or two places."""
    rng = Random(f"images {seed} {number}")
    if rng.random() >= WITH_IMAGES:
        return drawn
    places, at = [], 0
    for _ in range(rng.randint(1, 2)):
        start = at + rng.randint(0, 50)
        places.append((start, rng.randint(1, 60)))
        at = sum(places[-1])
    for wanted in (each for group in drawn["steps"] for each in group if "prompt" in each):
        length = len(read_row(wanted["prompt"]))
        wanted["images"] = [
            [f"{rng.choice('pq')}{count}", start, count]
            for start, count in places
            if start + count <= length and rng.random() < IN_A_PROMPT
        ]
    return {**drawn, "id": f"images-{drawn['id']}"}


IN_A_PROMPT: Final = 0.8
"""Share of the prompts of such a workload that have the image of a place."""
