"""Speculative decoding with an MTP companion: draft, purge, verify, commit.

M            the next position, of the pending sampled token s
M .. M + d   the primary verifies s and d drafts
M .. M + a   the positions that stay after a accepted drafts
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cachesim.engines.events import Event
from cachesim.engines.ik_llama import vocabulary
from cachesim.engines.ik_llama.context import BatchToken, Context, Decoded, SequenceState
from cachesim.engines.ik_llama.options import Options
from cachesim.engines.ik_llama.rules import Rules
from cachesim.engines.ik_llama.slot import Slot
from cachesim.errors import ContractError, UpstreamAbort
from cachesim.model.arithmetic import Network
from cachesim.units import Array, Count, Pos, SeqId, Token

# The MTP companion's memory, in three models that differ in trims.
#
# `attn` has cells and never refuses, as at the first release. `strict_tail` is hypothetical: one
# recurrent position, which refuses any cut that does not reach the start. `window` is the rolling
# cache of the later release, which refuses a cut below its window.


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionDecode:
    """The result of a companion's decode, with its last rows or None."""

    taken: bool
    logits: Array | None = None
    hidden: Array | None = None


SEQ = SeqId(0)
"""The sequence of the one slot that a companion serves."""


class Companion(Protocol):
    """The interface of a companion context."""

    @property
    def tail(self) -> int:
        """The last position, -1 without any."""
        ...

    def seq_rm(self, p0: int, p1: int) -> bool:
        """Remove [p0, p1); False if refused, without any change."""
        ...

    def seq_add(self, p0: int, p1: int, delta: int) -> None:
        """Move [p0, p1)."""
        ...

    def decode(
        self, tokens: Sequence[Token], first: Pos, hidden: Sequence[Array]
    ) -> CompanionDecode:
        """Decode tokens from a position on; return the last rows, or a refusal."""
        ...


class AttentionCompanion:
    """A companion with cells, K/V for the MTP layer only: runs the MTP head, refuses no trim."""

    def __init__(self, network: Network, *, n_ctx: int, n_ubatch: int) -> None:
        self.network = network
        self.context = Context(network, n_ctx=n_ctx, n_ubatch=n_ubatch, n_seq_max=1)

    @property
    def tail(self) -> int:
        cells = self.context.cells
        return int(cells.seq_pos_max(SEQ)) if cells.used else -1

    def seq_rm(self, p0: int, p1: int) -> bool:
        return self.context.cells.seq_rm(SEQ, p0, p1)

    def seq_add(self, p0: int, p1: int, delta: int) -> None:
        self.context.cells.seq_add(SEQ, p0, p1, delta)

    def decode(
        self, tokens: Sequence[Token], first: Pos, hidden: Sequence[Array]
    ) -> CompanionDecode:
        """Decode tokens; refused without room, which ends drafting without an error."""
        last = len(tokens) - 1
        batch = [
            BatchToken(token=token, pos=Pos(first + i), seq=SEQ, output=i == last)
            for i, token in enumerate(tokens)
        ]
        done = self.context.decode(batch, hidden)
        # No room ends the draft, not the request.
        if done.code:
            return CompanionDecode(taken=False)
        return CompanionDecode(taken=True, logits=done.logits[last], hidden=done.hidden[last])


class StrictTailCompanion:
    """A companion with a single position `t`, as a recurrent one; it proposes no tokens."""

    def __init__(self) -> None:
        self.tail = -1

    def seq_rm(self, p0: int, p1: int) -> bool:
        """Refuse a cut that leaves a part: 0 < p0 <= t, or 0 < p1 <= t."""
        p0 = max(p0, 0)
        if 0 < p0 <= self.tail or 0 < p1 <= self.tail:
            return False
        if p0 <= self.tail:
            self.tail = -1
        return True

    def seq_add(self, p0: int, p1: int, delta: int) -> None:
        """Move the position if it is in the range."""
        if p0 <= self.tail and (p1 < 0 or self.tail < p1):
            self.tail += delta

    def decode(
        self, tokens: Sequence[Token], first: Pos, hidden: Sequence[Array]
    ) -> CompanionDecode:
        """Set the position to the batch's last one."""
        del hidden  # there is no network
        self.tail = first + len(tokens) - 1
        return CompanionDecode(taken=True)


