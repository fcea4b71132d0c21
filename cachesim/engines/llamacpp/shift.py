"""The context shift: throw away the middle of a full context and go on."""

from cachesim.engines.llamacpp.events import ContextShifted
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot, SlotState


def shift_full_contexts(server: ServerContext) -> None:
    """Before a turn, make room in every generating slot that is full."""
    for slot in server.slots:
        full = slot.prompt.n_tokens + 1 >= slot.n_ctx
        if slot.state is SlotState.GENERATING and full:
            _make_room(server, slot)


def _make_room(server: ServerContext, slot: Slot) -> None:
    task = slot.running
    if not server.shifts_context:
        server.finish(slot, "error", "server_error", "context shift is disabled")
    elif task.is_parent or task.is_child:
        message = "context shift cannot be used for shared prompt"
        server.finish(slot, "error", "server_error", message)
    else:
        _shift(server, slot)


def _shift(server: ServerContext, slot: Slot) -> None:
    """Keep the first tokens, discard some, move the rest down.

        before   [ n_keep | n_discard | rest ...... )
        after    [ n_keep | rest ...... )

    Trap: hybrid and recurrent memories pass; only the position moves, the state keeps what was
    discarded. Older releases keep the checkpoints, which then stand for other tokens.
    """
    task, n_tokens = slot.running, int(slot.prompt.n_tokens)
    n_keep = task.n_tokens if task.params.n_keep < 0 else task.params.n_keep
    n_keep = min(n_keep, slot.n_ctx - 4)
    n_left = n_tokens - n_keep
    n_discard = task.params.n_discard or n_left // 2
    if server.rules.slots.discard_is_clamped:
        n_discard = min(max(n_discard, 0), max(0, n_left - 1))
    server.emit(
        ContextShifted(
            slot=slot.id, task=task.id, n_keep=n_keep, n_left=n_left, n_discard=n_discard
        )
    )
    server.contexts.seq_rm(slot.id, n_keep, n_keep + n_discard)
    server.contexts.seq_add(slot.id, n_keep + n_discard, n_tokens, -n_discard)
    del slot.prompt.tokens[n_keep : n_keep + n_discard]
    if server.rules.slots.shift_drops_checkpoints:
        slot.prompt.checkpoints.clear()
    slot.prompt.approximate_from(n_keep, "context-shift")
    slot.approximated = "context-shift"
    slot.truncated = True
