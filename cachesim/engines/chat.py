"""What an engine needs of a tokenizer when requests come as messages."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from cachesim.engines.chat_templates import Message
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
