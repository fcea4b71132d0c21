"""One pass over the slots: upstream's `update_slots`, block by block.

b11549 has it in four functions, `update_slots`, `pre_decode`, `decode` and `post_decode`; earlier
releases have the same blocks in the same order in one. The block that starts a prompt is in
`prompt_start`, `process_token` in `generation`, drafts in `speculative`.

    pass     shift full contexts | draft | sampled tokens and drafts | prompts, while there is room
             decode the batch piece by piece; after each piece: children, tokens, verified drafts
"""

from typing import Final

from cachesim.engines.llamacpp import lora
from cachesim.engines.llamacpp.checkpoints import (
    checkpoint_at_the_end,
    checkpoint_here,
    gets_checkpoints,
)
from cachesim.engines.llamacpp.drafter import Drafter
from cachesim.engines.llamacpp.events import (
    BatchDecoded,
    BatchRetried,
    CompanionFailed,
    ContextShifted,
    ParentCopied,
)
from cachesim.engines.llamacpp.forced import pass_over_replies
from cachesim.engines.llamacpp.generation import next_token, process_token
from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.ngram_cache import NgramCache
from cachesim.engines.llamacpp.prompt_start import can_split, cut_memory, start_prompt
from cachesim.engines.llamacpp.server_batch import Piece, ServerBatch
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import NO_ROW, Slot, SlotState
from cachesim.engines.llamacpp.speculative import make_drafts, verify_drafts
from cachesim.engines.llamacpp.swap import try_clear_idle_slots
from cachesim.engines.llamacpp.task import Task
from cachesim.errors import UpstreamAbort, UpstreamEndless

SERVER_ERROR: Final = "server_error"

EMPTY_TURNS: Final = 3
"""So many passes with nothing to decode are accepted; one more ends the process."""

AT_A_PROMPT: Final = (SlotState.STARTED, SlotState.PROCESSING_PROMPT)

VAIN_TURNS: Final = 10
"""After so many, where the process does not end, each is like the one before."""


