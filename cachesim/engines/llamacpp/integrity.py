"""Invariants of the server's state that hold after any request."""

from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import SlotState
from cachesim.errors import ContractError


def check_integrity(server: ServerContext) -> None:
    """Raise ContractError where slots, memory and prompt cache disagree.

    What upstream does not promise is not asked: the order of checkpoints, their positions after
    a context shift of older releases, and the token in a slot that waits for its memory to be cut.
    """
    server.contexts.check_integrity()
    for slot in server.slots:
        has_task = slot.task is not None
        _require(
            has_task == slot.is_processing,
            f"slot {slot.id} is {slot.state.value} with a wrong task",
        )
        n_tokens = int(slot.prompt.n_tokens)
        _require(n_tokens <= slot.n_ctx, f"slot {slot.id} holds more than its context")
        most = server.options.ctx_checkpoints
        held = slot.prompt.checkpoints
        _require(len(held) <= most, f"slot {slot.id} holds {len(held)} of {most} checkpoints")
        for checkpoint in held:
            ordered = 0 <= checkpoint.pos_min <= checkpoint.pos_max
            _require(ordered, f"slot {slot.id} has a checkpoint from {checkpoint.as_dict()}")
            _require(
                checkpoint.pos_max == checkpoint.n_tokens - 1,
                f"slot {slot.id} has a checkpoint that ends at {checkpoint.pos_max}, "
                f"after {checkpoint.n_tokens} tokens",
            )
        settled = slot.state in {SlotState.IDLE, SlotState.GENERATING}
        if settled and n_tokens:  # an empty slot file leaves the memory as it was
            pos_max = server.contexts.target.seq_pos_max(slot.id)
            _require(
                pos_max == n_tokens - 1,
                f"slot {slot.id} holds {n_tokens} tokens, its memory ends at position {pos_max}",
            )
    if server.cache is not None:
        for entry in server.cache.entries:
            _require(len(entry.tokens) > 0, "the prompt cache holds an entry without tokens")
        limit = server.cache.limit_size
        least = 1 if server.cache.rules.limits_keep_one else 0
        full = 0 < limit < server.cache.size and len(server.cache.entries) > least
        _require(not full, f"the prompt cache holds more than its {limit} bytes")
    running = {slot.task.id for slot in server.slots if slot.task is not None}
    waiting = [task.id for task in (*server.queue, *server.deferred)]
    _require(not running & set(waiting), "a task waits and runs at the same time")
    idle = not running and not server.queue
    _require(not (idle and server.deferred), "tasks are deferred on an idle server")


def _require(holds: object, message: str) -> None:
    if not holds:
        raise ContractError(message)
