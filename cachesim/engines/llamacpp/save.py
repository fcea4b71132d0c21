"""Slot save, restore and erase: `POST /slots/{id}?action=...`.

A slot file's text has tokens, approximation, and the numbers of each checkpoint; packed states
follow in order: the slot's, then target and companion of each checkpoint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cachesim.engines import slot_file
from cachesim.engines.base import ByteStore, Reply
from cachesim.engines.llamacpp.memory.blob import Blob, pack, unpack
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Approximation, Checkpoint, SavedState, Slot, Task
from cachesim.engines.llamacpp.vocabulary.events import (
    RequestRefused,
    SlotErased,
    SlotRestored,
    SlotSaved,
)
from cachesim.engines.slot_file import tokens_of, whole
from cachesim.errors import BlobError, OptionError
from cachesim.units import Count, Pos, Token

MAGIC: Final = b"CSSL"
NO_TASK: Final = -1
"""The task of a checkpoint from a file."""


def run_slot_action(
    server: ServerContext, slot: Slot, task: Task, store: ByteStore | None
) -> Reply:
    """Run a slot action on an idle slot (`SERVER_TASK_TYPE_SLOT_SAVE`)."""
    if task.kind == "slot-erase":
        n_tokens = slot.prompt.n_tokens
        server.prompt_clear(slot)
        server.emit(SlotErased(slot=slot.id, task=task.id, n_tokens=n_tokens))
        return done(server, slot)
    if store is None:
        raise OptionError(f"{task.kind} needs a place for bytes; create the engine with store=...")
    if task.kind == "slot-save":
        # since #26004 the checkpoints too; never the companion's state
        blob = server.contexts.target.state_seq_get_data(slot.id)
        kept = slot.prompt.checkpoints if server.rules.slots.file_holds_checkpoints else []
        store.put(task.name, encode(slot, blob, kept))
        n_bytes = server.contexts.target.state_seq_get_size(slot.id)
        server.emit(
            SlotSaved(
                slot=slot.id,
                task=task.id,
                file=task.name,
                n_tokens=slot.prompt.n_tokens,
                n_bytes=n_bytes,
            )
        )
        return done(server, slot)
    # Restore state and tokens from a file, and since #26004 the checkpoints.
    #
    # Traps: in releases that do not empty the list here, checkpoints of the slot's former prompt
    # stay and may be restored for the new one; the companion gets its part of the newest one.
    data = store.get(task.name)
    if data is None:
        return refuse(server, slot, task, f"unable to restore slot, no file {task.name!r}")
    try:
        saved = decode(data)
    except BlobError as error:
        return refuse(server, slot, task, f"unable to restore slot, {error}")
    if len(saved.tokens) > slot.n_ctx:
        return refuse(server, slot, task, "unable to restore slot, no available space in KV cache")
    if not server.contexts.load_target(saved.blob, slot.id):
        return refuse(server, slot, task, "unable to restore slot, the state does not fit")
    slot.prompt.tokens = saved.tokens
    slot.completed = True
    slot.prompt.approximate = saved.approximate
    # Otherwise they belong to the slot's former prompt. Trap: a recurrent slot may then resume from
    # a state of another prompt.
    if server.rules.slots.restore_drops_checkpoints:
        slot.prompt.checkpoints.clear()
    if server.rules.slots.file_holds_checkpoints:
        most = server.options.ctx_checkpoints
        slot.prompt.checkpoints = saved.checkpoints[-most:] if most else []
        if slot.prompt.checkpoints:
            # The file has no state of the companion; that of the newest checkpoint is the nearest.
            newest = slot.prompt.checkpoints[-1]
            server.contexts.load_companion(newest.state.companion, slot.id, partial=True)
    server.emit(
        SlotRestored(
            slot=slot.id,
            task=task.id,
            file=task.name,
            n_tokens=len(saved.tokens),
            n_bytes=server.contexts.target.state_seq_get_size(slot.id),
        )
    )
    return done(server, slot)


def done(server: ServerContext, slot: Slot) -> Reply:
    """The reply to an action, without tokens."""
    return Reply.empty(logits=server.no_logits, slot=slot.id)


def refuse(server: ServerContext, slot: Slot, task: Task, message: str) -> Reply:
    """Refuse a missing, damaged or foreign file: an error, and a slot without tokens.

    Upstream: `SERVER_TASK_TYPE_SLOT_RESTORE`.

    Traps: the tokens of the slot are dropped, though its cells may be as they were. If the real
    file ends within the state, the real process ends too, and changed bytes of a state are
    restored; here a checksum refuses both.
    """
    # Later releases clear the slot; older ones drop its tokens and leave its cells.
    if server.rules.slots.cleared_after_bad_restore:
        server.prompt_clear(slot)
    else:
        slot.prompt.tokens.clear()
    error = "invalid_request_error"
    server.emit(RequestRefused(slot=slot.id, task=task.id, error=error, message=message))
    return Reply.empty(logits=server.no_logits, slot=slot.id, error=error, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFile:
    """The content of a slot file."""

    tokens: list[Token]
    approximate: Approximation | None
    blob: Blob
    checkpoints: list[Checkpoint]


def encode(slot: Slot, blob: Blob, checkpoints: Sequence[Checkpoint] = ()) -> bytes:
    """A slot as the bytes of a file (`llama_state_seq_save_file`)."""
    approximate = slot.prompt.approximate
    blobs = [pack(blob)]
    entries = []
    for checkpoint in checkpoints:
        own = [
            None if part is None else pack(part)
            for part in (checkpoint.state.target, checkpoint.state.companion)
        ]
        blobs += [part for part in own if part is not None]
        entries.append(
            {
                **checkpoint.as_dict(),
                "blobs": [None if part is None else len(part) for part in own],
                "drafter": None
                if checkpoint.drafter is None
                else {"type": checkpoint.drafter.dtype.str, "words": checkpoint.drafter.tolist()},
                "header": checkpoint.state.header,
            }
        )
    head = {
        "tokens": list(slot.prompt.tokens),
        "approximate": None if approximate is None else [approximate.start, approximate.why],
        "state": len(blobs[0]),
        "checkpoints": entries,
    }
    return slot_file.write(MAGIC, head, blobs)


def decode(data: bytes) -> SlotFile:
    """Parse the bytes of `encode`; a damaged or foreign file is refused."""
    return slot_file.read(data, MAGIC, "llama.cpp", lambda head, rest: _read(head, _Blobs(rest)))


def _read(head: Mapping[str, Any], blobs: "_Blobs") -> SlotFile:
    """The saved slot of a file's text; errors are raised as they are.

    Upstream: `llama_state_seq_load_file`.
    """
    approximate = head["approximate"]
    return SlotFile(
        tokens=tokens_of(head["tokens"]),
        approximate=None
        if approximate is None
        else Approximation(start=Count(whole(approximate[0])), why=approximate[1]),
        blob=unpack(blobs.take(head["state"])),
        checkpoints=[_checkpoint(checkpoint, blobs) for checkpoint in head["checkpoints"]],
    )


@dataclass(slots=True)
class _Blobs:
    """Packed states, read in order."""

    data: bytes
    at: int = 0

    def take(self, size: object) -> bytes:
        self.at += whole(size, 0)
        return self.data[self.at - whole(size) : self.at]


def _checkpoint(entry: Mapping[str, Any], blobs: _Blobs) -> Checkpoint:
    target, companion = (
        None if size is None else unpack(blobs.take(size)) for size in entry["blobs"]
    )
    row = entry["drafter"]
    return Checkpoint(
        n_tokens=Count(whole(entry["n_tokens"])),
        pos_min=Pos(whole(entry["pos_min"])),
        pos_max=Pos(whole(entry["pos_max"])),
        id_task=NO_TASK,
        state=SavedState(target=target, companion=companion, header=whole(entry["header"])),
        drafter=None if row is None else np.array(row["words"], dtype=row["type"]),
    )