class WindowCompanion:
    """A rolling cache of `window` rows plus slack (`--swa-compress`).

    [base, base + live)   the stored positions
    A cut at p0 succeeds from base + window on, at 0, or before the first roll.
    """

    def __init__(self, *, window: int, n_ubatch: int) -> None:
        self.window = window
        self.capacity = -(-(window + max(n_ubatch, 256)) // 256) * 256
        self.n_ubatch = n_ubatch
        self.base = 0
        self.live = 0

    @property
    def tail(self) -> int:
        return self.base + self.live - 1

    def seq_rm(self, p0: int, p1: int) -> bool:
        """Refuse a cut below the window."""
        p0, end = max(p0, 0), self.base + self.live
        if p0 >= end or 0 <= p1 <= self.base:
            return True
        if 0 <= p1 < end:
            return False
        if p0 == 0:
            self.base = self.live = 0
            return True
        if self.base == 0 or p0 >= self.base + self.window:
            self.live = p0 - self.base
            return True
        return False

    def seq_add(self, p0: int, p1: int, delta: int) -> None:
        """Unsupported on such caches; the server never calls it."""

    def decode(
        self, tokens: Sequence[Token], first: Pos, hidden: Sequence[Array]
    ) -> CompanionDecode:
        """Decode tokens, rolling if needed; refuse a batch that does not begin at the end."""
        del hidden  # there is no network
        # Upstream insists that a batch begins where the cache ends: after a hole it refuses all.
        if first != self.base + self.live:
            return CompanionDecode(taken=False)
        for start in range(0, len(tokens), self.n_ubatch):
            count = min(self.n_ubatch, len(tokens) - start)
            # A roll drops all but the window, so a later cut below it is refused.
            if self.live + count > self.capacity:
                self.base += self.live - self.window
                self.live = self.window
            self.live += count
        return CompanionDecode(taken=True)


class Speculation:
    """The drafts of a companion: its input, its proposals, their verification.

    Upstream: `common_speculative`.
    """

    def __init__(
        self,
        rules: Rules,
        options: Options,
        primary: Context,
        companion: Companion | None,
        record: list[Event],
    ) -> None:
        self._rules = rules
        self._options = options
        self._primary = primary
        self._companion = companion
        self._record = record
        self._row: Array | None = None  # the primary's hidden row before the next token
        self._before: SequenceState | None = None  # the state to restore without per-step states
        kept = companion is not None and self._per_step
        self.steps = Count(options.draft_max + 1 if kept else 0)
        primary.make_room_for_steps(self.steps)

    @property
    def _head(self) -> Companion:
        if self._companion is None:
            raise ContractError("a draft without a companion")
        return self._companion

    # -- feeding -----------------------------------------------------------------------------

    def feed(self, view: list[BatchToken], decoded: Decoded, *, reading: bool) -> bool:
        """Decode a prompt batch with the companion (`mtp_update_kv_cache`), no reply token.

        False if the companion refuses it.
        """
        if self._companion is None or not reading:
            return True
        first = view[0].pos
        # Rows from a draft or a former conversation: the prompt's own tokens replace them.
        if self._companion.tail >= first:
            self._companion.seq_rm(first, -1)
        count = len(view)  # each token is paired with the hidden row of the token before it
        before = self._row if self._row is not None else np.zeros_like(decoded.hidden[0])
        rows = [before, *(decoded.hidden[i] for i in range(count - 1))]
        fed = self._companion.decode([entry.token for entry in view], first, rows)
        self._note(fed, first, len(view))
        self._row = decoded.hidden[len(view) - 1]
        return fed.taken

    def _note(self, fed: CompanionDecode, position: int, tokens: int) -> None:
        if not fed.taken:
            self._record.append(vocabulary.CompanionRefused(position=position, tokens=tokens))

    # -- drafting ----------------------------------------------------------------------------

    def draft(self, slot: Slot) -> list[Token]:
        """Propose tokens after the pending one (`common_speculative_draft`); trim the companion."""
        capacity = slot.n_ctx - len(slot.cache_tokens) - 2
        predict, most = slot.running.predict, self._options.draft_max
        # Two places stay free: for the pending token, and for the one after the draft.
        left = capacity if predict < 0 else predict - slot.n_decoded - 1
        limit, least = min(most, capacity, left), min(most, self._options.draft_min)
        slot.drafting = False
        # Too little is left for a draft of the minimum length: the step is an ordinary one.
        if self._companion is None or slot.warmup_failed or limit < max(least, 1):
            return []
        m = len(slot.cache_tokens)
        pending = 0 if slot.follow_up is None else 1
        forced = self._forced(slot, limit)
        if forced is None:  # as many as the flag allows are drafted, and cut afterwards
            drafts, decodes = self._propose(slot, m, most)
        else:
            drafts, decodes = forced, len(forced) - pending
        drafts = drafts[:limit]
        # Removed before the primary verifies anything, so a rejected draft never stays in the
        # companion.
        if decodes > 0:
            begin = m + 1 if self._rules.purge_keeps_pending_row else m + 1 - pending
            self._companion.seq_rm(begin, m + decodes + 2)
        slot.drafting = len(drafts) >= least
        if not slot.drafting:
            drafts = []
        slot.draft_step += 1
        # Without the states of single steps a rejection needs the state from before the draft.
        if drafts and not self._per_step:
            self._before = self._primary.save(SeqId(slot.id), partial=True)
        return drafts

    @property
    def _per_step(self) -> bool:
        return self._options.recurrent_ckpt_mode in {"auto", "per-step"}

    def _forced(self, slot: Slot, limit: int) -> list[Token] | None:
        """The drafts of the request; the companion decodes them like its own."""
        if slot.running.drafts is None:
            return None
        if slot.draft_step >= len(slot.running.drafts):
            return []
        drafts = list(slot.running.drafts[slot.draft_step][:limit])
        start = 0 if slot.follow_up is None else 1
        fed = [slot.sampled, *drafts][start : len(drafts)]
        self._decode_each(fed, len(slot.cache_tokens) + start)
        return drafts

    def _decode_each(self, tokens: list[Token], first: int) -> None:
        if self._row is None:
            return
        row = self._row
        for offset, token in enumerate(tokens):
            fed = self._head.decode([token], Pos(first + offset), [row])
            row = fed.hidden if fed.hidden is not None else row

    def _propose(self, slot: Slot, m: int, most: int) -> tuple[list[Token], int]:
        """Drafts of the MTP head, and the number of its decodes (`mtp_speculative_gen_draft`)."""
        if self._row is None:
            return [], 0
        p_min, drafts, decodes = self._options.draft_p_min, [], 0
        # The last commit has left a proposal, so drafting starts one position later.
        if slot.follow_up is not None:
            drafts = [slot.follow_up]
            most = 1 if slot.follow_up_probability < p_min else most
        token, position, row = (drafts or [slot.sampled])[-1], m + len(drafts), self._row
        while len(drafts) < most:
            fed = self._head.decode([token], Pos(position), [row])
            decodes += 1
            if fed.logits is None or fed.hidden is None:
                break
            unsure = _confidence(fed.logits) < p_min
            # The first draft is used whatever its probability (an oddity).
            if unsure and drafts:
                break
            token, row = self._primary.network.sample(fed.logits), fed.hidden
            drafts.append(token)
            position += 1
            # One below `p_min` is the last.
            if unsure:
                break
        return drafts, decodes

    # -- verification ------------------------------------------------------------------------

    def target_token(self, slot: Slot, ahead: int, logits: Array) -> Token:
        """The primary's token: greedy, or forced by the request."""
        reply, index = slot.running.reply, len(slot.generated) + ahead
        if reply is not None and index < len(reply):
            return reply[index]
        return self._primary.network.sample(logits)

    def accept(self, slot: Slot, decoded: Decoded, at: int) -> tuple[list[Token], list[Array]]:
        """Keep drafts that match the primary's tokens (`speculative_decoding_accept`)."""
        drafted, kept, rows = slot.drafted, [], []
        for ahead in range(len(drafted) + 1):
            row = _row_of(decoded, at + ahead)
            token = self.target_token(slot, ahead, row)
            kept.append(token)
            rows.append(row)
            if ahead < len(drafted) and token != drafted[ahead]:
                break
        accepted = len(kept) - 1
        m = len(slot.cache_tokens) - len(drafted) - 1
        # With all drafts accepted the state after the last token is the right one.
        if accepted < len(drafted):
            self._undo(slot, m, Count(accepted), Count(len(drafted)))
        # #1754, as reported: the state after the first token is copied back.
        elif drafted and self._per_step and not self._rules.restores_when_accepted:
            self._primary.roll_back_to_step(SeqId(slot.id), Count(0), Count(0))
        # The rejected drafts leave the list; the last kept token enters it with the next step.
        del slot.cache_tokens[m + 1 + accepted :]
        slot.n_past = len(slot.cache_tokens)
        hidden = [decoded.hidden[at + i] for i in range(accepted + 1)]
        decodes_again = self._primary.hybrid and not self._per_step and accepted < len(drafted)
        keeps = self._rules.commit_keeps_pending_row and not decodes_again
        self._commit(slot, m + 1 if keeps else m, kept, hidden)
        slot.drafted = []
        return kept, rows

    def _undo(self, slot: Slot, m: int, accepted: Count, drafted: Count) -> None:
        seq = SeqId(slot.id)
        # Trap: until #1669 the recurrent row keeps the rejected tokens.
        if not self._rules.restores_recurrent:
            self._primary.cells.seq_rm(seq, m + accepted + 1, -1)
        elif self._primary.hybrid and self._per_step:
            self._primary.roll_back_to_step(seq, accepted, drafted)
            self._primary.cells.seq_rm(seq, m + accepted + 1, -1)
        elif self._primary.hybrid and self._before is not None:
            # Without the states of single steps: the state from before, and the accepted tokens
            # again.
            self._primary.cells.seq_rm(seq, m, -1)
            for layer, row in self._before.rows.items():
                self._primary.rows[layer][seq] = row
            tokens = slot.cache_tokens[m : m + 1 + accepted]
            self._primary.decode(
                [BatchToken(token=t, pos=Pos(m + i), seq=seq) for i, t in enumerate(tokens)]
            )
        else:
            self._primary.cells.seq_rm(seq, m + accepted + 1, -1)

    def _commit(self, slot: Slot, base: int, kept: list[Token], hidden: list[Array]) -> None:
        """Decode the accepted tokens with the companion; its last row gives the next draft."""
        # The companion decodes the accepted tokens once more, with the primary's hidden rows.
        self._head.seq_rm(base, -1)
        fed = self._head.decode(kept, Pos(base), hidden)
        self._note(fed, base, len(kept))
        slot.follow_up = None
        if fed.taken:
            slot.follow_up = (
                slot.sampled if fed.logits is None else self._primary.network.sample(fed.logits)
            )
            slot.follow_up_probability = 1.0 if fed.logits is None else _confidence(fed.logits)
        self._row = hidden[-1]
        self._record.append(
            vocabulary.DraftVerified(
                slot=slot.id,
                task=slot.id_task,
                drafted=len(slot.drafted),
                accepted=len(kept) - 1,
                companion_tail=self._head.tail,
            )
        )


def _row_of(decoded: Decoded, at: int) -> Array:
    """A row of the last decode (`llama_get_logits_ith`)."""
    row = decoded.logits.get(at)
    # Trap: a draft may be longer than a batch. Its last rows are then in a part of the batch that
    # is not decoded yet: the sampler gets a null pointer, and the process ends.
    if row is None:
        where, why = (
            "llama_get_logits_ith",
            f"invalid logits id {at}: the batch ends within the draft",
        )
        raise UpstreamAbort(where, why)
    return row


def _confidence(logits: Array) -> float:
    """The probability of the greedy token; 1 in exact arithmetic."""
    if logits.dtype.kind != "f":
        return 1.0
    return float(1.0 / np.exp(logits - logits.max()).sum())
