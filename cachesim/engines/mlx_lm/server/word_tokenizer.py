"""A tokenizer whose tokens are words: small vocabularies, prompts that can be counted by hand.

    0 unknown   1 start mark   2 newline   3 end mark   4 system   5 user   6 assistant   7 tool

then, in templates with reasoning, 8 `<think>` and 9 `</think>`, or, with the marks of Gemma 4,
8 `<|channel>`, 9 `<channel|>` and 10 `thought`; then the words `w0`, `w1`, ... A message has five
tokens and its words; the generation prompt three, or five with reasoning.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Self

from cachesim.engines.chat import Message, thinks_on
from cachesim.errors import TokenError
from cachesim.units import Count, Token, Tokens

MARKS: Final = ("<unk>", "<|im_start|>", "\n", "<|im_end|>", "system", "user", "assistant", "tool")
THINK_MARKS: Final = ("<think>", "</think>")
CHANNEL_MARKS: Final = ("<|channel>", "<channel|>", "thought")
START, NEWLINE, END = Token(1), Token(2), Token(3)
ROLES: Final = {name: Token(MARKS.index(name)) for name in ("system", "user", "assistant", "tool")}


def as_sent(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Every message as the client wrote it."""
    for message in messages:
        yield message.role, message.content


def without_thoughts(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """The text after the last closing think mark of each content."""
    for message in messages:
        yield message.role, message.content.rpartition(THINK_MARKS[1])[2]


def without_channels(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """As `without_thoughts`, with Gemma 4's marks."""
    for message in messages:
        yield message.role, message.content.rpartition(CHANNEL_MARKS[1])[2]


def with_thoughts_since_the_user(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """As `without_thoughts`, but assistant turns after the last user message are complete."""
    last_user = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
    for index, (role, content) in enumerate(without_thoughts(messages)):
        if role == "assistant" and index > last_user:
            yield role, f"{THINK_MARKS[0]} \n {messages[index].content}"
        else:
            yield role, content


@dataclass(frozen=True, slots=True, kw_only=True)
class WordTemplate:
    """Chat template over words."""

    name: str
    show: Callable[[Sequence[Message]], Iterator[tuple[str, str]]]
    marks: tuple[
        str, ...
    ] = ()  # that open and close a reasoning part; a third belongs to the first

    @property
    def thinks(self) -> bool:
        """True if the template has reasoning parts."""
        return bool(self.marks)


WORD_TEMPLATES: Final = {
    word_template.name: word_template
    for word_template in (
        WordTemplate(name="chatml", show=as_sent),
        WordTemplate(name="think", show=without_thoughts, marks=THINK_MARKS),
        WordTemplate(name="think-tools", show=with_thoughts_since_the_user, marks=THINK_MARKS),
        WordTemplate(name="channel", show=without_channels, marks=CHANNEL_MARKS),
    )
}


class WordTokenizer:
    """Tokenizer of words, with one of `WORD_TEMPLATES`."""

    def __init__(self, template: str = "chatml", vocabulary: int = 512) -> None:
        if template not in WORD_TEMPLATES:
            msg = f"there is no chat template {template!r}; there are {', '.join(WORD_TEMPLATES)}"
            raise TokenError(msg)
        self.template = WORD_TEMPLATES[template]
        self.tools: tuple[str, ...] = ()
        self.thinks = True  # the generation prompt leaves the reasoning part open
        marks = MARKS + self.template.marks
        words = tuple(f"w{index}" for index in range(vocabulary - len(marks)))
        self._texts = marks + words
        self._tokens = {text: Token(index) for index, text in enumerate(self._texts)}

    @property
    def eos(self) -> Token:
        return END

    @property
    def think_start(self) -> Token | None:
        """`<think>`, if the opening mark is one token."""
        return self.think_start_tokens[0] if len(self.think_start_tokens) == 1 else None

    @property
    def think_start_tokens(self) -> Tokens:
        """`<think>` or `<|channel>thought`, if the template has reasoning."""
        opening = self.template.marks[:1] + self.template.marks[2:]
        return tuple(self._tokens[text] for text in opening)

    @property
    def think_end(self) -> Token | None:
        """`</think>` or `<channel|>`, if the template has reasoning."""
        return self._tokens[self.template.marks[1]] if self.template.marks else None

    def with_arguments(self, tools: Sequence[str], arguments: Mapping[str, Any]) -> Self:
        bound = copy(self)
        bound.tools, bound.thinks = tuple(tools), thinks_on(arguments)
        return bound

    def encode(self, text: str) -> Tokens:
        """The tokens of words separated by spaces; 0 for an unknown word."""
        return tuple(self._tokens.get(word, Token(0)) for word in text.split(" ") if word)

    def decode(self, tokens: Tokens) -> str:
        """The words of tokens, separated by spaces."""
        return " ".join(self._texts[token] for token in tokens)

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> Tokens:
        """Start mark, role, newline, words, end mark and newline of each message."""
        prompt = self._tools_turn + tuple(token for turn in self._turns(messages) for token in turn)
        if not add_generation_prompt:
            return prompt
        thinking: Tokens = ()
        if self.think_end is not None:
            thinking = (*self.think_start_tokens, NEWLINE)
            thinking += () if self.thinks else (self.think_end, NEWLINE)
        return (*prompt, START, ROLES["assistant"], NEWLINE, *thinking)

    @property
    def _tools_turn(self) -> Tokens:
        if not self.tools:
            return ()
        return (START, ROLES["system"], NEWLINE, *self.encode(" ".join(self.tools)), END, NEWLINE)

    def message_starts(self, messages: Sequence[Message]) -> tuple[tuple[str, Count], ...]:
        ends = accumulate(len(turn) for turn in self._turns(messages))
        starts = (len(self._tools_turn), *(len(self._tools_turn) + end for end in ends))
        return tuple(
            (message.role, Count(at)) for message, at in zip(messages, starts, strict=False)
        )

    def _turns(self, messages: Sequence[Message]) -> Iterator[Tokens]:
        for role, content in self.template.show(messages):
            if role not in ROLES:
                msg = f"the word template knows no role {role!r}; write one of {', '.join(ROLES)}"
                raise TokenError(msg)
            yield (START, ROLES[role], NEWLINE, *self.encode(content), END, NEWLINE)
