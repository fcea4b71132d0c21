"""A pass over the slots: upstream's `update_slots`, block by block.

b11549 has it in four functions, `update_slots`, `pre_decode`, `decode` and `post_decode`; earlier
releases have the same blocks in the same order in one. `process_token` is in `server_context`,
drafts in `speculative`.

    pass     shift full contexts | draft | sampled tokens and drafts | prompts, while there is room
             decode the batch piece by piece; after each piece: children, tokens, verified drafts
"""

from collections.abc import Sequence
from typing import Any, Final

from cachesim.engines.causes import Cause
from cachesim.engines.llamacpp.checkpoints import (
    Prefix,
    accept_tests,
    checkpoint_at_the_end,
    checkpoint_here,
    erase_checkpoints,
    gets_checkpoints,
    numbers_of,
    restore,
)
from cachesim.engines.llamacpp.drafter import Drafter, NgramCache
from cachesim.engines.llamacpp.media import (
    NO_CHUNK,
    is_between_images,
    next_image,
    process_chunks,
    whole_chunks,
)
from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.selection import try_clear_idle_slots
from cachesim.engines.llamacpp.server_batch import Piece, ServerBatch, advance, pass_over_replies
from cachesim.engines.llamacpp.server_context import (
    ServerContext,
    apply_lora,
    next_token,
    process_token,
    window_of,
)
from cachesim.engines.llamacpp.slot import NO_ROW, Checkpoint, Slot, SlotState, Task
from cachesim.engines.llamacpp.speculative import make_drafts, verify_drafts
from cachesim.engines.llamacpp.vocabulary import causes, events
from cachesim.engines.tokens import get_common_prefix
from cachesim.errors import UpstreamAbort, UpstreamEndless
from cachesim.units import NO_POS, Count, Token

SERVER_ERROR: Final = "server_error"
EXCEEDED: Final = "exceed_context_size_error"

EMPTY_TURNS: Final = 3
"""Maximum consecutive passes with nothing to decode; one more ends the process."""

AT_A_PROMPT: Final = (SlotState.STARTED, SlotState.PROCESSING_PROMPT)

VAIN_TURNS: Final = 10
"""Number of such passes after which a server that does not end is reported as endless."""


