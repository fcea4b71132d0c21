"""Slot save, restore and erase: the companion is part of none of them."""

from typing import TYPE_CHECKING

from cachesim.engines.base import ByteStore, Reply, Ticket
from cachesim.engines.ik_llama import events
from cachesim.engines.ik_llama.slot import Slot
from cachesim.engines.ik_llama.slot_file import SavedSlot, decode, encode
from cachesim.errors import BlobError, OptionError
from cachesim.units import SeqId

if TYPE_CHECKING:
    from cachesim.engines.ik_llama.server import IkLlama


class SlotActions:
    """What `POST /slots/{id}?action=...` does to an idle slot (`process_single_task`)."""

    def __init__(self, server: "IkLlama", store: ByteStore | None) -> None:
        self._server = server
        self._store = store

    def save(self, slot: Slot, name: str, ticket: Ticket) -> Reply:
        """Write tokens, state and checkpoints."""
        saved = SavedSlot(
            tokens=tuple(slot.cache_tokens),
            state=self._server.primary.save(SeqId(slot.id), partial=False),
            checkpoints=tuple(slot.checkpoints),
        )
        self._place().put(name, encode(saved))
        self._note("save", slot, name, ticket)
        return _done(slot)

    def restore(self, slot: Slot, name: str, ticket: Ticket) -> Reply:
        """Read them back; a companion keeps whatever it held."""
        data = self._place().get(name)
        if data is None:
            return _done(slot, error="invalid_request_error", message=f"no slot file {name!r}")
        try:
            saved = decode(data)
            has_room = self._server.primary.restore(SeqId(slot.id), saved.state)
        except BlobError as error:
            return _done(slot, error="invalid_request_error", message=str(error))
        if not has_room:
            return _done(slot, error="invalid_request_error", message="no room for the state")
        slot.cache_tokens = list(saved.tokens)
        slot.checkpoints[:] = saved.checkpoints
        self._note("restore", slot, name, ticket)
        return _done(slot)

    def erase(self, slot: Slot, ticket: Ticket) -> Reply:
        """Forget the slot's sequence and tokens."""
        self._server.primary.cells.seq_rm(SeqId(slot.id), -1, -1)
        slot.cache_tokens.clear()
        slot.checkpoints.clear()
        self._note("erase", slot, "", ticket)
        return _done(slot)

    def _place(self) -> ByteStore:
        if self._store is None:
            msg = "saving a slot needs a place for bytes: create the engine with store=..."
            raise OptionError(msg)
        return self._store

    def _note(self, action: str, slot: Slot, name: str, ticket: Ticket) -> None:
        self._server.record(
            events.SlotAction(
                slot=slot.id,
                task=ticket,
                action=action,
                file=name,
                n_tokens=len(slot.cache_tokens),
            )
        )


def _done(slot: Slot, *, error: str | None = None, message: str = "") -> Reply:
    return Reply.empty(slot=slot.id, error=error, message=message)
