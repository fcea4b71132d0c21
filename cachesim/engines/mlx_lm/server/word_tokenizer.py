"""A tokenizer whose tokens are words: small vocabularies, prompts that a person can count.

    0 unknown   1 start mark   2 newline   3 end mark   4 system   5 user   6 assistant   7 tool

then, where the template thinks, 8 `<think>` and 9 `</think>`; then the words `w0`, `w1`, ... One
message costs five tokens and its words; the generation prompt three, or five where it thinks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from cachesim.engines.chat_templates import Message
from cachesim.errors import TokenError
from cachesim.units import Count, Token, Tokens

MARKS: Final = ("<unk>", "<|im_start|>", "\n", "<|im_end|>", "system", "user", "assistant", "tool")
THINK_MARKS: Final = ("<think>", "</think>")
START, NEWLINE, END = Token(1), Token(2), Token(3)
ROLES: Final = {name: Token(MARKS.index(name)) for name in ("system", "user", "assistant", "tool")}


def as_sent(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Every message as the client wrote it."""
    for message in messages:
        yield message.role, message.content


def without_thoughts(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Of each content only what follows its last closing think mark."""
    for message in messages:
        yield message.role, message.content.rpartition(THINK_MARKS[1])[2]


def with_thoughts_since_the_user(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """As `without_thoughts`, but assistant turns after the last user message keep theirs."""
    last_user = max((i for i, each in enumerate(messages) if each.role == "user"), default=-1)
    for index, (role, content) in enumerate(without_thoughts(messages)):
        if role == "assistant" and index > last_user:
            yield role, f"{THINK_MARKS[0]} \n {messages[index].content}"
        else:
            yield role, content


@dataclass(frozen=True, slots=True, kw_only=True)
class WordTemplate:
    """How a conversation is written down in words."""

    name: str
    show: Callable[[Sequence[Message]], Iterator[tuple[str, str]]]
    thinks: bool


WORD_TEMPLATES: Final = {
    each.name: each
    for each in (
        WordTemplate(name="chatml", show=as_sent, thinks=False),
        WordTemplate(name="think", show=without_thoughts, thinks=True),
        WordTemplate(name="think-tools", show=with_thoughts_since_the_user, thinks=True),
    )
}


class WordTokenizer:
    """Reads and writes words, and renders conversations with one of `WORD_TEMPLATES`."""

    def __init__(self, template: str = "chatml", vocabulary: int = 512) -> None:
        if template not in WORD_TEMPLATES:
            msg = f"there is no chat template {template!r}; there are {', '.join(WORD_TEMPLATES)}"
            raise TokenError(msg)
        self.template = WORD_TEMPLATES[template]
        marks = MARKS + THINK_MARKS * self.template.thinks
        words = tuple(f"w{index}" for index in range(vocabulary - len(marks)))
        self._texts = marks + words
        self._tokens = {text: Token(index) for index, text in enumerate(self._texts)}

    @property
    def eos(self) -> Token:
        """The end mark."""
        return END

    @property
    def think_start(self) -> Token | None:
        """`<think>`, where the template thinks."""
        return self._tokens.get(THINK_MARKS[0])

    @property
    def think_end(self) -> Token | None:
        """`</think>`, where the template thinks."""
        return self._tokens.get(THINK_MARKS[1])

    def encode(self, text: str) -> Tokens:
        """Words separated by blanks; a word that nobody knows is token 0."""
        return tuple(self._tokens.get(word, Token(0)) for word in text.split(" ") if word)

    def decode(self, tokens: Tokens) -> str:
        """The words of tokens, separated by blanks."""
        return " ".join(self._texts[token] for token in tokens)

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> Tokens:
        """Per message: start mark, role, newline, words, end mark, newline."""
        prompt = tuple(token for turn in self._turns(messages) for token in turn)
        if not add_generation_prompt:
            return prompt
        thinking = () if self.think_start is None else (self.think_start, NEWLINE)
        return (*prompt, START, ROLES["assistant"], NEWLINE, *thinking)

    def message_starts(self, messages: Sequence[Message]) -> tuple[tuple[str, Count], ...]:
        """Role and first token of every message in the rendered prompt."""
        ends = accumulate(len(turn) for turn in self._turns(messages))
        starts = (0, *ends)
        return tuple(
            (message.role, Count(at)) for message, at in zip(messages, starts, strict=False)
        )

    def _turns(self, messages: Sequence[Message]) -> Iterator[Tokens]:
        for role, content in self.template.show(messages):
            if role not in ROLES:
                msg = f"the word template knows no role {role!r}; write one of {', '.join(ROLES)}"
                raise TokenError(msg)
            yield (START, ROLES[role], NEWLINE, *self.encode(content), END, NEWLINE)
