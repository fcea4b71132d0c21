"""Where the filling of a batch stops for a prompt, and whether a checkpoint is taken there."""

from dataclasses import dataclass

from cachesim.engines.llamacpp.checkpoint import Checkpoint
from cachesim.engines.llamacpp.events import CheckpointCreated, CheckpointDropped
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot
from cachesim.engines.llamacpp.task import Task
from cachesim.units import Array, Count, Pos


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What was just put into the batch for one prompt."""

    start: int  # slot tokens before
    end: int  # slot tokens after
    batch: int  # tokens of the whole batch, all slots together


def is_eligible(server: ServerContext) -> bool:
    """Do prompts get checkpoints at all? Full attention never needs one."""
    return server.options.ctx_checkpoints > 0 and (server.is_exact or server.n_swa > 0)


def next_stop(server: ServerContext, slot: Slot, task: Task) -> int:
    """The length at which this batch ends for the slot, but for its other limits.

    Upstream appends token by token and tests after each one: at the end offsets (#20288), so that
    a state can be saved just before the last tokens; and where a user message begins.
    """
    n, whole = int(slot.prompt.n_tokens), int(task.n_tokens)
    stops = {whole}
    eligible = is_eligible(server)
    n_batch, n_ubatch = server.options.n_batch, server.options.n_ubatch
    if eligible:
        stops |= {whole - min(n_batch, 4 + n_ubatch), whole - min(n_batch, 4)}
    match server.rules.checkpoints.placement:
        case "last-user":
            stops.add(int(task.params.last_user_start))
        case "user-starts" if eligible:
            stops |= {int(at) for at in task.params.user_starts if _cuts(server, slot, task, at)}
    if slot.split_at > 0:
        stops.add(slot.split_at)
    return min((stop for stop in stops if stop > n), default=n)


def _cuts(server: ServerContext, slot: Slot, task: Task, at: int) -> bool:
    """True if a batch ends at this user message.

    Trap: the list is read before this batch's own checkpoint is in it.
    """
    checkpoints = slot.prompt.checkpoints
    return (
        at == task.params.last_user_start
        or not checkpoints
        or at > checkpoints[-1].n_tokens + server.options.checkpoint_min_step
    )


def maybe_create_checkpoint(server: ServerContext, slot: Slot, task: Task, filled: Filled) -> None:
    """Save the state before the batch is decoded, if this is a place for it.

    Positions are read now and describe the tokens before this batch.
    """
    if not is_eligible(server) or not _is_place(server, slot, task, filled):
        return
    rules = server.rules.checkpoints
    minimum = rules.exact_minimum_prompt if server.is_exact else rules.minimum_prompt
    target = server.contexts.target
    pos_min, pos_max = target.seq_pos_min(slot.id), target.seq_pos_max(slot.id)
    if pos_min < 0 or filled.end < minimum:
        return
    if not _is_far_enough(server, slot, task, filled):
        return
    if rules.exact_pos_min and server.is_exact:
        pos_min = pos_max
    create_checkpoint(
        server,
        slot,
        Checkpoint(
            n_tokens=Count(filled.start),
            pos_min=Pos(pos_min),
            pos_max=Pos(pos_max),
            id_task=task.id,
            state=server.contexts.save(slot.id, partial=True),
            drafter=_carried(server, slot),
            approximate=slot.prompt.approximate,
        ),
    )


def _carried(server: ServerContext, slot: Slot) -> Array | None:
    if server.drafter is None or not server.rules.slots.drafter_is_saved:
        return None
    return server.drafter.carried(slot.id)


def _is_place(server: ServerContext, slot: Slot, task: Task, filled: Filled) -> bool:
    params, whole = task.params, task.n_tokens
    near = whole < filled.end + server.options.n_ubatch
    if filled.start == slot.split_at:
        return True
    match server.rules.checkpoints.placement:
        case "every":
            return near or _is_due(server, slot, filled)
        case "last-user":
            at = params.last_user_start
            return near if at <= 0 else filled.start == at or (filled.start > at and near)
        case "user-starts":
            return near or filled.start in params.user_starts


def _is_due(server: ServerContext, slot: Slot, filled: Filled) -> bool:
    """`--checkpoint-every-n-tokens`, in the middle of a prompt."""
    every = server.options.checkpoint_every_nt
    last = slot.prompt.checkpoints[-1].n_tokens if slot.prompt.checkpoints else 0
    return every > 0 and filled.end - filled.batch - last >= every


def _is_far_enough(server: ServerContext, slot: Slot, task: Task, filled: Filled) -> bool:
    """Not too close behind the newest checkpoint."""
    rules, checkpoints = server.rules.checkpoints, slot.prompt.checkpoints
    if not checkpoints or filled.start == slot.split_at:
        return True
    if server.is_exact and not rules.exact_spaced:
        return filled.start > checkpoints[-1].n_tokens
    if rules.spacing_waived_near_end and task.n_tokens < filled.end + server.options.n_ubatch:
        return True
    if rules.spacing_waived_for_last_user and filled.start == task.params.last_user_start:
        return True
    spacing = server.options.checkpoint_min_step if rules.spacing is None else rules.spacing
    return filled.start > checkpoints[-1].n_tokens + spacing


def create_checkpoint(server: ServerContext, slot: Slot, checkpoint: Checkpoint) -> None:
    """Make room in the list and append (upstream's name).

    Trap: the oldest may be dropped although the new one only replaces one of equal length.
    """
    task, most = slot.running, server.options.ctx_checkpoints
    make_room(server, slot, task, most)
    if server.rules.checkpoints.supersede_equal:
        for held in list(slot.prompt.checkpoints):
            if held.n_tokens == checkpoint.n_tokens:
                _drop(server, slot, held, "superseded")
    slot.prompt.checkpoints.append(checkpoint)
    server.emit(
        CheckpointCreated(
            slot=slot.id,
            task=task.id,
            index=len(slot.prompt.checkpoints),
            most=most,
            **checkpoint.as_dict(),
            size=checkpoint.size,
        )
    )


def make_room(server: ServerContext, slot: Slot, task: Task, most: int) -> None:
    """Drop checkpoints until one more fits."""
    checkpoints = slot.prompt.checkpoints
    eviction = server.rules.checkpoints.eviction
    if eviction == "thinned":
        _thin_out(server, slot, task, most)
    while len(checkpoints) >= most:
        victim = 0
        if eviction == "closest":
            victim = _closest(checkpoints)
        elif eviction == "densest":
            victim = _densest(checkpoints)
        _drop(server, slot, checkpoints[victim], "full")


def _thin_out(server: ServerContext, slot: Slot, task: Task, most: int) -> None:
    """Drop what another task left close behind its predecessor (#25472, narrowed by #28302)."""
    last = -1
    for checkpoint in list(slot.prompt.checkpoints):
        if len(slot.prompt.checkpoints) + 1 < most:
            return
        close = checkpoint.n_tokens <= last + server.options.checkpoint_min_step
        if checkpoint.id_task != task.id and last >= 0 and close:
            _drop(server, slot, checkpoint, "too-close")
        else:
            last = checkpoint.n_tokens


def _closest(checkpoints: list[Checkpoint]) -> int:
    """The one least far behind its predecessor (#25592); the first one is an anchor."""
    gaps = [
        (checkpoints[i].n_tokens - checkpoints[i - 1].n_tokens, i)
        for i in range(1, len(checkpoints))
    ]
    return min(gaps, default=(0, 0))[1]


def _densest(checkpoints: list[Checkpoint]) -> int:
    """The interior one whose neighbours lie closest together (#24035); else the oldest."""
    spans = [
        (checkpoints[i + 1].n_tokens - checkpoints[i - 1].n_tokens, i)
        for i in range(1, len(checkpoints) - 1)
    ]
    return min(spans, default=(0, 0))[1]


def _drop(server: ServerContext, slot: Slot, checkpoint: Checkpoint, reason: str) -> None:
    index = next(i for i, each in enumerate(slot.prompt.checkpoints) if each is checkpoint)
    del slot.prompt.checkpoints[index]
    server.emit(
        CheckpointDropped(
            slot=slot.id,
            task=slot.running.id,
            reason=reason,
            **checkpoint.as_dict(),
            size=checkpoint.size,
        )
    )