class BatchError(Exception):
    """A decode failed for good: all busy slots get this error."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def update_slots(server: ServerContext) -> None:
    """One pass: fill the batch, decode it, take what was sampled (upstream: `update_slots`)."""
    if not server.is_busy:
        return
    pass_over_replies(server)
    batch = pre_decode(server)
    _count_empty(server, batch)
    off, n_batch = 0, server.n_batch
    try:
        while off < batch.length:
            off_next, n_batch = decode(server, batch, off, n_batch)
            if off_next > off:
                post_decode(server, off, off_next)
            off = off_next
    except BatchError as error:
        abort_all_slots(server, error)


def _count_empty(server: ServerContext, batch: ServerBatch) -> None:
    """Nothing to decode though a slot is at work: May's and June's servers end themselves.

    Upstream: `if (++n_empty_consecutive > 3)` (#20277). A pass that leaves no slot at work starts
    the count again: any number of empty or overlong prompts may follow one another (seen on all
    wheels). Trap: from b9873 on the test stands where an empty batch never gets. Such a server
    loops forever and answers nothing, which is reported after some passes.
    """
    if batch.length or not server.is_busy:
        server.n_empty_consecutive = 0
        return
    server.n_empty_consecutive += 1
    where = "update_slots"
    if server.n_empty_consecutive > EMPTY_TURNS and server.rules.loop.empty_batches_abort:
        raise UpstreamAbort(where, "too many consecutive empty batches")
    if server.n_empty_consecutive > VAIN_TURNS:
        raise UpstreamEndless(where, "a slot is busy and has nothing to decode")


# -- pre_decode ------------------------------------------------------------------------------------


def pre_decode(server: ServerContext) -> ServerBatch:
    """Make room, draft, and fill the batch (upstream: `pre_decode`)."""
    for slot in server.slots:
        if len(slot.prompt.tokens) + 1 < slot.n_ctx:
            continue
        asked = slot.is_processing and server.rules.loop.shift_asks_new_prompts
        if asked or slot.state is SlotState.GENERATING:
            shift_context(server, slot)
    make_drafts(server)
    batch = ServerBatch()
    for slot in server.slots:  # in order of their ids, upstream: `handle_last_sampled_token`
        if slot.state is SlotState.GENERATING and batch.admits(slot):
            _check_room(server, batch, slot)
            slot.i_batch = batch.add(slot, [slot.sampled, *slot.draft], output=True)
    if server.options.cont_batching or not batch.length:
        add_prompts(server, batch)
    return batch


def _check_room(server: ServerContext, batch: ServerBatch, slot: Slot) -> None:
    """What all slots sampled and drafted must fit into one batch (upstream: `common_batch_add`).

    Trap: nothing asks for room before the drafts are made. Seen on the wheels from b9294 to b9873,
    and on b11549 with another message; where recurrent states keep planes, a single draft that is
    longer than the batch ends the process before, as it is split.
    """
    if len(batch) + 1 + len(slot.draft) > max(server.n_batch, len(server.slots)):
        where, why = "common_batch_add", "llama_batch size exceeded"
        raise UpstreamAbort(where, why)


def shift_context(server: ServerContext, slot: Slot) -> None:
    """Keep the first tokens, discard some, move the rest down (upstream: "apply context-shift").

        before   [ n_keep | n_discard | rest ...... )
        after    [ n_keep | rest ...... )

    Trap: hybrid and recurrent memories pass; only the position moves, the state keeps what was
    discarded. Older releases keep the checkpoints, which then stand for other tokens.
    """
    task, n_tokens = slot.running, int(slot.prompt.n_tokens)
    if not server.shifts_context:
        server.finish(slot, "error", SERVER_ERROR, "context shift is disabled")
        return
    if task.is_parent or task.is_child:
        message = "context shift cannot be used for shared prompt"
        server.finish(slot, "error", SERVER_ERROR, message)
        return
    n_keep = task.n_tokens if task.params.n_keep < 0 else task.params.n_keep
    n_keep = min(slot.n_ctx - 4, n_keep)
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


def add_prompts(server: ServerContext, batch: ServerBatch) -> None:
    """Batch pending prompts without exceeding `n_batch`, in order of slot ids.

    Upstream: `iterate(slots, ...)` of "next, batch any pending prompts". A low id with a long
    prompt takes the whole batch.
    """
    for slot in server.slots:
        if slot.state in AT_A_PROMPT and not batch.admits(slot):
            continue
        if slot.state is SlotState.STARTED and not start_prompt(server, slot):
            continue
        if slot.state is SlotState.PROCESSING_PROMPT:
            task = slot.running
            whole = not can_split(server, task)
            if whole and len(batch) + task.n_tokens > server.n_batch:
                continue  # the next pass has room for all of it
            add_prompt(server, slot, batch)
        if batch.length >= server.n_batch and slot.is_processing:
            break


def add_prompt(server: ServerContext, slot: Slot, batch: ServerBatch) -> None:
    """Put in as much of one prompt as goes before the loop breaks, and save the state before it.

        prompt   [ cached | earlier batches | this batch | ................. )
                                            n_tokens_start   slot.prompt.n_tokens after it

    Upstream: what follows `SLOT_STATE_STARTED`, from `seq_rm` to `create_checkpoint`. The
    checkpoint is made before the batch is decoded, so the batch is no part of it.
    """
    task, n_batch = slot.running, server.n_batch
    cut_memory(server, slot)
    do_checkpoint = gets_checkpoints(server, task) and server.rules.checkpoints.before_the_end
    n_tokens_start = len(slot.prompt.tokens)
    n_tokens = min(
        break_at(server, slot, task, do_checkpoint=do_checkpoint),
        n_tokens_start + max(0, n_batch - batch.length),
    )
    batch.add(slot, task.tokens[n_tokens_start:n_tokens], output=task.is_embedded)
    slot.n_prompt_tokens_processed += n_tokens - n_tokens_start
    if n_tokens == task.n_tokens:
        if not batch.length:  # what was swapped into a busy slot may hold the whole prompt
            where = "update_slots"
            raise UpstreamAbort(where, "batch.n_tokens > 0 when a prompt is done")
        slot.move(SlotState.DONE_PROMPT)
        slot.i_batch = batch.length - 1
        batch.want_last()
    if do_checkpoint and _is_place(server, slot, task, n_tokens_start, batch.length):
        checkpoint_here(server, slot, task, n_tokens_start)


def break_at(server: ServerContext, slot: Slot, task: Task, *, do_checkpoint: bool) -> int:
    """The length at which the filling of a batch breaks for a slot, but for the batch's own end.

    Stands for upstream's loop `while (slot.prompt.n_tokens() < slot.task->n_tokens() && ...)`. It
    appends one token after another, and after each one compares `n_tokens()` with a few numbers:
    `checkpoint_offsets` before the prompt's end (#20288), so that a state can be saved just before
    the last tokens, and where a user message begins. Nothing that it reads changes on the way, so
    the first of these numbers after the present one is where it breaks. A test walks the loop.
    """
    n_tokens, whole = len(slot.prompt.tokens), len(task.tokens)
    n_batch, n_ubatch = server.n_batch, server.n_ubatch
    stops = [slot.split_at]
    if do_checkpoint:
        checkpoint_offsets = (4 + n_ubatch, 4)
        stops += [whole - min(n_batch, offset) for offset in checkpoint_offsets]
    match server.rules.checkpoints.placement:
        case "last-user":  # n_before_user; whether or not the request gets checkpoints
            stops.append(int(task.params.last_user_start))
        case "user-starts" if do_checkpoint:
            stops += [int(at) for at in task.params.user_starts if _breaks(server, slot, task, at)]
    first = max(n_tokens, whole)
    for stop in stops:
        if n_tokens < stop < first:
            first = stop
    return first


def _breaks(server: ServerContext, slot: Slot, task: Task, pos: int) -> bool:
    """Does a batch end at this user message? (upstream: `spans.is_user_start`).

    Trap: the list is read before this batch's own checkpoint is in it.
    """
    checkpoints = slot.prompt.checkpoints
    return (
        not server.rules.checkpoints.cuts_heed_spacing
        or pos == task.params.last_user_start
        or not checkpoints
        or pos > checkpoints[-1].n_tokens + server.options.checkpoint_min_step
    )


def _is_place(
    server: ServerContext, slot: Slot, task: Task, n_tokens_start: int, n_batched: int
) -> bool:
    """Skip ordinary mid-prompt checkpoints (upstream: `do_checkpoint`, first part)."""
    params, n_tokens = task.params, slot.prompt.n_tokens
    near_prompt_end = task.n_tokens < n_tokens + server.n_ubatch
    if n_tokens_start == slot.split_at:
        return True
    match server.rules.checkpoints.placement:
        case "every":  # --checkpoint-every-n-tokens, in the middle of a prompt
            every = server.options.checkpoint_every_nt
            last = slot.prompt.checkpoints[-1].n_tokens if slot.prompt.checkpoints else 0
            return near_prompt_end or 0 < every <= n_tokens - n_batched - last
        case "last-user":
            n_before_user = params.last_user_start
            if n_before_user <= 0:
                return near_prompt_end
            after = n_tokens_start > n_before_user
            return n_tokens_start == n_before_user or (after and near_prompt_end)
        case "user-starts":
            return near_prompt_end or n_tokens_start in params.user_starts


# -- decode ----------------------------------------------------------------------------------------


def decode(server: ServerContext, batch: ServerBatch, off: int, n_batch: int) -> tuple[int, int]:
    """Decode one piece; the end of what was decoded, and the size of the next piece.

    Upstream: `decode`. No room: an idle slot is purged, or the piece is halved, and the same tokens
    come again.
    """
    off_next = min(off + n_batch, batch.length)
    piece = batch.piece(off, off_next)
    ret = _decode(server, batch, piece)
    if ret == 0:
        server.emit(BatchDecoded(n_tokens=off_next - off, slots=piece.slots()))
        return off_next, server.n_batch
    if n_batch == 1 and ret == 1:
        raise BatchError(SERVER_ERROR, "Context size has been exceeded.")
    if ret == -1:
        raise BatchError(SERVER_ERROR, "Invalid input batch.")
    if ret < -1:
        raise BatchError(SERVER_ERROR, "Compute error.")
    if not try_clear_idle_slots(server):
        n_batch //= 2
    server.emit(BatchRetried(offset=off, n_batch=n_batch, ret=ret))
    return off, n_batch


def _decode(server: ServerContext, batch: ServerBatch, piece: Piece) -> int:
    """Put a piece into the target's memory, and then into its companion's (`llama_decode`)."""
    target = server.contexts.target
    if not target.computes and server.drafter is None:
        named = piece.named()
        if named is not None and target.advance(named):
            return 0
    view = piece.batch()
    lora.apply(server, batch.lora or ())
    target.all_outputs = batch.embeds
    ret = target.decode(view)
    if ret == 0 and server.drafter is not None:
        _feed_companion(server, server.drafter, view)
    return ret


def _feed_companion(server: ServerContext, drafter: Drafter, view: Batch) -> None:
    """Run the companion over the same piece (upstream: `common_speculative_process`)."""
    ret = drafter.process(view, server.contexts.target)
    if ret != 0:
        server.emit(CompanionFailed(ret=ret))
        fatal = server.rules.loop.process_failure_is_fatal
        raise BatchError(SERVER_ERROR if fatal else "", "failed to process speculative batch")


def abort_all_slots(server: ServerContext, failure: BatchError) -> None:
    """Every busy slot gets the error, is released and cleared; no error: the pass is over."""
    if not failure.error:
        return
    for slot in server.slots:
        if slot.is_processing:
            server.finish(slot, "error", failure.error, failure.message)
            server.prompt_clear(slot)


# -- post_decode -----------------------------------------------------------------------------------


def post_decode(server: ServerContext, begin: int, end: int) -> None:
    """Children, sampled tokens, verified drafts of the piece just decoded (`post_decode`)."""
    copy_to_children(server)
    for slot in server.slots:
        if not begin <= slot.i_batch < end:
            continue
        if slot.state is SlotState.DONE_PROMPT and slot.running.is_embedded:
            server.finish(slot, "embedded")  # send_embedding, send_rerank
            continue
        if slot.state is SlotState.DONE_PROMPT:
            checkpoint_at_the_end(server, slot, slot.running)
            slot.move(SlotState.GENERATING)
            slot.ngrams_checked = slot.prompt.n_tokens  # upstream: `common_ngram_map_begin`
            if not server.rules.slots.ngrams_outlive:
                slot.ngrams = NgramCache()  # #27866; `begin` does nothing otherwise
        elif slot.state is not SlotState.GENERATING:
            continue
        if slot.draft:
            continue
        row = server.contexts.target.logits(slot.i_batch - begin)
        slot.i_batch = NO_ROW
        process_token(server, slot, next_token(server, slot, row), row)
    if server.may_draft:
        verify_drafts(server, begin, end)


def copy_to_children(server: ServerContext) -> None:
    """Children of a prompt that is done take its parent's state over (`copy_state_to`)."""
    for slot in server.slots:
        if slot.state is not SlotState.DONE_PROMPT or not slot.running.is_parent:
            continue
        for child in server.slots:
            waits = child.state is SlotState.WAIT_OTHER
            if not waits or child.running.id_parent != slot.running.id:
                continue
            server.contexts.replace(slot.id, child.id)
            child.prompt = slot.prompt.clone()
            child.n_prompt_tokens_cache = slot.n_prompt_tokens_cache
            child.n_prompt_tokens_processed = slot.n_prompt_tokens_processed
            child.approximated = slot.approximated
            child.i_batch = slot.i_batch
            child.running.ledger = slot.running.ledger
            child.move(SlotState.DONE_PROMPT)
            server.emit(
                ParentCopied(
                    slot=child.id,
                    task=child.running.id,
                    parent=slot.id,
                    n_tokens=slot.prompt.n_tokens,
                )
            )