class BatchError(Exception):
    """A final failure of a decode: all busy slots get this error."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def update_slots(server: ServerContext) -> None:
    """Fill the batch, decode it, process the sampled tokens (upstream: `update_slots`)."""
    if not server.is_busy:
        return
    # While all busy slots only append tokens of known replies, nothing is decided: these passes are
    # run as one.
    pass_over_replies(server)
    batch = pre_decode(server)
    _count_empty(server, batch)
    off, n_batch = 0, server.n_batch
    try:
        while off < batch.length:
            # A piece that found no room is decoded again from the same offset: only `n_batch` has
            # changed.
            off_next, n_batch = decode(server, batch, off, n_batch)
            if off_next > off:
                post_decode(server, off, off_next)
            off = off_next
    except BatchError as error:
        abort_all_slots(server, error)


def _count_empty(server: ServerContext, batch: ServerBatch) -> None:
    """Count passes with nothing to decode (upstream: `if (++n_empty_consecutive > 3)`, #20277)."""
    # A pass after which no slot is busy resets the count: any number of empty or overlong prompts
    # may follow one another (observed on all wheels).
    if batch.length or not server.is_busy:
        server.n_empty_consecutive = 0
        return
    server.n_empty_consecutive += 1
    where = "update_slots"
    # Releases of May and June end the process here.
    if server.n_empty_consecutive > EMPTY_TURNS and server.rules.loop.empty_batches_abort:
        raise UpstreamAbort(where, "too many consecutive empty batches")
    # Trap: from b9873 on an empty batch does not reach upstream's test. Such a server loops forever
    # without a reply, which is reported after some passes.
    if server.n_empty_consecutive > VAIN_TURNS:
        raise UpstreamEndless(where, "a slot is busy and has nothing to decode")


# -- pre_decode ------------------------------------------------------------------------------------


def pre_decode(server: ServerContext) -> ServerBatch:
    """Shift full contexts, draft, and fill the batch (upstream: `pre_decode`)."""
    for slot in server.slots:
        # Full is one token less than the context: the sampled token, not in the slot yet, needs it.
        if len(slot.prompt.tokens) + 1 < slot.n_ctx:
            continue
        # Until #16818 a slot whose prompt has not started is shifted too: it has the former
        # prompt's tokens.
        checked = slot.is_processing and server.rules.loop.shift_checks_new_prompts
        if checked or slot.state is SlotState.GENERATING:
            shift_context(server, slot)
    make_drafts(server)
    batch = ServerBatch()
    for slot in server.slots:  # in order of their ids, upstream: `handle_last_sampled_token`
        if slot.state is SlotState.GENERATING and batch.admits(slot):
            # End the process if sampled and drafted tokens exceed a batch (`common_batch_add`).
            #
            # Trap: the drafts are made without a check for room. Observed on the wheels from b9294
            # to b9873, and on b11549 with another message; if recurrent states have planes, a
            # single draft longer than the batch ends the process before, when it is split.
            if len(batch) + 1 + len(slot.draft) > max(server.n_batch, len(server.slots)):
                where, why = "common_batch_add", "llama_batch size exceeded"
                raise UpstreamAbort(where, why)
            slot.i_batch = batch.add(slot, [slot.sampled, *slot.draft], output=True)
    # Without continuous batching a prompt waits until no slot generates.
    if server.options.cont_batching or not batch.length:
        add_prompts(server, batch)
    return batch


def shift_context(server: ServerContext, slot: Slot) -> None:
    """Keep the first tokens, discard some, move the rest down (upstream: "apply context-shift").

    before   [ n_keep | n_discard | rest ...... )
    after    [ n_keep | rest ...... )
    """
    task, n_tokens = slot.running, int(slot.prompt.n_tokens)
    if not server.shifts_context:
        server.finish(slot, "error", SERVER_ERROR, "context shift is disabled")
        return
    if task.is_parent or task.is_child:
        message = "context shift cannot be used for shared prompt"
        server.finish(slot, "error", SERVER_ERROR, message)
        return
    # A negative `n_keep` keeps the whole prompt.
    n_keep = task.n_tokens if task.params.n_keep < 0 else task.params.n_keep
    n_keep = min(slot.n_ctx - 4, n_keep)
    n_left = n_tokens - n_keep
    n_discard = task.params.n_discard or n_left // 2
    # Without the clamp (#24786) a request may discard more tokens than remain after `n_keep`.
    if server.rules.slots.discard_is_clamped:
        n_discard = min(max(n_discard, 0), max(0, n_left - 1))
    server.emit(
        events.ContextShifted(
            slot=slot.id, task=task.id, n_keep=n_keep, n_left=n_left, n_discard=n_discard
        )
    )
    # Trap: hybrid and recurrent memories accept both calls; only the position moves, and the state
    # keeps the discarded tokens.
    server.contexts.seq_rm(slot.id, n_keep, n_keep + n_discard)
    server.contexts.seq_add(slot.id, n_keep + n_discard, n_tokens, -n_discard)
    del slot.prompt.tokens[n_keep : n_keep + n_discard]
    # Older releases keep the checkpoints, which then belong to other tokens.
    if server.rules.slots.shift_drops_checkpoints:
        slot.prompt.checkpoints.clear()
    # By design the rest keeps keys and values that were computed after the discarded tokens.
    slot.prompt.approximate_from(n_keep, "context-shift")
    slot.approximated = "context-shift"
    slot.truncated = True


def add_prompts(server: ServerContext, batch: ServerBatch) -> None:
    """Batch pending prompts without exceeding `n_batch`, in order of slot ids.

    Upstream: `iterate(slots, ...)` of "next, batch any pending prompts".
    """
    for slot in server.slots:
        # Other adapters or another kind of task: the slot waits for a batch of its own.
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
        # A low id with a long prompt fills the batch of every pass, and higher ids wait.
        if batch.length >= server.n_batch and slot.is_processing:
            break


def add_prompt(server: ServerContext, slot: Slot, batch: ServerBatch) -> None:
    """Add a prompt's tokens up to the break of the loop, and save the state before them.

        prompt   [ cached | earlier batches | this batch | ................. )
                                            n_tokens_start   slot.prompt.n_tokens after it

    Upstream: the code after `SLOT_STATE_STARTED`, from `seq_rm` to `create_checkpoint`.
    """
    task, n_batch = slot.running, server.n_batch
    # At every pass of the prompt, as upstream; only the first one can remove tokens.
    cut_memory(server, slot)
    media = process_chunks(server, slot) if task.images else False
    if media is None:
        return
    # Until #19408 the state is saved after the whole prompt is decoded (`checkpoint_at_the_end`).
    do_checkpoint = gets_checkpoints(server, task) and server.rules.checkpoints.before_the_end
    n_tokens_start = len(slot.prompt.tokens)
    n_tokens = min(
        break_at(server, slot, task, do_checkpoint=do_checkpoint),
        n_tokens_start + max(0, n_batch - batch.length),
    )
    batch.add(slot, task.tokens[n_tokens_start:n_tokens], output=task.is_embedded)
    slot.n_prompt_tokens_processed += n_tokens - n_tokens_start
    if n_tokens == task.n_tokens:
        if not batch.length:  # a prompt swapped into a busy slot may contain all of it
            where = "update_slots"
            raise UpstreamAbort(where, "batch.n_tokens > 0 when a prompt is done")
        slot.move(SlotState.DONE_PROMPT)
        slot.i_batch = batch.length - 1
        batch.want_last()
    # The batch is not decoded yet: memory holds the state of the tokens before it. Trap: a pass
    # that decoded an image saves nothing, even at the start of a user message.
    if do_checkpoint and not media and _is_place(server, slot, task, n_tokens_start, batch.length):
        checkpoint_here(server, slot, task, n_tokens_start)


def break_at(server: ServerContext, slot: Slot, task: Task, *, do_checkpoint: bool) -> int:
    """The length at which the loop that fills the batch breaks, apart from the batch's own limit.

    Follows upstream's loop `while (slot.prompt.n_tokens() < slot.task->n_tokens() && ...)`, which
    appends one token at a time. What it compares `n_tokens()` with does not change meanwhile, so it
    breaks at the first of these numbers after the current one. A test compares both.
    """
    n_tokens, whole = len(slot.prompt.tokens), len(task.tokens)
    n_batch, n_ubatch = server.n_batch, server.n_ubatch
    # #24035, later form: the common prefix, where a state will be saved; else -1.
    stops = [slot.split_at]
    if do_checkpoint:
        # Two stops before the end (#20288): a template's opening of the reply often ends a prompt,
        # and the next turn lacks it. A state just before it can be resumed.
        checkpoint_offsets = (4 + n_ubatch, 4)
        stops += [whole - min(n_batch, offset) for offset in checkpoint_offsets]
    match server.rules.checkpoints.placement:
        case "last-user":  # n_before_user; whether or not the request gets checkpoints
            stops.append(int(task.params.last_user_start))
        case "user-starts" if do_checkpoint:
            # Since #24176 every user message, so that an edited message can be resumed at its
            # start.
            stops += [int(at) for at in task.params.user_starts if _breaks(server, slot, task, at)]
    first = max(n_tokens, next_image(task, n_tokens) if task.images else whole)
    for stop in stops:
        # The loop tests after it has appended a token: a stop at the current length is passed over.
        if n_tokens < stop < first:
            first = stop
    return first


def _breaks(server: ServerContext, slot: Slot, task: Task, pos: int) -> bool:
    """True if a batch ends at this user message (upstream: `spans.is_user_start`)."""
    # Trap: the list does not include this batch's own checkpoint yet, so a batch may end where
    # nothing is saved afterwards.
    checkpoints = slot.prompt.checkpoints
    return (
        not server.rules.checkpoints.cuts_heed_spacing
        or pos == task.params.last_user_start
        # The last user message is exempt from the distance (#24176).
        or not checkpoints
        or pos > checkpoints[-1].n_tokens + server.options.checkpoint_min_step
    )


def _is_place(
    server: ServerContext, slot: Slot, task: Task, n_tokens_start: int, n_batched: int
) -> bool:
    """True if a checkpoint may be created here (upstream: `do_checkpoint`, first part)."""
    params, n_tokens = task.params, slot.prompt.n_tokens
    near_prompt_end = task.n_tokens < n_tokens + server.n_ubatch
    # #24035, later form: the batch before was cut at the common prefix for this state.
    if n_tokens_start == slot.split_at:
        return True
    match server.rules.checkpoints.placement:
        case "every":  # --checkpoint-every-n-tokens, in the middle of a prompt
            every = server.options.checkpoint_every_nt
            # Trap: `n_batched` counts the whole batch, other slots' tokens too, which makes the
            # distance shorter.
            last = slot.prompt.checkpoints[-1].n_tokens if slot.prompt.checkpoints else 0
            return near_prompt_end or 0 < every <= n_tokens - n_batched - last
        case "last-user":
            n_before_user = params.last_user_start
            # Not known, or a user message at token 0: only the end of the prompt is left.
            if n_before_user <= 0:
                return near_prompt_end
            after = n_tokens_start > n_before_user
            return n_tokens_start == n_before_user or (after and near_prompt_end)
        case "user-starts":
            return near_prompt_end or n_tokens_start in params.user_starts


# -- decode ----------------------------------------------------------------------------------------


def decode(server: ServerContext, batch: ServerBatch, off: int, n_batch: int) -> tuple[int, int]:
    """Decode one piece; return its end, and the size of the next piece.

    Upstream: `decode`.
    """
    off_next = min(off + n_batch, batch.length)
    piece = batch.piece(off, off_next)
    ret = _decode(server, batch, piece)
    if ret == 0:
        server.emit(events.BatchDecoded(n_tokens=off_next - off, slots=piece.slots()))
        # A success restores the full size, however small the piece had become.
        return off_next, server.n_batch
    # One token without room: the requests of all busy slots fail, see `abort_all_slots`.
    if n_batch == 1 and ret == 1:
        raise BatchError(SERVER_ERROR, "Context size has been exceeded.")
    if ret == -1:
        raise BatchError(SERVER_ERROR, "Invalid input batch.")
    if ret < -1:
        raise BatchError(SERVER_ERROR, "Compute error.")
    # No room (code 1): an idle slot is purged, unsaved; without one the piece is halved. The same
    # tokens are tried again.
    if not try_clear_idle_slots(server):
        n_batch //= 2
    server.emit(events.BatchRetried(offset=off, n_batch=n_batch, ret=ret))
    return off, n_batch


def _decode(server: ServerContext, batch: ServerBatch, piece: Piece) -> int:
    """Decode a piece with the target, then with its companion (`llama_decode`)."""
    target = server.contexts.target
    # Without a network only the memory decides, and it may place a whole run at once.
    if not target.computes and server.drafter is None:
        named = piece.named()
        if named is not None and advance(target, named):
            return 0
    view = piece.batch()
    apply_lora(server, batch.lora or ())
    target.all_outputs = batch.embeds
    ret = target.decode(view)
    # Only after a success of the target, so that both memories hold the same tokens.
    if ret == 0 and server.drafter is not None:
        _feed_companion(server, server.drafter, view)
    return ret


def _feed_companion(server: ServerContext, drafter: Drafter, view: Batch) -> None:
    """Decode the same piece with the companion (upstream: `common_speculative_process`)."""
    ret = drafter.process(view, server.contexts.target)
    if ret != 0:
        server.emit(events.CompanionFailed(ret=ret))
        # Older releases drop the rest of the pass without an error; later ones fail all busy slots.
        fatal = server.rules.loop.process_failure_is_fatal
        raise BatchError(SERVER_ERROR if fatal else "", "failed to process speculative batch")


def abort_all_slots(server: ServerContext, failure: BatchError) -> None:
    """Fail, release and clear every busy slot; without an error only end the pass."""
    if not failure.error:
        return
    # Not only the slot that found no room: every busy request fails.
    for slot in server.slots:
        if slot.is_processing:
            server.finish(slot, "error", failure.error, failure.message)
            server.prompt_clear(slot)


# -- post_decode -----------------------------------------------------------------------------------


def post_decode(server: ServerContext, begin: int, end: int) -> None:
    """Process children, sampled tokens and drafts of the decoded piece (`post_decode`)."""
    # Before any token is sampled: a child samples from its parent's row.
    copy_to_children(server)
    for slot in server.slots:
        if not begin <= slot.i_batch < end:
            continue
        if slot.state is SlotState.DONE_PROMPT and slot.running.is_embedded:
            server.finish(slot, "embedded")  # send_embedding, send_rerank
            continue
        if slot.state is SlotState.DONE_PROMPT:
            # Until #19408 the only checkpoint of a prompt.
            checkpoint_at_the_end(server, slot, slot.running)
            slot.move(SlotState.GENERATING)
            slot.ngrams_checked = slot.prompt.n_tokens  # upstream: `common_ngram_map_begin`
            if not server.rules.slots.ngrams_outlive:
                slot.ngrams = NgramCache()  # #27866; `begin` does nothing otherwise
        elif slot.state is not SlotState.GENERATING:
            continue
        # `verify_drafts` samples these, after all slots without a draft.
        if slot.draft:
            continue
        row = server.contexts.target.logits(slot.i_batch - begin)
        slot.i_batch = NO_ROW
        process_token(server, slot, next_token(server, slot, row), row)
    if server.may_draft:
        verify_drafts(server, begin, end)


def copy_to_children(server: ServerContext) -> None:
    """Copy the state of a finished prompt to its children (`copy_state_to`)."""
    for slot in server.slots:
        if slot.state is not SlotState.DONE_PROMPT or not slot.running.is_parent:
            continue
        for child in server.slots:
            waits = child.state is SlotState.WAIT_OTHER
            if not waits or child.running.id_parent != slot.running.id:
                continue
            # What the child's slot held before is lost, unsaved.
            server.contexts.replace(slot.id, child.id)
            child.prompt = slot.prompt.clone()
            child.n_prompt_tokens_cache = slot.n_prompt_tokens_cache
            child.n_prompt_tokens_processed = slot.n_prompt_tokens_processed
            child.approximated = slot.approximated
            child.i_batch = slot.i_batch
            child.running.ledger = slot.running.ledger
            child.move(SlotState.DONE_PROMPT)
            server.emit(
                events.ParentCopied(
                    slot=child.id,
                    task=child.running.id,
                    parent=slot.id,
                    n_tokens=slot.prompt.n_tokens,
                )
            )


def start_prompt(server: ServerContext, slot: Slot) -> bool:
    """Determine the reused tokens; False if the request ends here (`SLOT_STATE_STARTED`)."""
    task = slot.running
    slot.move(SlotState.PROCESSING_PROMPT)
    server.emit(
        events.PromptStarted(
            slot=slot.id,
            task=task.id,
            n_ctx_slot=slot.n_ctx,
            n_keep=task.params.n_keep,
            n_tokens=task.n_tokens,
        )
    )
    if not task.tokens:  # an empty prompt: release the slot and send an empty response
        slot.n_prompt_tokens_cache = Count(0)
        server.finish(slot, "empty")
        return False
    if not can_split(server, task):
        return _start_whole(server, slot, task)
    # `>=`: the first sampled token needs a place too, with or without context shift. Trap: the slot
    # has been swapped with the prompt cache by now, and stays swapped.
    if task.n_tokens >= slot.n_ctx:
        message = (
            f"request ({task.n_tokens} tokens) exceeds the available context size "
            f"({slot.n_ctx} tokens), try increasing it"
        )
        server.finish(slot, "error", EXCEEDED, message)
        return False
    n_past = _common_prefix(server, slot, task)
    # The part of a common prefix that memory or a checkpoint can resume.
    #
    # Upstream: from `pos_next` to the erasure. Trap: with a window the depth test fails if the
    # prefix is not longer than the window, although every cell exists. With a recurrent state it
    # fails unless the prompt only appends tokens.
    rules = server.rules.reuse
    has_new_tokens = n_past < task.n_tokens  # #24110
    spares = rules.thold_spares_one
    # One token less (#23280), so that the last token can be computed from the state; since #24110
    # only for a prompt without new tokens.
    spared = 1 if spares == "always" or (spares != "never" and not has_new_tokens) else 0
    prefix = Prefix(
        n_past=n_past,
        pos_next=n_past,
        prefix_end=n_past,
        pos_min_thold=max(0, n_past - server.n_swa - spared),
        n_prompt=task.n_tokens,
    )
    # The oldest releases skip the test if all slot tokens match (`<`, not `<=`). A recurrent state
    # that gets its own tokens again then refuses the cut.
    most = slot.prompt.n_tokens - (1 if rules.depth_test_skips_extensions else 0)
    if 0 < n_past <= most:
        prefix = _deep_enough(server, slot, task, prefix)
    # Also with `cache_prompt` off: `pos_next` is 0 then, and only states at position 0 survive.
    erase_checkpoints(server, slot, task, prefix)
    n_past = prefix.n_past
    # At least one token is decoded, because without logits nothing can be sampled.
    if n_past == task.n_tokens:  # [TAG_PROMPT_LOGITS]
        server.emit(
            events.OneTokenNeeded(slot=slot.id, task=task.id, n_past=n_past, n_tokens=task.n_tokens)
        )
        n_past, slot.keeps_last_cell = n_past - 1, server.rules.reuse.last_token_after_cut
        task.ledger.apply(causes.LAST_TOKEN, n_past, n_tokens=task.n_tokens)
    # `find_chunk` looks for a chunk that begins at the token before the cut, and finds none.
    fails = task.images and rules.cut_between_images != "cut"
    if fails and is_between_images(server, slot, n_past):
        if rules.cut_between_images == "abort":
            where = "server_tokens::find_chunk"
            raise UpstreamAbort(where, NO_CHUNK)
        server.finish(slot, "error", "server_error", f"got exception: {NO_CHUNK}")
        return False
    _commit(slot, n_past)
    return True


def can_split(server: ServerContext, task: Task) -> bool:
    """True if a prompt may be decoded in pieces, and after reused tokens (upstream's name)."""
    if not task.is_embedded:
        return True
    # Pooled from the last token alone, an embedding does not need all tokens in one ubatch.
    pooling = server.options.pooling
    return pooling == "last" or (pooling == "rank" and server.rules.requests.rank_is_last)


def _start_whole(server: ServerContext, slot: Slot, task: Task) -> bool:
    """Start a prompt whose embeddings need one ubatch (upstream: `if (!slot.can_split())`)."""
    n_ubatch = server.n_ubatch
    if task.n_tokens > n_ubatch:
        message = (
            f"input ({task.n_tokens} tokens) is too large to process. increase the physical batch "
            f"size (current batch size: {n_ubatch})"
        )
        server.finish(slot, "error", "server_error", message)
        return False
    if task.n_tokens > slot.n_ctx:
        message = (
            f"input ({task.n_tokens} tokens) is larger than the max context size "
            f"({slot.n_ctx} tokens). skipping"
        )
        server.finish(slot, "error", EXCEEDED, message)
        return False
    task.ledger.apply(causes.READ_WHOLE, 0, pooling=server.options.pooling)
    # Trap: `erase_checkpoints` is not reached: the slot's old checkpoints stay, and later prompts
    # may find them.
    _commit(slot, 0)
    return True


def _why_no_reuse(server: ServerContext, task: Task) -> Cause:
    if task.is_embedded:
        return causes.EMBEDDING_REUSES_NOTHING
    if not server.options.cache_prompt:
        return causes.SERVER_REUSES_NOTHING
    return causes.CACHE_PROMPT_OFF


def _common_prefix(server: ServerContext, slot: Slot, task: Task) -> int:
    """Number of tokens that slot and prompt share, moved chunks included.

    Upstream: `if (slot.task->params.cache_prompt)` and its `else`.
    """
    # Trap: by now the prompt cache has been asked, whatever the request says.
    if not task.params.cache_prompt:
        task.ledger.apply(_why_no_reuse(server, task), 0)
        return 0
    # An image matches whole or not at all.
    n_past = whole_chunks(task, int(get_common_prefix(slot.prompt.tokens, task.tokens)))
    task.ledger.apply(causes.SLOT_TOKENS, n_past, slot=int(slot.id))
    if task.params.n_cache_reuse > 0 and server.can_shift:
        n_past = reuse_chunks(server, slot, task, n_past)
        task.ledger.apply(causes.CHUNK_REUSE, n_past, n_cache_reuse=task.params.n_cache_reuse)
    return n_past


def reuse_chunks(server: ServerContext, slot: Slot, task: Task, n_past: int) -> int:
    """Keep parts of the old prompt that moved towards its start.

        slot     [ equal | deleted | chunk ........ | ... )
                         head_p    head_c           head_c + n_match
        becomes  [ equal | chunk ........ )
                         head_p           head_p + n_match

    Upstream: `while (head_c < slot.prompt.tokens.size() && head_p < input_tokens.size())`.
    """
    tokens, prompt = slot.prompt.tokens, task.tokens
    lost = False  # #12160: a removal after the rest has moved removes cells that should stay
    head_c = head_p = n_past
    while head_c < len(tokens) and head_p < len(prompt):
        n_match = _matching(tokens, head_c, prompt, head_p)
        # Trap: the head of the new prompt moves only with a match, so deletions are recognised, and
        # one token inserted or changed ends the reuse.
        if n_match < task.params.n_cache_reuse:
            head_c += 1
            continue
        server.emit(
            events.ChunkReused(
                slot=slot.id, task=task.id, size=n_match, source=head_c, target=head_p
            )
        )
        # Trap: a recurrent state still includes the deleted tokens.
        server.contexts.seq_rm(slot.id, head_p, head_c)
        end = head_c + n_match
        # Until #12161 everything after the chunk moves with it, not the chunk alone.
        if server.rules.reuse.chunk_moves_the_rest:
            end, lost = -1, lost or slot.prompt.approximate is not None
        server.contexts.seq_add(slot.id, head_c, end, head_p - head_c)
        # A chunk that stays where it is equals the prompt there; only moved keys are approximate.
        if head_c != head_p:
            slot.prompt.approximate_from(head_p, "chunk-reuse")
        tokens[head_p : head_p + n_match] = tokens[head_c : head_c + n_match]
        n_past += n_match
        head_c += n_match
        head_p += n_match
    if lost:
        slot.prompt.approximate = None  # an error of the release, not by design
    return n_past


def _matching(tokens: Sequence[Token], head_c: int, prompt: Sequence[Token], head_p: int) -> int:
    most = min(len(tokens) - head_c, len(prompt) - head_p)
    n_match = 0
    while n_match < most and tokens[head_c + n_match] == prompt[head_p + n_match]:
        n_match += 1
    return n_match


def _deep_enough(server: ServerContext, slot: Slot, task: Task, prefix: Prefix) -> Prefix:
    """The prefix unchanged, from a checkpoint, or empty (upstream: `do_reset`)."""
    pos_min = server.contexts.target.seq_pos_min(slot.id)
    if pos_min == NO_POS:
        where = "update_slots"
        raise UpstreamAbort(where, "pos_min == -1, but n_past > 0 (#13833)")
    server.emit(
        events.DepthTested(
            slot=slot.id,
            task=task.id,
            n_past=prefix.n_past,
            slot_tokens=slot.prompt.n_tokens,
            pos_min=pos_min,
            threshold=prefix.pos_min_thold,
            n_swa=server.n_swa,
            rule="pos_min >= pos_min_thold",
            numbers=f"{pos_min} >= {prefix.pos_min_thold}",
        )
    )
    # With full attention `pos_min` is 0, so only a threshold of 0 gets past this line: a prompt of
    # one token, sent again.
    if not pos_min >= prefix.pos_min_thold:
        return prefix
    refused: list[dict[str, Any]] = []
    it = _find_checkpoint(server, slot, task, prefix, refused)
    # Older releases reprocess everything if the state does not load; later ones end the process.
    do_reset = it is None or not restore(server, slot, it)
    window = window_of(server.network)  # in memory, even where `--swa-full` hides it
    why = {"pos_min": pos_min, "threshold": prefix.pos_min_thold, "n_swa": window}
    if it is None or do_reset:
        server.emit(events.FullReprocessing(slot=slot.id, task=task.id))
        task.ledger.apply(causes.FULL_REPROCESSING, 0, **why, checkpoints=refused)
        return prefix.resumed(0, 0)
    task.ledger.apply(causes.MEMORY_DEPTH, 0, **why, checkpoints=refused)
    return _resume_from(server, slot, task, it, prefix)


def _find_checkpoint(
    server: ServerContext, slot: Slot, task: Task, prefix: Prefix, refused: list[dict[str, Any]]
) -> Checkpoint | None:
    """The newest checkpoint that passes (upstream: `std::find_if` from `rbegin`).

    slot         [ common with the prompt | other tokens ..... )
    passes       [ its tokens ..... )
    is refused   [ its tokens .................. )
    """
    # Trap: the list is in order of creation, which may differ from that of length.
    candidates = slot.prompt.checkpoints[::-1]
    # #24035, later form: the longest one, in whatever order they were made.
    if server.is_exact and server.rules.reuse.exact_search == "longest":
        candidates.sort(key=lambda candidate: -candidate.n_tokens)
    thold = prefix.pos_min_thold
    tests = accept_tests(server.rules.reuse, exact=server.is_exact, thold=thold)
    for cur in candidates:
        failed = next((test.refused_if for test in tests if not test.passes(cur, prefix)), "")
        numbers = numbers_of(failed, cur, prefix)
        server.emit(
            events.CheckpointChecked(
                slot=slot.id,
                task=task.id,
                **cur.as_dict(),
                threshold=thold,
                pos_next=prefix.pos_next,
                refused=failed,
                numbers=numbers,
            )
        )
        if not failed:
            return cur
        refused.append({**cur.as_dict(), "refused": failed, "numbers": numbers})
    return None


def _resume_from(
    server: ServerContext, slot: Slot, task: Task, it: Checkpoint, prefix: Prefix
) -> Prefix:
    """Resume from a checkpoint: an exact state has all of its tokens, a window one token less.

    Upstream: `pos_next` and `n_past` after "restore the context checkpoint".

        window of 4        keys of the checkpoint      the next token attends to
            restored           [ 29 30 31 32 ]             29 30 31 and itself, 32
            saved at once         29 30 31                 28 29 30 if 31 is resumed
    """
    # Trap: a checkpoint from before a context shift belongs to other tokens by now. Its values are
    # no approximation by design of the server.
    slot.prompt.approximate = it.approximate
    last = 1 if server.rules.reuse.resumes_behind else 0
    # For an exact state `pos_min + 1` is larger: all of its tokens count. For a window it is
    # `pos_max`: the last token is decoded again. Trap: the checkpoint that is saved right there has
    # one key less than the restored one, and the depth test uses the prompt's own position, not
    # this one.
    pos_next = min(prefix.pos_next, max(it.pos_min + 1, it.pos_max + last))
    n_past = min(pos_next, slot.prompt.n_tokens, it.n_tokens)
    server.emit(
        events.CheckpointRestored(
            slot=slot.id,
            task=task.id,
            **it.as_dict(),
            n_past=n_past,
            size=it.size,
            made_by=it.id_task,
        )
    )
    task.ledger.apply(causes.CHECKPOINT_RESTORED, n_past, **it.as_dict())
    # #24035, later form: the next batch ends at the common prefix, and the state there is saved.
    if server.rules.checkpoints.split_at_prefix and n_past < prefix.prefix_end:
        slot.split_at = prefix.prefix_end
    return prefix.resumed(n_past, pos_next)


def _commit(slot: Slot, n_past: int) -> None:
    """Set the cached count and drop the slot's other tokens (upstream: `keep_first(n_past)`)."""
    slot.n_prompt_tokens_cache = Count(n_past)
    slot.n_prompt_tokens_processed = 0
    slot.prompt.keep_first(n_past)
    slot.prompt.take_shape_of(slot.running.tokens)
    if slot.prompt.approximate is not None:
        slot.approximated = slot.prompt.approximate.why


def cut_memory(server: ServerContext, slot: Slot) -> None:
    """Remove the memory's tokens beyond the slot's; not every memory can.

    Upstream: `slot.mem.seq_rm(slot.id, p0, -1)`.

        memory   [ cached ... p0 | removed ..... )
    """
    # Until #5420 a last token to recompute keeps its cell, and gets another one.
    task, p0 = slot.running, slot.prompt.n_tokens + (1 if slot.keeps_last_cell else 0)
    slot.keeps_last_cell = False
    removed = server.contexts.try_seq_rm(slot.id, p0)
    server.emit(events.MemoryCut(slot=slot.id, task=task.id, n_tokens=p0, p0=p0, removed=removed))
    if removed:
        return
    match server.rules.reuse.seq_rm_failure:
        case "abort":
            # Only chunk reuse gets here: the checkpoint tests of these releases leave nothing to
            # cut.
            where = "common_memory::seq_rm"
            raise UpstreamAbort(where, f"sequence {slot.id} cannot be cut at position {p0}")
        case "assert":
            # The oldest releases clear the slot, which asserts that it is idle; it is not.
            where = "server_slot::prompt_clear"
            raise UpstreamAbort(where, "!is_processing()")
        case "warn":
            # #24891: the slot drops the tokens, the memory keeps them.
            return
        case "checkpoint" if _fall_back(server, slot, task, p0):
            return
        case _:
            # Everything is processed again; the checkpoints stay.
            server.prompt_clear(slot)
            slot.n_prompt_tokens_cache = Count(0)
            task.ledger.apply(causes.SEQ_RM_REFUSED, 0, p0=p0)


def _fall_back(server: ServerContext, slot: Slot, task: Task, p0: int) -> bool:
    """#20428: instead of clearing everything, restore the newest state before the cut."""
    for cur in reversed(slot.prompt.checkpoints):
        if cur.pos_max < p0 and restore(server, slot, cur):
            n_past = int(cur.n_tokens)
            server.contexts.seq_rm(slot.id, n_past, -1)
            _commit(slot, n_past)
            task.ledger.apply(causes.CHECKPOINT_FALLBACK, n_past, p0=p0, **cur.as_dict())
            return True
    return False
