"""Laws of a server's calls, tried on a copy of an idle one.

slot file   saved, erased and restored: the same tokens, checkpoints and content, of as many bytes
replies     known ones at once: the same content and replies as step by step
"""

from collections import deque
from collections.abc import Sequence
from copy import copy
from typing import Final

import numpy as np

from cachesim.engines.base import Reply, Ticket
from cachesim.engines.events import EventLog
from cachesim.engines.llamacpp.memory.cells import free_cells
from cachesim.engines.llamacpp.memory.hybrid import caches_of, parts_of
from cachesim.engines.llamacpp.observe.integrity import (
    Part,
    content_of,
    copied,
    is_settled,
    require,
)
from cachesim.engines.llamacpp.save import run_slot_action
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Contexts, Slot, SlotState, Task, TaskKind, TaskParams
from cachesim.engines.llamacpp.update_slots import update_slots
from cachesim.engines.llamacpp.vocabulary.events import (
    BatchDecoded,
    SlotErased,
    SlotRestored,
    SlotSaved,
)
from cachesim.errors import UpstreamAbort
from cachesim.model.build import arithmetic_of
from cachesim.units import Token, as_tokens

AT_ONCE: Final = 64
"""Steps that are run as one."""

PROMPTS: Final = (9, 5)
"""Tokens of the prompt of each slot with a known reply; its reply has as many."""


class Files(dict[str, bytes]):
    """Slot files by name."""

    def put(self, name: str, data: bytes) -> None:
        """Store a file."""
        self[name] = data


def check_actions(server: ServerContext) -> None:
    """Raise ContractError if a slot file or a known reply changes what it must keep."""
    target, companion = server.contexts.target, server.contexts.companion
    if server.media or not (target.computes and is_settled(target)):
        return
    if companion is None or is_settled(companion):
        for slot in server.slots[::-1]:
            if slot.prompt.tokens:
                _try_file(_copy_of(server), slot.id)
                break
    if arithmetic_of(target.network) == "ring" and not (
        server.may_draft or server.options.embedding
    ):
        _try_replies(server)


def _copy_of(server: ServerContext) -> ServerContext:
    """A server with memories and slots of its own."""
    tried, contexts = copy(server), server.contexts
    companion = contexts.companion
    tried.contexts = Contexts(
        copied(contexts.target),
        None if companion is None else copied(companion),
        saves_companion=contexts.saves_companion,
        refused_cut_aborts=server.rules.loop.refused_cut_aborts,
    )
    tried.slots = [copy(slot) for slot in server.slots]
    for slot in tried.slots:
        slot.prompt = slot.prompt.clone()
        slot.reset()  # the lists of a request are its own
    tried.events, tried.replies, tried.queue, tried.deferred = EventLog(), {}, deque(), deque()
    return tried


def _try_file(server: ServerContext, number: int) -> None:
    """Save a slot, then erase and restore it in its place and in the next slot."""
    slot, target, files = server.slots[number], server.contexts.target, Files()
    text, held = (
        tuple(slot.prompt.tokens),
        [checkpoint.as_dict() for checkpoint in slot.prompt.checkpoints],
    )
    n_bytes = target.state_write(number).size + target.rules.sequence_header
    saved, numbers = content_of(target)[number], (len(text), n_bytes)
    _require_event(server, slot, files, "slot-save", numbers)
    for place in (slot, server.slots[(number + 1) % len(server.slots)]):
        erased = (len(place.prompt.tokens),)
        _require_event(server, place, files, "slot-erase", erased)
        require(not place.prompt.tokens, "an erased slot has tokens")
        empty = not any(part.positions.size for part in content_of(target)[place.id])
        require(empty, "an erased slot has cells")
        if not _has_room(server, place, saved):
            return
        _require_event(server, place, files, "slot-restore", numbers)
        require(tuple(place.prompt.tokens) == text, "a slot is restored with other tokens")
        for part, other in zip(content_of(target)[place.id], saved, strict=True):
            require(part.seen(1).equals(other.seen(1)), "a slot is restored otherwise")
        restored = [checkpoint.as_dict() for checkpoint in place.prompt.checkpoints]
        carried = held if server.rules.slots.file_holds_checkpoints else []
        dropped = server.rules.slots.restore_drops_checkpoints
        require(
            restored == carried or not dropped, f"{restored} are restored of checkpoints {carried}"
        )
        server.contexts.check_integrity()


