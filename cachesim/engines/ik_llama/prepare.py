"""The first pass over a request's prompt: how much of the slot's memory it may keep.

[0,      n_past)   kept: equal, and a state exists to resume from
[n_past, match)    equal, but cut away: the restored checkpoint ends earlier
[match,  len)      new: must be computed
"""

from typing import Final

from cachesim.engines.events import Event
from cachesim.engines.ik_llama import causes, events
from cachesim.engines.ik_llama.context import Context
from cachesim.engines.ik_llama.matching import TextOf, common_prefix
from cachesim.engines.ik_llama.rules import Rules
from cachesim.engines.ik_llama.slot import Slot
from cachesim.engines.ik_llama.state import Checkpoint
from cachesim.units import SeqId

TOLERANT_MARGIN: Final = 20
"""The tolerant match is taken only when it is longer than the exact one by more than this."""


class Preparation:
    """Ports the first pass of `batch_pending_prompt`, with `apply_checkpoint`."""

    def __init__(
        self, rules: Rules, primary: Context, text_of: TextOf, record: list[Event], n_min: int
    ) -> None:
        self._rules = rules
        self._primary = primary
        self._text_of = text_of
        self._record = record
        self._n_min = n_min

    def prepare(self, slot: Slot) -> None:
        """Settle n_past, n_past_prompt and what is reported as cached."""
        slot.n_past = slot.n_past_prompt = 0
        if slot.running.cache_prompt:
            cache, prompt = slot.cache_tokens, slot.prompt_tokens
            tolerant = common_prefix(cache, prompt, self._text_of)
            exact = common_prefix(cache, prompt, self._text_of, exact=True)
            take_exact = exact.left + TOLERANT_MARGIN >= tolerant.left
            chosen = exact if take_exact and not self._rules.tolerant_only else tolerant
            slot.n_past, slot.n_past_prompt = chosen.left, chosen.right
            slot.n_past_offset = slot.n_past_prompt - slot.n_past
            self._record.append(
                events.PrefixMatched(
                    slot=slot.id,
                    task=slot.id_task,
                    exact=exact.left,
                    tolerant=tolerant.left,
                    n_past=slot.n_past,
                    n_past_prompt=slot.n_past_prompt,
                )
            )
            slot.ledger.apply(
                causes.TEXT_MATCH,
                slot.n_past_prompt,
                exact=int(exact.right),
                tolerant=int(tolerant.right),
            )
            if self._rules.n_min_is_a_prefix and chosen.left < self._n_min:
                slot.n_past = slot.n_past_prompt = slot.n_past_offset = 0
                slot.cache_tokens = []
                slot.checkpoints.clear()
                slot.ledger.apply(
                    causes.CACHE_RAM_N_MIN, 0, match=int(chosen.left), n_min=self._n_min
                )
        else:
            slot.ledger.apply(causes.CACHE_PROMPT_OFF, 0)
        if self._rules.minus_one_first:
            self._leave_one(slot)
            self.apply_checkpoint(slot)
        else:
            self.apply_checkpoint(slot)
            self._leave_one(slot)
        slot.n_prompt_tokens_cache = slot.n_past_prompt
        slot.n_prompt_tokens_processed = 0
        slot.prepared = True

    @staticmethod
    def _leave_one(slot: Slot) -> None:
        """At least one token must be evaluated; the memory behind it is not rewound (an oddity)."""
        if slot.n_past_prompt == len(slot.prompt_tokens) and slot.n_past_prompt > 0:
            slot.n_past -= 1
            slot.n_past_prompt -= 1
            slot.ledger.apply(
                causes.LAST_TOKEN, slot.n_past_prompt, n_tokens=len(slot.prompt_tokens)
            )

    # -- apply_checkpoint ------------------------------------------------------------------------

    def apply_checkpoint(self, slot: Slot) -> None:
        """Go back to a checkpoint where the memory itself cannot go back (`apply_checkpoint`)."""
        if self._rules.skips_recurrent and (self._primary.hybrid or self._primary.recurrent):
            return
        pos_next = slot.n_past
        thold = max(0, pos_next - 1)
        if 0 < slot.n_past < len(slot.cache_tokens):
            pos_min = self._primary.cells.seq_pos_min(SeqId(slot.id))
            if pos_min >= thold:
                self._rewind(slot, pos_next, thold, pos_min)
        # Trap: erased by the threshold from before the restore: P = n_past - 1 survives.
        rule, kept = "pos_max > pos_min_thold", []
        for checkpoint in slot.checkpoints:
            numbers = f"{checkpoint.pos_max} > {thold}"
            if checkpoint.pos_max > thold:
                self._record.append(
                    events.CheckpointErased(
                        slot=slot.id,
                        task=slot.id_task,
                        pos_max=checkpoint.pos_max,
                        n_tokens=checkpoint.n_tokens,
                        because=f"pos_max > {thold}",
                        rule=rule,
                        numbers=numbers,
                    )
                )
                continue
            kept.append(checkpoint)
            if checkpoint.n_tokens > pos_next:
                self._record.append(
                    events.CheckpointKept(
                        slot=slot.id,
                        task=slot.id_task,
                        **checkpoint.as_dict(),
                        shared=pos_next,
                        rule=rule,
                        numbers=numbers,
                        made_by=checkpoint.made_by,
                    )
                )
        slot.checkpoints[:] = kept

    def _rewind(self, slot: Slot, pos_next: int, thold: int, pos_min: int) -> None:
        tried: list[dict[str, int]] = []
        for checkpoint in reversed(slot.checkpoints):
            tried.append({"pos_min": checkpoint.pos_min, "pos_max": checkpoint.pos_max})
            if self._usable(checkpoint, thold, pos_next):
                if self._restore(slot, checkpoint, pos_next):
                    refused = tried[:-1]
                    slot.ledger.apply(
                        causes.MEMORY_DEPTH,
                        0,
                        pos_min=pos_min,
                        threshold=thold,
                        checkpoints=refused,
                    )
                    slot.ledger.apply(
                        causes.CHECKPOINT_RESTORED,
                        slot.n_past_prompt,
                        n_tokens=checkpoint.n_tokens,
                        pos_min=checkpoint.pos_min,
                        pos_max=checkpoint.pos_max,
                    )
                    return
                break
            self._record.append(
                events.CheckpointRefused(
                    slot=slot.id,
                    task=slot.id_task,
                    pos_min=checkpoint.pos_min,
                    pos_max=checkpoint.pos_max,
                    thold=thold,
                )
            )
        self._record.append(
            events.CheckpointReset(
                slot=slot.id,
                task=slot.id_task,
                n_past=slot.n_past,
                pos_min=pos_min,
                thold=thold,
            )
        )
        slot.n_past = slot.n_past_prompt = 0
        slot.cache_tokens = []
        slot.ledger.apply(
            causes.FULL_REPROCESSING, 0, pos_min=pos_min, threshold=thold, checkpoints=tried
        )

    def _usable(self, checkpoint: Checkpoint, thold: int, pos_next: int) -> bool:
        match self._rules.rewind:
            case "pos_max below":
                return checkpoint.pos_max < thold
            case "pos_min below or pos_max reaches" if checkpoint.pos_max <= pos_next:
                return True
            case _:
                return checkpoint.pos_min < thold or checkpoint.pos_min == 0

    def _restore(self, slot: Slot, checkpoint: Checkpoint, pos_next: int) -> bool:
        seq = SeqId(slot.id)
        if not self._primary.restore(seq, checkpoint.state):
            return False
        if self._rules.restore_is_checked:
            if self._primary.cells.seq_pos_max(seq) != checkpoint.pos_max:
                return False
            reached = checkpoint.pos_max_prompt + 1
        else:
            reached = max(checkpoint.pos_min_prompt + 1, checkpoint.pos_max_prompt)
        kept = min(pos_next, max(checkpoint.pos_min + 1, checkpoint.pos_max))
        slot.n_past = min(len(slot.cache_tokens), kept)
        slot.n_past_prompt = min(len(slot.prompt_tokens), slot.n_past_prompt, reached)
        if self._rules.restore_moves_interval:
            slot.checkpoint_pos = checkpoint.pos_max
        self._record.append(
            events.CheckpointRestored(
                slot=slot.id,
                task=slot.id_task,
                pos_min=checkpoint.pos_min,
                pos_max=checkpoint.pos_max,
                n_past=slot.n_past,
                made_by=checkpoint.made_by,
            )
        )
        return True
