"""The interface of tokenizers for requests of messages."""

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Final, Protocol, Self, runtime_checkable

from cachesim.errors import OptionError, TemplateError, TokenError
from cachesim.units import Count, Token, Tokens

# Chat templates, which render a list of messages as one text.
#
# Three cover the reported misses: the plain one, one that drops the reasoning of earlier turns (the
# most frequent cause of a miss, across all engines), and one that refuses a conversation without a
# user message (which defeats servers that render a system message alone to find its end).

TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"
THINK_START: Final = "<think>"
THINK_END: Final = "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A turn of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The chat template of a family of models."""

    name: str
    about: str
    show: Callable[[Sequence[Message]], tuple[tuple[str, str], ...]]
    generation_prompt: str
    thinks: bool = False


def turn(role: str, content: str) -> str:
    """A message between its special tokens."""
    return f"{TURN_START}{role}\n{content}{TURN_END}\n"


def without_reasoning(content: str) -> str:
    """The text after the closing think token, or all of it without one."""
    return content.rpartition(THINK_END)[2].lstrip("\n")


def show_as_written(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    """Every message as the client sent it."""
    return tuple((message.role, turn(message.role, message.content)) for message in messages)


def show_without_old_reasoning(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    """Assistant messages before the last user message lose their reasoning (as Qwen 3 does)."""
    user_turns = [index for index, message in enumerate(messages) if message.role == "user"]
    last_user = user_turns[-1] if user_turns else -1
    return tuple(
        (message.role, turn(message.role, without_reasoning(message.content)))
        if message.role == "assistant" and index < last_user
        else (message.role, turn(message.role, message.content))
        for index, message in enumerate(messages)
    )


def show_if_a_user_speaks(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    """The messages as written; at least one user message is required (as by Qwen 3.5)."""
    if not any(message.role == "user" for message in messages):
        msg = "the chat template 'needs-user' found no user message; add one with role = \"user\""
        raise TemplateError(msg)
    return show_as_written(messages)


PLAIN_PROMPT: Final = f"{TURN_START}assistant\n"

TEMPLATES: Final = {
    template.name: template
    for template in (
        Template(
            name="chatml",
            about="every message between its marks, as the client sent it",
            show=show_as_written,
            generation_prompt=PLAIN_PROMPT,
        ),
        Template(
            name="strip-reasoning",
            about="drops the reasoning of assistant turns before the last user message",
            show=show_without_old_reasoning,
            generation_prompt=f"{PLAIN_PROMPT}{THINK_START}\n",
            thinks=True,
        ),
        Template(
            name="needs-user",
            about="refuses a conversation without a user message",
            show=show_if_a_user_speaks,
            generation_prompt=PLAIN_PROMPT,
        ),
    )
}


@runtime_checkable
class ChatTokenizer(Protocol):
    """A tokenizer with a chat template; token texts are unique, so equal texts have equal ids."""

    @property
    def eos(self) -> Token:
        """The token that ends a turn and stops the generation."""
        ...

    @property
    def think_start(self) -> Token | None:
        """The token that opens a reasoning part, or None."""
        ...

    @property
    def think_end(self) -> Token | None:
        """The token that closes a reasoning part, or None."""
        ...

    def encode(self, text: str) -> Tokens:
        """Tokenize a text; special tokens are recognised by their text."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """The text of tokens."""
        ...

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> Tokens:
        """The prompt of a conversation."""
        ...

    def message_starts(self, messages: Sequence[Message]) -> tuple[tuple[str, Count], ...]:
        """Role and start of every message in the rendered prompt, if known."""
        ...


@runtime_checkable
class TemplateArguments(Protocol):
    """A tokenizer whose template takes tools and arguments of the request."""

    def with_arguments(self, tools: Sequence[str], arguments: Mapping[str, Any]) -> Self:
        """A copy that renders `tools` before the messages, with arguments of the template."""
        ...


@runtime_checkable
class ThinkMarks(Protocol):
    """A tokenizer with an opening think mark of one or several tokens."""

    @property
    def think_start_tokens(self) -> Tokens:
        """The tokens that open a reasoning part; empty if the template has none."""
        ...


def thinks_on(arguments: Mapping[str, Any]) -> bool:
    """The value of `enable_thinking`, True by default; other arguments are refused."""
    for name, value in arguments.items():
        if name != "enable_thinking" or not isinstance(value, bool):
            msg = f"no chat template here reads {name} = {value!r}; write enable_thinking = false"
            raise OptionError(msg)
    return bool(arguments.get("enable_thinking", True))


# A byte-level tokenizer of 512 tokens, one text per token.
#
#     0 <unk>   1 <s>   2 </s>            3..258    the 256 bytes
#     259 <|im_start|>  260 <|im_end|>    261..264  system, user, assistant, newline
#     265..511  words of no meaning, whose texts are "[265]" to "[511]"
#
# Templates with reasoning use the last two words: 510 is `<think>`, 511 `</think>`. Other text is
# encoded as UTF-8 bytes. Token texts are unique except for the newline, whose byte (13) is never
# produced: so equal texts are equal tokens.

VOCABULARY: Final = 512
FIRST_BYTE: Final = 3
BYTES: Final = 256
FILL_PREFIX, FILL_SUFFIX, FILL_MIDDLE = (Token(token) for token in (4, 5, 6))
"""Bytes as the marks of a gap to fill: before its prefix, before its suffix, and at the end."""

END_OF_TURN: Final = Token(260)
FIRST_WORD: Final = Token(265)
THINK_MARKS: Final = (Token(510), Token(511))


# Every server and every drawn message has a tokenizer: what they share is made once.


@lru_cache(maxsize=16)
def _texts(words: tuple[tuple[int, str], ...], *, thinks: bool) -> dict[Token, str]:
    marks = (TURN_START, TURN_END, "system", "user", "assistant", "\n")
    texts = {Token(index): text for index, text in enumerate(("<unk>", "<s>", "</s>"))}
    texts |= {Token(FIRST_BYTE + BYTES + index): text for index, text in enumerate(marks)}
    texts |= {Token(index): f"[{index}]" for index in range(FIRST_WORD, VOCABULARY)}
    texts |= {Token(index): text for index, text in words}
    if thinks:
        texts |= dict(zip(THINK_MARKS, (THINK_START, THINK_END), strict=True))
    return texts


@lru_cache(maxsize=16)
def _any_of(texts: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")


class ByteTokenizer:
    """Tokenizer of the 512 tokens, with one chat template."""

    def __init__(
        self, template: str | Template = "chatml", words: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """`words`: texts of tokens in place of their numbers."""
        if isinstance(template, str) and template not in TEMPLATES:
            msg = f"there is no chat template {template!r}; there are {', '.join(TEMPLATES)}"
            raise TokenError(msg)
        self.template = TEMPLATES[template] if isinstance(template, str) else template
        self.words = dict(words)  # a mapping proxy cannot be copied with its server
        self.tools: tuple[str, ...] = ()
        self.thinks = True  # the generation prompt leaves the reasoning part open

    @property
    def eos(self) -> Token:
        return END_OF_TURN

    @property
    def think_start(self) -> Token | None:
        return THINK_MARKS[0] if self.template.thinks else None

    @property
    def think_end(self) -> Token | None:
        return THINK_MARKS[1] if self.template.thinks else None

    @cached_property
    def texts(self) -> dict[Token, str]:
        """The texts of all tokens except bytes."""
        return _texts(tuple(self.words.items()), thinks=self.template.thinks)

    @cached_property
    def _tokens(self) -> dict[str, Token]:
        return {text: token for token, text in self.texts.items()}

    @cached_property
    def _word(self) -> re.Pattern[str]:
        return _any_of(tuple(self._tokens))

    def encode(self, text: str) -> Tokens:
        """Tokenize a text: longest special texts first, bytes for the rest."""
        tokens: list[Token] = []
        for piece in self._word.split(text):
            token = self._tokens.get(piece)
            if token is not None:
                tokens.append(token)
            else:
                raw = piece.encode("utf-8", "surrogateescape")
                tokens.extend(Token(FIRST_BYTE + byte) for byte in raw)
        return tuple(tokens)

    def decode(self, tokens: Sequence[Token]) -> str:
        """The text of tokens; invalid UTF-8 survives a round trip."""
        return b"".join(map(self._raw, tokens)).decode("utf-8", "surrogateescape")

    def _raw(self, token: Token) -> bytes:
        if token in self.texts:
            return self.texts[token].encode()
        if FIRST_BYTE <= token < FIRST_BYTE + BYTES:
            return bytes([token - FIRST_BYTE])
        raise TokenError(f"token {token} is outside the vocabulary of {VOCABULARY}")

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> Tokens:
        text = self._tools_turn + "".join(shown for _, shown in self.template.show(messages))
        prompt = self.template.generation_prompt
        if self.template.thinks and not self.thinks:
            prompt += f"{THINK_END}\n"
        return self.encode(text + prompt * add_generation_prompt)

    def with_arguments(self, tools: Sequence[str], arguments: Mapping[str, Any]) -> Self:
        bound = copy(self)
        bound.tools, bound.thinks = tuple(tools), thinks_on(arguments)
        return bound

    @property
    def _tools_turn(self) -> str:
        return turn("system", "\n".join(self.tools)) if self.tools else ""

    def message_starts(self, messages: Sequence[Message]) -> tuple[tuple[str, Count], ...]:
        starts: list[tuple[str, Count]] = []
        at = len(self.encode(self._tools_turn))
        for role, shown in self.template.show(messages):
            starts.append((role, Count(at)))
            at += len(self.encode(shown))
        return tuple(starts)
