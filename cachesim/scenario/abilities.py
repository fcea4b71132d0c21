"""What a server can do beside answering: asked of the engine, which may know none of it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

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

    def render_chat(
        self, messages: Sequence[Message], options: Mapping[str, Any]
    ) -> tuple[Tokens, Sequence[tuple[str, int]]]:
        """The prompt of a request with these options; role and first token of every message."""
        ...


@runtime_checkable
class InfillRendering(Protocol):
    """A server that makes a prompt of what stands before a gap and behind it."""

    def render_infill(self, prefix: Tokens, suffix: Tokens) -> tuple[Tokens, int]:
        """The prompt, and where the suffix's mark stands in it."""
        ...


@runtime_checkable
class Reading(Protocol):
    """A server that shows how many tokens of a request are in its slot."""

    def tokens_held_for(self, ticket: Ticket) -> int:
        """The tokens that the request's slot holds so far."""
        ...


@runtime_checkable
class SeveralReplies(Protocol):
    """A server that can give several completions of one prompt."""

    def replies(self, ticket: Ticket) -> tuple[Reply, ...]:
        """All of them, the one that read the prompt first."""
        ...
