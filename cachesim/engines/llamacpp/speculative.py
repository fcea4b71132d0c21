"""Speculative decoding: drafts of a companion, verified and rolled back.

slot tokens   [ ... | sampled | draft 0 | draft 1 | draft 2 )
accepted              [ draft 0 | new )           rollback = 1 + 3 - 2
"""

from typing import Final

from cachesim.engines.llamacpp.drafter import CACHED, Drafter
from cachesim.engines.llamacpp.memory.blob import Blob
from cachesim.engines.llamacpp.memory.create import SeqRm
from cachesim.engines.llamacpp.server_context import (
    ServerContext,
    budget_left,
    next_token,
    process_token,
)
from cachesim.engines.llamacpp.slot import NO_ROW, Slot, SlotState, SpecCheckpoint
from cachesim.engines.llamacpp.vocabulary.events import DraftMade, DraftVerified
from cachesim.errors import ContractError, UpstreamAbort
from cachesim.units import Array, Pos, Token

NGRAM_NEEDS: Final = 2 * 12 + 48
"""Minimum tokens for a lookup in the map: two keys of 12 and a value of 48, the defaults."""


def make_drafts(server: ServerContext) -> None:
    """Draft for every generating slot, before a batch is filled.

    Upstream: "generate the drafts" in `update_slots`.
    """
    if not server.may_draft:
        return
    for slot in server.slots:
        # A draft left from the pass before is the accepted part of a restored one: it is decoded
        # again as it is.
        if slot.state is not SlotState.GENERATING or slot.draft:
            continue
        if server.drafter is not None:
            _make_draft(server, server.drafter, slot)
        elif server.options.maps_ngrams:
            _look_up_ngrams(server, slot)
        elif server.options.spec_type == CACHED and slot.running.params.reply is not None:
            _draft_from_ngrams(server, slot)


def _look_up_ngrams(server: ServerContext, slot: Slot) -> None:
    """End the process if the map of n-grams has processed more tokens than there are.

    slot tokens   [ ......................... )         processed up to here
    after a shift [ keep | the second half )            the next call: abort

    Upstream: `common_ngram_map_draft`, in every release with `--spec-type ngram-map-k` or
    `ngram-map-k4v`. Its proposals are not simulated.
    """
    looked, now = slot.ngrams_checked, slot.prompt.n_tokens
    # Too short for a single lookup, so upstream does not look at the tokens either.
    if _most(server, slot) <= 0 or now < NGRAM_NEEDS:
        return
    # A context shift does not reset the map, so it may have looked at more tokens than there are.
    if looked > now:
        where = "common_ngram_map_draft"
        msg = f"the n-gram map has looked at {looked} tokens, and there are {now}"
        raise UpstreamAbort(where, msg)
    slot.ngrams_checked = now


def _draft_from_ngrams(server: ServerContext, slot: Slot) -> None:
    """The proposal of the slot's n-grams, for a forced reply.

    Upstream: `common_speculative_impl_ngram_cache::draft`. With sampled replies the continuation of
    an n-gram depends on the network's logits, and no draft is simulated.
    """
    most = _most(server, slot)
    if most <= 0:
        return
    _keep_draft(server, slot, slot.ngrams.draft(slot.prompt.tokens, slot.sampled, most), most)


def _most(server: ServerContext, slot: Slot) -> int:
    # Two places stay free: for the sampled token, and for the one after the draft.
    limits = [server.options.spec_draft_n_max, slot.n_ctx - slot.prompt.n_tokens - 2]
    left = budget_left(server, slot)
    if left is not None:
        # The new token after the draft needs its share of the budget, so the limit is never
        # overshot.
        limits.append(left - 1)
    return min(limits)


def _make_draft(server: ServerContext, drafter: Drafter, slot: Slot) -> None:
    """Draft with the companion, then undo its changes (`common_speculative_draft`)."""
    most = _most(server, slot)
    if most <= 0:
        return
    companion, before = drafter.context, None
    # A companion that only removes whole sequences cannot cut its draft, so its state is saved.
    if server.companion_type is SeqRm.FULL:
        before = companion.state_seq_get_data(slot.id, partial=True)
    draft = _propose(drafter, slot, most)
    if before is not None:
        companion.state_seq_set_data(before, slot.id, partial=True)
    # The draft's tokens are decoded again beside the target's, as part of the next batch.
    companion.seq_rm(slot.id, server.contexts.target.seq_pos_max(slot.id) + 1, -1)
    _keep_draft(server, slot, draft, most, before)


def _keep_draft(
    server: ServerContext, slot: Slot, draft: list[Token], most: int, companion: Blob | None = None
) -> None:
    """Store a draft that is long enough, with the states for its rollback (`spec_ckpt`)."""
    target = server.contexts.target
    if len(draft) < server.options.spec_draft_n_min:
        draft = []
    slot.n_draft_total += len(draft)
    server.emit(DraftMade(slot=slot.id, task=slot.running.id, n_tokens=len(draft), most=most))
    saved = None
    # Saved now, because a memory that cannot be cut needs the state from before the draft.
    if draft and needs_checkpoint(server, len(draft)):
        saved = target.state_seq_get_data(slot.id, partial=True)
    slot.draft = draft
    slot.spec_checkpoint = SpecCheckpoint(
        n_tokens=slot.prompt.n_tokens,
        pos_max=Pos(target.seq_pos_max(slot.id)),
        target=saved,
        companion=companion,
    )


