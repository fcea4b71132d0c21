"""Random prompts for schedulers that keep blocks or pages: new ones, and ones that grow.

Rows of tokens are written as text: blank-separated pieces, `5` one token, `5-9` the tokens 5 to 9,
`0*250` a token 250 times.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from cachesim.lab.real.agents import Agents, Row, Sizes

REPLIES: Final = (1, 2, 5, 20, 60, 150)
"""Lengths of an agent's replies."""


class Writer:
    """Prompts that grow out of what was asked before."""

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

    def ask(self, counts: Sequence[int]) -> dict[str, Any]:
        """A prompt, and a reply of one of so many tokens."""
        prompt = self.prompt()[: 2 * self.longest]
        reply = self.fresh(self.rng.choice(counts))
        self.known.append((prompt, reply))
        return asked(prompt, reply)


class Office:
    """Users at their agents, who are answered at once."""

    def __init__(self, rng: Random, users: int, longest: int) -> None:
        self.rng = rng
        self._fresh = Writer(rng, 1, longest).fresh
        self._users = [Agents(rng, self._fresh, Sizes.within(longest)) for _ in range(users)]

    def group(self) -> list[dict[str, Any]]:
        """Requests of one user, or of several who do not wait for one another."""
        rng, users = self.rng, self._users
        chosen = rng.sample(users, len(users)) if rng.random() < 0.4 else [rng.choice(users)]
        return [wanted for user in chosen for wanted in self._asked(user)]

    def _asked(self, user: Agents) -> list[dict[str, Any]]:
        talks = user.next()
        replies = [self._fresh(self.rng.choice(REPLIES)) for _ in talks]
        user.learn(replies)
        pairs = zip(talks, replies, strict=True)
        return [self.request(talk.tokens, reply) for talk, reply in pairs]

    def request(self, prompt: Row, reply: Sequence[int]) -> dict[str, Any]:
        wanted = asked(prompt, reply)
        if self.rng.random() < 0.05:
            wanted["salt"] = "a"
        return wanted


def asked(prompt: Sequence[int], reply: Sequence[int]) -> dict[str, Any]:
    """A request as the workloads write it."""
    return {"prompt": spell(prompt), "generate": len(reply), "reply": spell(reply)}


def spell(tokens: Sequence[int]) -> str:
    """Tokens as text: runs of two or more as one piece."""
    out, i = [], 0
    while i < len(tokens):
        j = i
        while j + 1 < len(tokens) and tokens[j + 1] == tokens[j] + 1:
            j += 1
        out.append(str(tokens[i]) if j == i else f"{tokens[i]}-{tokens[j]}")
        i = j + 1
    return " ".join(out)


def read_row(text: str) -> list[int]:
    """Tokens of a row that `spell` or `write_row` wrote."""
    tokens: list[int] = []
    for piece in text.split():
        if "*" in piece:
            token, count = piece.split("*")
            tokens += [int(token)] * int(count)
        elif "-" in piece:
            first, last = piece.split("-")
            tokens += range(int(first), int(last) + 1)
        else:
            tokens.append(int(piece))
    return tokens


def write_row(tokens: Sequence[int]) -> str:
    """Tokens as text: repetitions, and runs of three or more, as one piece."""
    pieces, at = [], 0
    while at < len(tokens):
        same = _run(tokens, at, 0)
        rising = _run(tokens, at, 1)
        if same > 1:
            pieces.append(f"{tokens[at]}*{same}")
        elif rising > 2:
            pieces.append(f"{tokens[at]}-{tokens[at] + rising - 1}")
        else:
            pieces.append(str(tokens[at]))
            rising = 1
        at += max(same, rising)
    return " ".join(pieces)


def _run(tokens: Sequence[int], start: int, step: int) -> int:
    end = start + 1
    while end < len(tokens) and tokens[end] == tokens[end - 1] + step:
        end += 1
    return end - start