def _require_event(
    server: ServerContext, slot: Slot, files: Files, kind: TaskKind, numbers: tuple[int, ...]
) -> None:
    """Run a slot action, and require that it reports these numbers of tokens and bytes."""
    task = Task(id=0, ticket=Ticket(0), kind=kind, id_slot=slot.id, name="file")
    before = len(server.events)
    reply = run_slot_action(server, slot, task, files)
    require(reply.error is None, f"a {kind} is refused: {reply.message}")
    require(reply.slot == slot.id, f"slot {reply.slot} replies to a {kind} of slot {slot.id}")
    told = [
        tuple(value for name, value in event.as_dict().items() if name in {"n_tokens", "n_bytes"})
        for event in server.events[before:]
        if isinstance(event, SlotSaved | SlotErased | SlotRestored)
    ]
    require(told == [numbers], f"a {kind} of {numbers} reports {told}")


def _has_room(server: ServerContext, slot: Slot, saved: Sequence[Part]) -> bool:
    """True if the cells of a saved sequence fit into those that are free."""
    attention, _ = parts_of(server.contexts.target.memory)
    caches = caches_of(attention).values()
    return all(
        len(part.positions) <= free_cells(cache.streams, cache.streams.of(slot.id, "laws"))
        for cache, part in zip(caches, saved, strict=False)
    )


# -- replies ---------------------------------------------------------------------------------------


def _try_replies(server: ServerContext) -> None:
    """Reply with known tokens: step by step, and many steps at once."""
    try:
        one_by_one, steps = _replied(server, turns=1)
    except UpstreamAbort:
        return  # at these flags a request ends the process
    at_once, fewer = _replied(server, turns=AT_ONCE)
    attention, _ = parts_of(server.contexts.target.memory)
    windows = any(cache.mask.n_swa for cache in caches_of(attention).values())
    if not windows and min(server.n_batch, server.slots[0].n_ctx) >= AT_ONCE:
        require(fewer < steps, f"replies at once take {fewer} steps, one by one {steps}")
    for (tokens, one, parts), (others, other, rest) in zip(one_by_one, at_once, strict=True):
        require(tokens == others, "a reply at once leaves other tokens")
        require(one.generated == other.generated, "a reply at once has other tokens")
        require(np.array_equal(one.logits, other.logits), "a reply at once has other logits")
        for part, more in zip(parts, rest, strict=True):
            require(part.equals(more), "a reply at once leaves another content")


def _replied(
    server: ServerContext, *, turns: int
) -> tuple[list[tuple[tuple[Token, ...], Reply, tuple[Part, ...]]], int]:
    """Replies of an emptied server's first slots, the content after them, and their batches."""
    tried = _copy_of(server)
    tried.most_turns = turns
    for slot in tried.slots:
        tried.prompt_clear(slot)
    busy = tried.slots[: len(PROMPTS)]
    for slot, n in zip(busy, PROMPTS, strict=False):
        tokens = as_tokens(range(20, 20 + 2 * n))
        params = TaskParams(reply=tokens[n:], n_predict=n)
        slot.task = Task(id=slot.id, ticket=Ticket(slot.id), tokens=tokens[:n], params=params)
        slot.move(SlotState.STARTED)
        slot.lora = tried.lora  # as of a request that names none
    while tried.is_busy:
        update_slots(tried)
    tried.contexts.check_integrity()
    content = content_of(tried.contexts.target)
    replies = [
        (tuple(slot.prompt.tokens), tried.replies[Ticket(slot.id)][0], content[slot.id])
        for slot in busy
    ]
    return replies, sum(isinstance(event, BatchDecoded) for event in tried.events)
