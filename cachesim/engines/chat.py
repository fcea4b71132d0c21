"""The interface of tokenizers for requests of messages."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self, runtime_checkable

from cachesim.engines.chat_templates import Message
from cachesim.errors import OptionError
from cachesim.units import Count, Token, Tokens


@runtime_checkable
class ChatTokenizer(Protocol):
    """A tokenizer with a chat template; token texts are unique, so texts and ids match alike."""

    @property
    def eos(self) -> Token:
        """The token that ends a turn; a server that samples it stops there."""
        ...

    @property
    def think_start(self) -> Token | None:
        """The mark that opens a reasoning part, if the template knows one."""
        ...

    @property
    def think_end(self) -> Token | None:
        """The mark that closes a reasoning part."""
        ...

    def encode(self, text: str) -> Tokens:
        """Read a text; special tokens are recognised by their text."""
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
        """Role and first token of every message in the rendered prompt, where they are known."""
        ...


@runtime_checkable
class TemplateArguments(Protocol):
    """A tokenizer whose template reads more of a request than its messages."""

    def with_arguments(self, tools: Sequence[str], arguments: Mapping[str, Any]) -> Self:
        """The prompt with tools, which stand before the messages, and arguments of the template."""
        ...


@runtime_checkable
class LongMarks(Protocol):
    """A tokenizer whose thinking mark may be several tokens."""

    @property
    def think_start_tokens(self) -> Tokens:
        """The tokens that open a reasoning part, none if the template does not think."""
        ...


def thinks_on(arguments: Mapping[str, Any]) -> bool:
    """True if a reasoning part is left open; arguments that no template reads are refused."""
    for name, value in arguments.items():
        if name != "enable_thinking" or not isinstance(value, bool):
            msg = f"no chat template here reads {name} = {value!r}; write enable_thinking = false"
            raise OptionError(msg)
    return bool(arguments.get("enable_thinking", True))
