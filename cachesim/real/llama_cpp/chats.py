r"""Chats in the toy vocabulary: rendered as the template of the GGUF files renders them.

<|im_start|> role \n content <|im_end|> \n   ...   <|im_start|> assistant \n
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, Final

from cachesim.errors import TokenError
from cachesim.real.llama_cpp.vocabulary import word
from cachesim.units import Token, Tokens

START, END, NEWLINE = Token(259), Token(260), Token(264)
ROLES: Final[Mapping[str, Token]] = {
    "system": Token(261),
    "user": Token(262),
    "assistant": Token(263),
}
OPENING: Final = (START, ROLES["assistant"], NEWLINE)
"""What asks for a reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message."""

    role: str
    content: Tokens


def render(chat: Sequence[Said]) -> Tokens:
    """The prompt of a chat."""
    messages = ((START, ROLES[each.role], NEWLINE, *each.content, END, NEWLINE) for each in chat)
    return (*(token for message in messages for token in message), *OPENING)


def chat_of(prompt: Tokens) -> tuple[Said, ...]:
    """The chat that a prompt is the rendering of."""
    names = {token: role for role, token in ROLES.items()}
    starts = [at for at, token in enumerate(prompt) if token == START]
    chat = tuple(
        Said(role=names.get(prompt[start + 1], ""), content=prompt[start + 3 : end - 2])
        for start, end in pairwise(starts)
    )
    if any(not each.role for each in chat) or render(chat) != prompt:
        msg = "this prompt is not the rendering of a chat"
        raise TokenError(msg)
    return chat


def starts_of(prompt: Tokens) -> list[dict[str, Any]]:
    """Role and first token of every message, as the simulator takes `message_spans`."""
    starts, at = [], 0
    for each in chat_of(prompt):
        starts.append({"role": each.role, "start": at})
        at += len(each.content) + 5
    return starts


def text_of(tokens: Sequence[int]) -> str:
    """The text of tokens, which the server reads as the same tokens again."""
    return "".join(word(token) for token in tokens)


class ChatTree:
    """The chats so far, and ways to go on."""

    def __init__(self, rng: Random, words: int, longest: int) -> None:
        self._rng = rng
        self._words = words
        self._longest = longest
        self._turns: list[tuple[tuple[Said, ...], Tokens]] = []  # chat and reply, oldest first

    def learn(self, prompt: Tokens, reply: Tokens) -> None:
        """Remember what was answered."""
        self._turns.append((chat_of(prompt), reply))

    def prompt(self) -> Tokens:
        """The next chat, rendered."""
        way = self._rng.choice(
            (self._new, self._on, self._on, self._on, self._again, self._edited, self._stripped)
        )
        prompt = render(way() if self._turns else self._new())
        return prompt if len(prompt) < self._longest else render(self._new())

    def _new(self) -> tuple[Said, ...]:
        system = (self._says("system"),) if self._rng.random() < 0.5 else ()
        return (*system, self._says("user"))

    def _on(self) -> tuple[Said, ...]:
        chat, reply = self._turn()
        return (*chat, Said(role="assistant", content=reply), self._says("user"))

    def _again(self) -> tuple[Said, ...]:
        return self._turn()[0]

    def _edited(self) -> tuple[Said, ...]:
        chat = self._turn()[0]
        last = chat[-1].content
        kept = last[: self._rng.randint(0, len(last))]
        return (*chat[:-1], Said(role="user", content=kept + self._says("user").content))

    def _stripped(self) -> tuple[Said, ...]:
        """A client that drops the reasoning: only the end of the reply comes back."""
        chat, reply = self._turn()
        answer = Said(role="assistant", content=reply[len(reply) // 2 :])
        return (*chat, answer, self._says("user"))

    def _turn(self) -> tuple[tuple[Said, ...], Tokens]:
        return self._turns[-1] if self._rng.random() < 0.6 else self._rng.choice(self._turns)

    def _says(self, role: str) -> Said:
        count = min(self._rng.choice((1, 3, 10, 30, 70, 150)), self._longest // 4)
        words = (Token(265 + self._rng.randrange(self._words)) for _ in range(count))
        return Said(role=role, content=tuple(words))
