"""Creation and eviction of checkpoints (`create_checkpoint` and its call sites)."""

from cachesim.engines.events import Event
from cachesim.engines.ik_llama import events
from cachesim.engines.ik_llama.context import Context
from cachesim.engines.ik_llama.options import Options
from cachesim.engines.ik_llama.rules import Rules
from cachesim.engines.ik_llama.slot import Slot
from cachesim.engines.ik_llama.state import Checkpoint
from cachesim.units import Count, Pos, SeqId


class Checkpointing:
    """Only models with recurrent rows have checkpoints; the switch is the whole server's.

    Upstream: `create_checkpoint`.
    """

    def __init__(
        self, rules: Rules, options: Options, primary: Context, record: list[Event]
    ) -> None:
        self._rules = rules
        self._options = options
        self._primary = primary
        self._record = record
        self.enabled = False

    def launched(self) -> None:
        """A completion was launched: the server-wide switch follows --ctx-checkpoints."""
        if self._primary.hybrid or self._primary.recurrent:
            self.enabled = self._options.ctx_checkpoints > 0

    @property
    def tolerance(self) -> int:
        """Tokens before the prompt's end at which a pass stops."""
        return self._options.ctx_checkpoints_tolerance

    def after_prefill(self, slot: Slot) -> None:
        """After a prefill batch: the tolerance point once it was reached, else the interval."""
        if slot.do_checkpoint:
            self.create(slot)
        else:
            self.by_interval(slot)

    def after_sample(self, slot: Slot) -> None:
        """After a step without drafts (the first token only without a tolerance point)."""
        if slot.n_decoded == 1 and self.tolerance <= 0:
            self.create(slot)
        if slot.n_decoded > 1:
            self.by_interval(slot)

    def by_interval(self, slot: Slot) -> None:
        """A checkpoint every `interval` positions, looked at once a batch."""
        interval = self._options.ctx_checkpoints_interval
        if interval <= 0:
            return
        last = self._primary.cells.seq_pos_max(SeqId(slot.id))
        reached = last + 1 if self._rules.interval_counts_tokens else last
        if slot.checkpoint_pos + interval <= reached and self.create(slot):
            slot.checkpoint_pos = last

    def create(self, slot: Slot) -> bool:
        """Save the state the sequence stands at, if all gates are open (`create_checkpoint`)."""
        seq = SeqId(slot.id)
        pos_min = self._primary.cells.seq_pos_min(seq)
        n_tokens = Count(len(slot.cache_tokens))
        behind = bool(slot.checkpoints) and n_tokens <= slot.checkpoints[-1].n_tokens
        if not self.enabled or pos_min < 0 or n_tokens < self._rules.minimum or behind:
            return False
        pos_max = self._primary.cells.seq_pos_max(seq)
        while len(slot.checkpoints) >= self._options.ctx_checkpoints:
            self._evict(slot)
        checkpoint = Checkpoint(
            pos_min=pos_min,
            pos_max=pos_max,
            pos_min_prompt=Pos(pos_min + slot.n_past_offset),
            pos_max_prompt=Pos(pos_max + slot.n_past_offset),
            n_tokens=n_tokens,
            made_by=slot.id_task,
            state=self._primary.save(seq, partial=True),
        )
        slot.checkpoints.append(checkpoint)
        self._record.append(
            events.CheckpointCreated(
                slot=slot.id,
                task=slot.id_task,
                **checkpoint.as_dict(),
                size=checkpoint.size,
            )
        )
        return True

    def _evict(self, slot: Slot) -> None:
        index = evicted_index(
            slot.checkpoints,
            self._options.ctx_checkpoints_eviction,
            keeps_earliest=self._rules.keeps_earliest,
        )
        gone = slot.checkpoints.pop(index)
        self._record.append(
            events.CheckpointErased(
                slot=slot.id,
                task=slot.id_task,
                pos_max=gone.pos_max,
                n_tokens=gone.n_tokens,
                because="the list is full",
            )
        )


def evicted_index(checkpoints: list[Checkpoint], policy: str, *, keeps_earliest: bool) -> int:
    """The index of the checkpoint that gives way to a new one in a full list.

    `variance` keeps the first and the last and drops the interior one whose neighbours lie
    closest, the first of equals (server: checkpoint eviction, #2020).
    """
    count = len(checkpoints)
    if policy == "fifo":
        return 1 if keeps_earliest and count > 1 else 0
    if count < 3:
        return 0
    if count == 3:
        return 1
    at = [checkpoint.pos_max for checkpoint in checkpoints]
    return min(
        range(1, count - 1), key=lambda i: (at[i] - at[i - 1]) * (at[i + 1] - at[i]) / at[-1]
    )
