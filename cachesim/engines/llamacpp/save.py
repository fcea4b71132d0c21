"""Slot save, restore and erase: what `POST /slots/{id}?action=...` does.

A slot file: magic "CSSL", then little-endian format version (4), CRC-32 of the rest (4), the length
of a JSON text (4), that text (tokens, and what is approximate), and the packed state of memory.py's
own format.
"""

import json
import struct
import zlib
from typing import Final

from cachesim.engines.base import ByteStore, Reply
from cachesim.engines.llamacpp.events import (
    RequestRefused,
    SlotErased,
    SlotRestored,
    SlotSaved,
)
from cachesim.engines.llamacpp.memory.blob import Blob, pack, unpack
from cachesim.engines.llamacpp.prompt import Approximation
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot
from cachesim.engines.llamacpp.task import Task
from cachesim.errors import BlobError, OptionError
from cachesim.units import Count, Token

MAGIC: Final = b"CSSL"
VERSION: Final = 1
HEAD: Final = struct.Struct("<4sIII")


def run_slot_action(
    server: ServerContext, slot: Slot, task: Task, store: ByteStore | None
) -> Reply:
    """Do what the task says to an idle slot."""
    if task.kind == "slot-erase":
        return _erase(server, slot, task)
    if store is None:
        msg = f"{task.kind} needs a place for bytes; create the engine with store=..."
        raise OptionError(msg)
    if task.kind == "slot-save":
        return _save(server, slot, task, store)
    return _restore(server, slot, task, store)


def _save(server: ServerContext, slot: Slot, task: Task, store: ByteStore) -> Reply:
    """Target state and tokens; companion and checkpoints are not saved."""
    blob = server.contexts.target.state_seq_get_data(slot.id)
    data = encode(slot, blob)
    store.put(task.name, data)
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


def _restore(server: ServerContext, slot: Slot, task: Task, store: ByteStore) -> Reply:
    """Take state and tokens from a file.

    Traps: until the checkpoint list is emptied here, checkpoints of the slot's former prompt stay
    and may be restored for the new one; the companion is not touched.
    """
    data = store.get(task.name)
    if data is None:
        return refuse(server, slot, task, f"unable to restore slot, no file {task.name!r}")
    try:
        tokens, approximate, blob = decode(data)
    except BlobError as error:
        return refuse(server, slot, task, f"unable to restore slot, {error}")
    if len(tokens) > slot.n_ctx:
        return refuse(server, slot, task, "unable to restore slot, no available space in KV cache")
    if not server.contexts.load_target(blob, slot.id):
        return refuse(server, slot, task, "unable to restore slot, the state does not fit")
    slot.prompt.tokens = tokens
    slot.prompt.approximate = approximate
    if server.rules.slots.restore_drops_checkpoints:
        slot.prompt.checkpoints.clear()
    server.emit(
        SlotRestored(
            slot=slot.id,
            task=task.id,
            file=task.name,
            n_tokens=len(tokens),
            n_bytes=server.contexts.target.state_seq_get_size(slot.id),
        )
    )
    return done(server, slot)


def _erase(server: ServerContext, slot: Slot, task: Task) -> Reply:
    n_tokens = slot.prompt.n_tokens
    server.prompt_clear(slot)
    server.emit(SlotErased(slot=slot.id, task=task.id, n_tokens=n_tokens))
    return done(server, slot)


def done(server: ServerContext, slot: Slot) -> Reply:
    """The reply to an action: no tokens, and none cached."""
    return Reply(
        prompt=(),
        generated=(),
        logits=server.no_logits,
        cached=None,
        processed=None,
        slot=slot.id,
    )


def refuse(server: ServerContext, slot: Slot, task: Task, message: str) -> Reply:
    """A file that does not fit: an error, and in later releases an empty slot."""
    if server.rules.slots.cleared_after_bad_restore:
        server.prompt_clear(slot)
    elif server.contexts.target.seq_pos_max(slot.id) < 0:
        slot.prompt.tokens.clear()
    error = "invalid_request_error"
    server.emit(RequestRefused(slot=slot.id, task=task.id, error=error, message=message))
    return Reply(
        prompt=(),
        generated=(),
        logits=server.no_logits,
        cached=None,
        processed=None,
        slot=slot.id,
        error=error,
        message=message,
    )


def encode(slot: Slot, blob: Blob) -> bytes:
    """A slot as the bytes of a file."""
    approximate = slot.prompt.approximate
    head = {
        "tokens": list(slot.prompt.tokens),
        "approximate": None if approximate is None else [approximate.start, approximate.why],
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    body = text + pack(blob)
    return HEAD.pack(MAGIC, VERSION, zlib.crc32(body), len(text)) + body


def decode(data: bytes) -> tuple[list[Token], Approximation | None, Blob]:
    """Read what `encode` wrote; what is damaged or foreign is refused."""
    if len(data) < HEAD.size or data[:4] != MAGIC:
        msg = "this is no slot file of cachesim: it does not begin with CSSL"
        raise BlobError(msg)
    _, version, checksum, length = HEAD.unpack_from(data)
    body = data[HEAD.size :]
    if version != VERSION:
        msg = f"the slot file has format {version}; this cachesim reads {VERSION}"
        raise BlobError(msg)
    if zlib.crc32(body) != checksum or length > len(body):
        msg = "the slot file is damaged: its checksum differs"
        raise BlobError(msg)
    head = json.loads(body[:length])
    approximate = head["approximate"]
    return (
        [Token(each) for each in head["tokens"]],
        None
        if approximate is None
        else Approximation(start=Count(approximate[0]), why=approximate[1]),
        unpack(body[length:]),
    )
