"""Conversations as clients lead them: they grow, are edited, shortened, forked and repeated."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from cachesim.prove.llama_cpp.gguf import text_of

FIRST_WORD, PAST_LAST_WORD = 270, 512
"""The ids of the toy vocabulary whose texts are plain words."""

WORD: Final = re.compile(r"\[\d+\]")

Json = dict[str, Any]


@dataclass(slots=True)
class Talk:
    """One conversation: its system prompt and its messages so far."""

    system: str
    messages: list[Json] = field(default_factory=list)
    tools: list[Json] = field(default_factory=list)

    def all_messages(self) -> list[Json]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages]

    @property
    def text(self) -> str:
        """The same without a chat template, for clients that write their prompt themselves."""
        return self.system + "".join(message["content"] for message in self.messages)

    @property
    def words(self) -> int:
        return sum(len(WORD.findall(message["content"])) + 5 for message in self.all_messages())


class Talker:
    """A client's conversations, and the next turn of one of them."""

    def __init__(self, rng: Random, longest: int) -> None:
        self._rng = rng
        self._longest = longest
        self._systems = [self.words(0.3) for _ in range(rng.choice((1, 1, 2)))] + [""]
        self.talks: list[Talk] = []

    def words(self, share: float) -> str:
        """A text of up to this share of the longest prompt."""
        most = max(2, int(self._longest * share))
        count = self._rng.choice((1, 3, 12, 40, 90, most, self._rng.randint(1, most)))
        draw = self._rng.randrange
        return text_of([draw(FIRST_WORD, PAST_LAST_WORD) for _ in range(min(count, most))])

    def next(self) -> Talk:
        """A conversation with its next turn; its reply is learnt by `answered`."""
        rng = self._rng
        if not self.talks or rng.random() < 0.2:
            talk = Talk(rng.choice(self._systems))
            self.talks.append(talk)
            self._ask(talk)
            return talk
        talk = self.talks[-1] if rng.random() < 0.6 else rng.choice(self.talks)
        turns: list[tuple[Callable[[Talk], None], int]] = [
            (self._ask, 8),
            (self._again, 2),
            (self._edit_last, 2),
            (self._drop_first, 1),
            (self._drop_reply, 1),
            (self._new_date, 1),
        ]
        turn = rng.choices([each for each, _ in turns], [weight for _, weight in turns])[0]
        if rng.random() < 0.15:  # the old one is gone on with later
            talk = Talk(talk.system, [dict(message) for message in talk.messages])
            self.talks.append(talk)
        turn(talk)
        while talk.words > self._longest and len(talk.messages) > 1:
            del talk.messages[0]
        return talk

    def answered(self, talk: Talk, reply: str) -> None:
        """Add a reply; a client that left early keeps what it had read."""
        if reply and talk.messages and talk.messages[-1]["role"] == "user":
            talk.messages.append({"role": "assistant", "content": reply})

    def _ask(self, talk: Talk) -> None:
        talk.messages.append({"role": "user", "content": self.words(0.2)})

    def _again(self, talk: Talk) -> None:
        while len(talk.messages) > 1 and talk.messages[-1]["role"] == "assistant":
            del talk.messages[-1]

    def _edit_last(self, talk: Talk) -> None:
        self._again(talk)
        words = WORD.findall(talk.messages[-1]["content"])
        kept = "".join(words[: self._rng.randint(0, len(words))])
        talk.messages[-1]["content"] = kept + self.words(0.1)

    def _drop_first(self, talk: Talk) -> None:
        if len(talk.messages) > 2:
            del talk.messages[:2]
        self._ask(talk)

    def _drop_reply(self, talk: Talk) -> None:
        replies = [at for at, message in enumerate(talk.messages) if message["role"] == "assistant"]
        if replies:
            words = WORD.findall(talk.messages[replies[-1]]["content"])
            talk.messages[replies[-1]]["content"] = "".join(words[len(words) // 2 :])
        self._ask(talk)

    def _new_date(self, talk: Talk) -> None:
        """A system prompt with the time in it."""
        words = WORD.findall(talk.system)
        at = self._rng.randint(0, len(words)) if words else 0
        talk.system = "".join((*words[:at], self.words(0.01), *words[at + 1 :]))
        self._ask(talk)


class Agents:
    """Conversations over a long file each: they go on, and the file changes somewhere.

    With `tools` most of them call these: a reply gets a call, and its result follows.
    """

    def __init__(self, rng: Random, longest: int, *, tools: bool = False) -> None:
        self._rng, self._longest = rng, longest
        system = self.words(100, 800)
        self.talks = [
            Talk(system if rng.random() < 0.7 else self.words(50, 400))
            for _ in range(rng.choice((1, 2, 3)))
        ]
        for talk in self.talks if tools else ():
            talk.tools = [_tool(name) for name in TOOLS[: rng.randint(0, len(TOOLS))]]
        self._files = [self.words(longest // 4, longest // 2) for _ in self.talks]
        self._changes_at = [rng.uniform(0.2, 0.95) for _ in self.talks]

    def words(self, least: int, most: int) -> str:
        """A text of so many tokens."""
        draw = self._rng.randrange
        count = self._rng.randint(least, most)
        return text_of([draw(FIRST_WORD, PAST_LAST_WORD) for _ in range(count)])

    def next(self) -> Talk:
        """A conversation with its next turn."""
        number = self._rng.randrange(len(self.talks))
        talk = self.talks[number]
        words = WORD.findall(self._files[number])
        if talk.messages and self._rng.random() < 0.45:
            kept = int(len(words) * self._changes_at[number])
            rest = len(words) - kept
            self._files[number] = "".join(words[:kept]) + self.words(rest, rest)
            talk.messages[0] = {"role": "user", "content": self._files[number]}
            if self._rng.random() < 0.5:
                del talk.messages[1:]
        elif not talk.messages:
            talk.messages.append({"role": "user", "content": self._files[number]})
        if talk.messages[-1]["role"] == "assistant":
            role = "user"
            if talk.tools and self._rng.random() < 0.7:
                role = "tool"
                talk.messages[-1]["tool_calls"] = [_call(talk.tools[-1], len(talk.messages))]
            talk.messages.append({"role": role, "content": self.words(20, 300)})
            if role == "tool":
                talk.messages[-1]["tool_call_id"] = talk.messages[-2]["tool_calls"][0]["id"]
        while talk.words > self._longest:
            del talk.messages[1:3]
        return talk

    def answered(self, talk: Talk, reply: str) -> None:
        """Add a reply."""
        if reply and talk.messages[-1]["role"] in {"user", "tool"}:
            talk.messages.append({"role": "assistant", "content": reply})


TOOLS: Final = ("read_file", "write_file", "run")


def _tool(name: str) -> Json:
    shape = {"type": "object", "properties": {"path": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": shape}}


def _call(tool: Json, number: int) -> Json:
    given = {"name": tool["function"]["name"], "arguments": '{"path": "a.py"}'}
    return {"id": f"call-{number}", "type": "function", "function": given}
