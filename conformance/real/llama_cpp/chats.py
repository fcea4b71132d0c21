"""Chats in the toy vocabulary, as clients send them: extended by the replies."""

from random import Random
from typing import Final, TypeAlias

from cachesim.engines.chat import FIRST_WORD
from cachesim.prove.llama_cpp.gguf import text_of
from cachesim.scenario.format import Turn
from cachesim.units import Tokens
from conformance.real.prompts import Message, Row

Chat: TypeAlias = tuple[Message, ...]

SPEAKERS: Final = ("user",) * 12 + ("tool", "function", "developer", "ipython")
"""Roles of later messages; no template knows the last ones."""

INSTRUCTORS: Final = ("system", "system", "developer")
"""Roles of the first message, other than the user's."""

NEWLINE: Final = 264

MARKS: Final = 5
"""Tokens that the template puts around a message; roles of its own cost some more."""


def as_messages(chat: Chat) -> tuple[Turn, ...]:
    """A chat as a client sends it."""
    return tuple(Turn(role=each.role, content=text_of(each.tokens)) for each in chat)


class ChatTree:
    """The chats so far, and ways to continue them.

    Where they `share` instructions, new questions are asked under those of earlier chats.
    """

    def __init__(
        self, rng: Random, words: int, longest: int, *, share: bool = False, lines: bool = False
    ) -> None:
        self._rng = rng
        self._share = share
        self._words = words
        self._longest = longest
        self._lines = lines  # some messages have several
        self._sent: dict[tuple[Turn, ...], Chat] = {}
        self._turns: list[tuple[Chat, Tokens]] = []  # chat and reply, oldest first

    def learn(self, messages: tuple[Turn, ...], reply: Tokens) -> None:
        self._turns.append((self._sent[messages], reply))

    def next(self) -> tuple[Turn, ...]:
        ways = (self._new, self._on, self._on, self._on, self._again, self._edited, self._stripped)
        questions = (self._question,) * 2 if self._share else ()
        way = self._rng.choice((*ways, self._continued, *questions))
        chat = way() if self._turns else self._new()
        length = MARKS + sum(len(each.tokens) + MARKS + len(each.role) for each in chat)
        return self._noted(chat if length < self._longest else self._new())

    def refused(self) -> tuple[Turn, ...]:
        """A chat that ends with two messages of the assistant."""
        answer = Message("assistant", self._message("assistant").tokens[:5])
        return self._noted((*self._new(), answer, answer))

    def _noted(self, chat: Chat) -> tuple[Turn, ...]:
        messages = as_messages(chat)
        self._sent[messages] = chat
        return messages

    def _new(self) -> Chat:
        role = self._rng.choice(INSTRUCTORS)
        return (
            *((self._message(role),) if self._rng.random() < 0.5 else ()),
            self._message("user"),
        )

    def _question(self) -> Chat:
        """A new question under the instructions of an earlier chat, as applications ask it."""
        first = self._turn()[0][0]
        return (*((first,) if first.role in INSTRUCTORS else ()), self._message("user"))

    def _on(self) -> Chat:
        chat, reply = self._answered()
        return (*chat, Message("assistant", reply), self._message(self._speaker()))

    def _again(self) -> Chat:
        return self._turn()[0]

    def _edited(self) -> Chat:
        chat = self._turn()[0]
        last = chat[-1]
        kept = last.tokens[: self._rng.randint(0, len(last.tokens))]
        return (*chat[:-1], Message(last.role, kept + self._message("user").tokens))

    def _stripped(self) -> Chat:
        """A client that drops the reasoning: only the end of the reply is sent back."""
        chat, reply = self._answered()
        answer = Message("assistant", reply[len(reply) // 2 :])
        return (*chat, answer, self._message(self._speaker()))

    def _continued(self) -> Chat:
        """A client that has the server continue its reply, or an empty one."""
        chat, reply = self._answered()
        return (*chat, Message("assistant", reply[: self._rng.randint(0, len(reply))]))

    def _answered(self) -> tuple[Chat, Row]:
        """A turn; a reply that continues the last message is joined with it."""
        chat, reply = self._turn()
        if chat[-1].role == "assistant":
            return chat[:-1], chat[-1].tokens + reply
        return chat, reply

    def _turn(self) -> tuple[Chat, Tokens]:
        return self._turns[-1] if self._rng.random() < 0.6 else self._rng.choice(self._turns)

    def _speaker(self) -> str:
        return self._rng.choice(SPEAKERS)

    def _message(self, role: str) -> Message:
        count = min(self._rng.choice((1, 3, 10, 30, 70, 150)), self._longest // 4)
        content: Row = tuple(FIRST_WORD + self._rng.randrange(self._words) for _ in range(count))
        if self._lines and count > 1 and self._rng.random() < 0.15:
            content = (*content[: count // 2], NEWLINE, *content[count // 2 :])
        return Message(role, content)