def _propose(drafter: Drafter, slot: Slot, most: int) -> list[Token]:
    forced = slot.running.params.drafts
    if forced is None:
        return drafter.draft(slot.id, slot.sampled, slot.prompt.n_tokens, most)
    step, slot.n_draft_steps = slot.n_draft_steps, slot.n_draft_steps + 1
    return list(forced[step][:most]) if step < len(forced) else []


def needs_checkpoint(server: ServerContext, tokens: int) -> bool:
    """True if a memory of this kind cannot roll back `tokens`."""
    if server.seq_rm_type is SeqRm.FULL:
        # Planes go back `n_rs_seq` tokens at most; a longer draft needs a saved state.
        return True
    return server.seq_rm_type is SeqRm.RS and tokens > server.contexts.target.n_rs_seq


def verify_drafts(server: ServerContext, begin: int, end: int) -> None:
    """Compare drafts with the target's tokens, in every slot of the decoded piece."""
    for slot in server.slots:
        if slot.state is SlotState.GENERATING and slot.draft and begin <= slot.i_batch < end:
            _verify(server, slot, slot.i_batch - begin, end - begin)


def _verify(server: ServerContext, slot: Slot, first: int, count: int) -> None:
    """Keep the tokens that match the target's, roll back the others (upstream: `use_ckpt_tgt`)."""
    drafted = slot.draft
    accepted, rows = _accepted(server, slot, first, count)
    rollback = len(drafted) + 1 - len(accepted)
    slot.i_batch = NO_ROW
    if rollback > 0 and needs_checkpoint(server, rollback):
        _report(server, slot, accepted, "checkpoint")
        # The memory cannot be cut: restore the start of the draft, and decode the accepted tokens
        # again.
        #
        # Upstream: `spec_ckpt.load_tgt`, `spec_ckpt.load_dft`.
        checkpoint, contexts = slot.spec_checkpoint, server.contexts
        if checkpoint is None:
            raise ContractError(f"slot {slot.id} verifies a draft that has no beginning")
        contexts.load_target(checkpoint.target, slot.id, partial=True)
        contexts.load_companion(checkpoint.companion, slot.id, partial=True)
        contexts.seq_rm(slot.id, checkpoint.pos_max + 1, -1)
        slot.prompt.keep_first(checkpoint.n_tokens)
        slot.draft = accepted
        slot.spec_is_replay = True
        return
    _report(server, slot, accepted, "cut" if rollback else "nothing")
    slot.draft = []
    _count_accepted(server, slot, len(accepted) - 1)
    if server.drafter is not None:
        server.drafter.accept(slot.id, len(accepted) - 1)
    # A rollback that fits is a cut: the rejected tail leaves the tokens, then the memory.
    tokens = slot.prompt.tokens
    del tokens[len(tokens) - len(drafted) :]
    tokens += accepted[:-1]
    slot.sampled = accepted[-1]
    server.contexts.seq_rm(slot.id, len(tokens), -1)
    for token, row in zip(accepted, rows, strict=False):
        # Trap: a stop inside the accepted run leaves the rest in the slot and in memory, so the
        # slot may hold more tokens than the reply.
        if not process_token(server, slot, token, row):
            break


def _accepted(
    server: ServerContext, slot: Slot, first: int, count: int
) -> tuple[list[Token], list[Array]]:
    """Matching draft tokens and one new one, with their rows (`sample_and_accept_n`)."""
    accepted: list[Token] = []
    rows: list[Array] = []
    for k in range(len(slot.draft) + 1):
        # Trap: with a full cache the server retries smaller pieces, and a piece may end within a
        # draft. The rows after it do not exist yet, and access to one ends the process.
        if first + k >= count:
            where = "common_sampler_sample"
            raise UpstreamAbort(where, "logits != nullptr: the piece ends within the draft")
        row = server.contexts.target.logits(first + k)
        token = next_token(server, slot, row, ahead=k)
        accepted.append(token)
        rows.append(row)
        if k == len(slot.draft) or token != slot.draft[k]:
            break
    return accepted, rows


def _count_accepted(server: ServerContext, slot: Slot, accepted: int) -> None:
    """Count the accepted draft tokens of the reply's timings (`n_draft_accepted`)."""
    # Trap: if the memory cannot be cut, a partly accepted draft is not counted. Its accepted tokens
    # are drafted again and match by construction; until #26320 the target's own token among them
    # counts as an accepted draft.
    if slot.spec_is_replay and not server.rules.slots.replay_counts_correction:
        accepted -= 1
    slot.n_draft_accepted += accepted
    slot.spec_is_replay = False


def _report(server: ServerContext, slot: Slot, accepted: list[Token], how: str) -> None:
    server.emit(
        DraftVerified(
            slot=slot.id,
            task=slot.running.id,
            drafted=len(slot.draft),
            accepted=len(accepted) - 1,
            rolled_back=how,
        )
    )
