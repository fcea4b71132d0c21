"""What a server can do beside answering: asked of the engine, which may know none of it."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from cachesim.engines.base import Reply, Ticket
from cachesim.engines.chat_templates import Message
from cachesim.units import Tokens


@runtime_checkable
class SlotActions(Protocol):
    """A server that can save, restore and erase a slot; each action is queued like a request."""

    def slot_save(self, slot: int, name: str) -> Ticket:
        """Write a slot to the store."""
        ...

    def slot_restore(self, slot: int, name: str) -> Ticket:
        """Fill a slot from the store."""
        ...

    def slot_erase(self, slot: int) -> Ticket:
        """Empty a slot."""
        ...


@runtime_checkable
class Adapting(Protocol):
    """A server whose own set of adapters can be replaced while it runs."""

    def set_lora(self, given: object) -> Ticket:
        """Replace it."""
        ...


@runtime_checkable
class Restarting(Protocol):
    """A server that loses what it holds, but for slot files, when it restarts or sleeps."""

    def restart(self) -> None:
        """End, and start again with the same flags."""
        ...

    def sleep(self) -> None:
        """Give all up until the next request."""
        ...


@runtime_checkable
class ChatRendering(Protocol):
    """A server whose HTTP side makes of a chat what no template alone does."""

    def render_chat(self, messages: Sequence[Message]) -> tuple[Tokens, Sequence[tuple[str, int]]]:
        """The prompt, and role and first token of every message."""
        ...


@runtime_checkable
class SeveralReplies(Protocol):
    """A server that can give several completions of one prompt."""

    def replies(self, ticket: Ticket) -> tuple[Reply, ...]:
        """All of them, the one that read the prompt first."""
        ...
