"""Selection of a slot for a prompt, and the part of the slot's memory to keep.

[0,      n_past)   kept: matches, with a state to resume from
[n_past, match)    matches, but removed: the restored checkpoint ends earlier
[match,  len)      new: to be computed
"""

from typing import Final

import numpy as np

from cachesim.engines.events import Event
from cachesim.engines.ik_llama import vocabulary
from cachesim.engines.ik_llama.context import Checkpoint, Context
from cachesim.engines.ik_llama.options import Options
from cachesim.engines.ik_llama.rules import Rules
from cachesim.engines.ik_llama.slot import (
    CachedPrompt,
    PromptCache,
    PromptEntry,
    Slot,
    TextOf,
    common_prefix,
    dice,
    discard,
    kept_fraction,
    similarity,
)
from cachesim.errors import UpstreamAbort
from cachesim.units import Count, SeqId, Tokens


class Selection:
    """Ports `get_available_slot`, `prompt_save` and `prompt_load`."""

    def __init__(
        self,
        rules: Rules,
        options: Options,
        primary: Context,
        cache: PromptCache,
        record: list[Event],
    ) -> None:
        self._rules = rules
        self._options = options
        self._primary = primary
        self._cache = cache
        self._record = record

    @property
    def enabled(self) -> bool:
        """True with a RAM prompt cache."""
        return self._options.cache_ram != 0

    def choose(self, slots: list[Slot], prompt: Tokens) -> Slot | None:
        """Choose a slot if the request names none (`get_available_slot`); use the prompt cache."""
        slot, score = self._most_similar(slots, prompt)
        by = "similarity"
        # No slot is similar enough, or the comparison is off: the oldest one is taken.
        if slot is None:
            slot = min((s for s in slots if s.available), key=lambda s: s.t_last_used, default=None)
            by = "least recently used"
        if slot is None:
            return None
        f_keep = self._kept(slot, prompt)
        self._record.append(
            vocabulary.SlotSelected(
                slot=slot.id, by=by, similarity=float(score), f_keep=float(f_keep)
            )
        )
        self._consult(slot, prompt, f_keep)
        return slot

    def _most_similar(self, slots: list[Slot], prompt: Tokens) -> tuple[Slot | None, np.float32]:
        best, best_score = None, np.float32(0)
        threshold = np.float32(self._options.slot_prompt_similarity)
        # 0 switches the comparison off (`--slot-prompt-similarity 0`).
        if threshold == 0:
            return None, best_score
        for slot in slots:
            if not slot.available or not slot.cache_tokens:
                continue
            score = self._similarity(slot, prompt)
            # Both strict: among equals the slot with the lowest id stays.
            if score > best_score and score > threshold:
                best, best_score = slot, score
        return best, best_score

    def _similarity(self, slot: Slot, prompt: Tokens) -> np.float32:
        """The Dice ratio, not mainline's share of the prompt (`calculate_slot_similarity`)."""
        held, wanted = self._cache.stripped(slot.cache_tokens), self._cache.stripped(prompt)
        score = similarity(held, wanted, self._cache.text_of)
        # The slot was shifted, so its tokens lack a block that the prompt still has: without the
        # block both may match again.
        if slot.n_discarded_prompt > 0 and len(wanted) >= slot.n_ctx:
            shifted = discard(wanted, slot.n_kept_prompt, slot.n_discarded_prompt)
            score = max(score, similarity(held, shifted, self._cache.text_of))
        return score

    def _kept(self, slot: Slot, prompt: Tokens) -> np.float32:
        held, wanted = self._cache.stripped(slot.cache_tokens), self._cache.stripped(prompt)
        if slot.n_discarded_prompt > 0 and len(wanted) >= slot.n_ctx:
            if held and slot.n_keep < 0:  # Trap: in a shift, -1 keeps the prompt; here it ends
                where = "server_tokens::get_cached_tokens_similarity"
                raise UpstreamAbort(where, "GGML_ASSERT(n_keep >= 0 && n_discard >= 0)")
            wanted = discard(wanted, slot.n_keep, slot.n_discarded_prompt)
        return kept_fraction(held, wanted, self._cache.text_of)

    # -- the RAM prompt cache ----------------------------------------------------------------

    def _consult(self, slot: Slot, prompt: Tokens, f_keep: np.float32) -> None:
        """Save the slot, load a more similar entry, apply the limit (`get_available_slot`)."""
        slot.list_moved_out = False
        # Saved only if too little would be kept.
        update = bool(slot.cache_tokens) and f_keep < np.float32(self._options.cache_ram_similarity)
        n_min = self._options.cache_ram_n_min  # unsigned: below 0 nothing is ever saved (an oddity)
        long_enough = 0 <= n_min <= len(self._cache.stripped(slot.cache_tokens))
        if self.enabled and update and long_enough:
            self._save(slot)
        # Loaded whether or not the slot was saved (an oddity). Trap: a load without a save loses
        # the slot's conversation.
        if not self.enabled or not self._cache.entries:
            return
        self._copy(slot)
        # Move the most similar entry into the slot (`server_prompt_cache::load`).
        score = 0.0
        if slot.cached_prompt.tokens:
            score = float(self._cache.similarity(slot.cached_prompt, prompt))
        best: PromptEntry | None = None
        best_prefix = 0
        # #2105: an entry of which less than this would be kept is not compared.
        least = 0.999 * self._options.cache_ram_similarity if self._rules.ram_floor else 0.0
        for entry, equal in self._cache.compared(prompt).items():
            if equal:
                prefix, whole, length = equal, equal, len(entry.tokens)
                # Most entries of a full cache are below the floor or the best by far, whatever is
                # rounded.
                if equal < least * length or 2 * equal < 0.999 * score * (length + len(prompt)):
                    continue
                candidate = float(dice(equal, length + len(prompt)))
            else:
                prefix = self._cache.match(entry, prompt).left
                whole = common_prefix(entry.tokens, prompt, self._cache.text_of).left
                length = len(self._cache.stripped(entry.tokens))
                candidate = float(self._cache.similarity(entry, prompt))
            if not self._admitted(entry, prefix, length, whole):
                continue
            # #1877: of equally similar entries the longer prefix wins; before, the older entry.
            longer = self._rules.ram_ties_to_longer_prefix and best is not None
            if candidate > score or (longer and candidate == score and prefix > best_prefix):
                best, score, best_prefix = entry, candidate, prefix
        if self._cache.tags is None and not self._rules.clones_token_lists:
            # The scan emptied every list, also the slot's and the best entry's (an oddity).
            self._cache.empty_lists()
            slot.list_moved_out = bool(slot.cached_prompt.tokens)
            slot.cached_prompt.tokens = []
        if best is not None:
            self._take(slot, best, score)
        for entry in self._cache.update():
            self._record.append(
                vocabulary.PromptEvicted(n_tokens=len(entry.tokens), size=entry.size)
            )
        # Whatever the lookup left in the slot's prompt replaces its list, an emptied one too.
        slot.cache_tokens = list(slot.cached_prompt.tokens)
        slot.n_kept_prompt = slot.cached_prompt.n_kept_prompt
        slot.n_discarded_prompt = slot.cached_prompt.n_discarded_prompt
        slot.approximate = slot.cached_prompt.approximate

    @staticmethod
    def _copy(slot: Slot) -> None:
        slot.cached_prompt.tokens = list(slot.cache_tokens)
        slot.cached_prompt.n_kept_prompt = slot.n_kept_prompt
        slot.cached_prompt.n_discarded_prompt = slot.n_discarded_prompt
        slot.cached_prompt.approximate = slot.approximate

    def _save(self, slot: Slot) -> None:
        """Copy the slot's conversation into the cache (`prompt_save`, alloc)."""
        self._copy(slot)
        prompt = slot.cached_prompt
        # Trap: a conversation that a longer entry contains is not saved, and shorter entries that
        # the new one contains are dropped.
        if not self._cache.room_for(prompt):
            self._record.append(
                vocabulary.PromptAlreadyCached(slot=slot.id, n_tokens=len(prompt.tokens))
            )
            return
        seq = SeqId(slot.id)
        entry = PromptEntry(
            tokens=list(prompt.tokens),
            n_kept_prompt=prompt.n_kept_prompt,
            n_discarded_prompt=prompt.n_discarded_prompt,
            approximate=prompt.approximate,
            checkpoints=list(prompt.checkpoints),
            # The whole state, as an entry is loaded into any slot's cells. The companion's is never
            # saved.
            state=self._primary.save(seq, partial=False),
            pos_min=self._primary.cells.seq_pos_min(seq),
            length=Count(len(prompt.tokens)),
        )
        self._cache.add(entry)
        self._record.append(
            vocabulary.PromptSaved(
                slot=slot.id,
                n_tokens=len(entry.tokens),
                size=entry.size,
                checkpoints=len(entry.checkpoints),
            )
        )

    def _admitted(self, entry: PromptEntry, match: int, length: int, whole: int) -> bool:
        """By the match and the length without reasoning, and the whole match with it."""
        rules = self._rules
        floor = np.float32(self._options.cache_ram_similarity)
        # #2105. The match is that without reasoning, as for the similarity.
        if rules.ram_floor and (length == 0 or np.float32(match) / np.float32(length) < floor):
            return False
        # #1854: the flag is a minimum prefix, not a minimum length.
        if rules.n_min_is_a_prefix and match < self._options.cache_ram_n_min:
            return False
        # #1877: `--cache-ram-reuse-n-min`, a minimum match for a restore.
        if rules.ram_reuse_n_min and match < self._options.cache_ram_reuse_n_min:
            return False
        # #1877. Trap: a checkpoint at `pos_max` = `whole` or one less is admitted here, but
        # `apply_checkpoint` needs an earlier one.
        rewindable = entry.pos_min <= whole or any(
            checkpoint.pos_max <= whole for checkpoint in entry.checkpoints
        )
        return rewindable or not rules.ram_rewindable_only

    def _take(self, slot: Slot, entry: PromptEntry, score: float) -> None:
        index = self._cache.entries.index(entry)
        # Trap: the slot's old cells are gone by now, and its token list stays.
        if not self._primary.restore(SeqId(slot.id), entry.state):
            self._record.append(
                vocabulary.PromptLoadFailed(slot=slot.id, entry=index, n_tokens=entry.length)
            )
            return
        # The entry is moved into the slot: a prompt that keeps a part of it destroys the rest.
        self._cache.remove(entry)
        slot.cached_prompt = CachedPrompt(
            tokens=entry.tokens,
            n_kept_prompt=entry.n_kept_prompt,
            n_discarded_prompt=entry.n_discarded_prompt,
            approximate=entry.approximate,
            checkpoints=entry.checkpoints,
        )
        self._record.append(
            vocabulary.PromptLoaded(
                slot=slot.id, entry=index, n_tokens=entry.length, similarity=score
            )
        )


TOLERANT_MARGIN: Final = 20
"""The tolerant match is used only if it is longer than the exact one by more than this."""


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
        """Set n_past, n_past_prompt and the reported number of cached tokens."""
        slot.n_past = slot.n_past_prompt = 0
        if slot.running.cache_prompt:
            cache, prompt = slot.cache_tokens, slot.prompt_tokens
            tolerant = common_prefix(cache, prompt, self._text_of)
            exact = common_prefix(cache, prompt, self._text_of, exact=True)
            # A tolerant match may skip white space, so the exact one is preferred unless it is much
            # shorter.
            take_exact = exact.left + TOLERANT_MARGIN >= tolerant.left
            chosen = exact if take_exact and not self._rules.tolerant_only else tolerant
            slot.n_past, slot.n_past_prompt = chosen.left, chosen.right
            # The two lists may cut the same text into different tokens, so each has a count of its
            # own.
            slot.n_past_offset = slot.n_past_prompt - slot.n_past
            self._record.append(
                vocabulary.PrefixMatched(
                    slot=slot.id,
                    task=slot.id_task,
                    exact=exact.left,
                    tolerant=tolerant.left,
                    n_past=slot.n_past,
                    n_past_prompt=slot.n_past_prompt,
                )
            )
            slot.ledger.apply(
                vocabulary.TEXT_MATCH,
                slot.n_past_prompt,
                exact=int(exact.right),
                tolerant=int(tolerant.right),
            )
            # #1854: too short a match gives the slot's conversation up, its checkpoints too.
            if self._rules.n_min_is_a_prefix and chosen.left < self._n_min:
                slot.n_past = slot.n_past_prompt = slot.n_past_offset = 0
                slot.cache_tokens = []
                slot.checkpoints.clear()
                slot.ledger.apply(
                    vocabulary.CACHE_RAM_N_MIN, 0, match=int(chosen.left), n_min=self._n_min
                )
        else:
            slot.ledger.apply(vocabulary.CACHE_PROMPT_OFF, 0)
        # #2105: the token that is left counts when a checkpoint is chosen; before, it is taken off
        # afterwards.
        if self._rules.minus_one_first:
            self._leave_one(slot)
            self.apply_checkpoint(slot)
        else:
            self.apply_checkpoint(slot)
            self._leave_one(slot)
        slot.shifted = slot.approximate is not None and slot.n_past > slot.approximate
        if not slot.shifted:
            slot.approximate = None  # nothing of it is left
        slot.n_prompt_tokens_cache = slot.n_past_prompt
        slot.n_prompt_tokens_processed = 0
        slot.prepared = True

    @staticmethod
    def _leave_one(slot: Slot) -> None:
        """Leave at least one token to evaluate."""
        # Without a computed token there are no logits. The memory after it is not rewound (an
        # oddity).
        if slot.n_past_prompt == len(slot.prompt_tokens) and slot.n_past_prompt > 0:
            slot.n_past -= 1
            slot.n_past_prompt -= 1
            slot.ledger.apply(
                vocabulary.LAST_TOKEN, slot.n_past_prompt, n_tokens=len(slot.prompt_tokens)
            )

    # -- apply_checkpoint ------------------------------------------------------------------------

    def apply_checkpoint(self, slot: Slot) -> None:
        """Restore a checkpoint if the memory itself cannot be rewound (`apply_checkpoint`)."""
        # #1689. Trap: the match is reused in full, and the recurrent row still includes removed
        # tokens.
        if self._rules.skips_recurrent and (self._primary.hybrid or self._primary.recurrent):
            return
        pos_next = slot.n_past
        # One token earlier than needed: a checkpoint that ends exactly at the match is refused.
        thold = max(0, pos_next - 1)
        # Called for every model. For dense ones `pos_min` is the first cell's position, so only a
        # match of one token, or fragmented cells, get further.
        if 0 < slot.n_past < len(slot.cache_tokens):
            pos_min = self._primary.cells.seq_pos_min(SeqId(slot.id))
            if pos_min >= thold:
                self._rewind(slot, pos_next, thold, pos_min)
        # Trap: the threshold is from before the restore: a checkpoint at n_past - 1 survives.
        rule, kept = "pos_max > pos_min_thold", []
        for checkpoint in slot.checkpoints:
            numbers = f"{checkpoint.pos_max} > {thold}"
            if checkpoint.pos_max > thold:
                self._record.append(
                    vocabulary.CheckpointErased(
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
            # Upstream prints nothing for it: the state includes tokens that this prompt does not
            # have.
            if checkpoint.n_tokens > pos_next:
                self._record.append(
                    vocabulary.CheckpointKept(
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
        # The newest first; the first usable one decides, whether or not its restore succeeds.
        for checkpoint in reversed(slot.checkpoints):
            tried.append({"pos_min": checkpoint.pos_min, "pos_max": checkpoint.pos_max})
            if self._usable(checkpoint, thold, pos_next):
                if self._restore(slot, checkpoint, pos_next):
                    refused = tried[:-1]
                    slot.ledger.apply(
                        vocabulary.MEMORY_DEPTH,
                        0,
                        pos_min=pos_min,
                        threshold=thold,
                        checkpoints=refused,
                    )
                    slot.ledger.apply(
                        vocabulary.CHECKPOINT_RESTORED,
                        slot.n_past_prompt,
                        n_tokens=checkpoint.n_tokens,
                        pos_min=checkpoint.pos_min,
                        pos_max=checkpoint.pos_max,
                    )
                    return
                break
            self._record.append(
                vocabulary.CheckpointRefused(
                    slot=slot.id,
                    task=slot.id_task,
                    pos_min=checkpoint.pos_min,
                    pos_max=checkpoint.pos_max,
                    thold=thold,
                )
            )
        self._record.append(
            vocabulary.CheckpointReset(
                slot=slot.id, task=slot.id_task, n_past=slot.n_past, pos_min=pos_min, thold=thold
            )
        )
        # Trap: the checkpoint list is not emptied here, only swept by the threshold.
        slot.n_past = slot.n_past_prompt = 0
        slot.cache_tokens = []
        slot.ledger.apply(
            vocabulary.FULL_REPROCESSING, 0, pos_min=pos_min, threshold=thold, checkpoints=tried
        )

    def _usable(self, checkpoint: Checkpoint, thold: int, pos_next: int) -> bool:
        match self._rules.rewind:
            case "pos_max below":
                return checkpoint.pos_max < thold
            # #1888. Trap: `pos_max` = `pos_next` passes too, and that state includes one token too
            # many.
            case "pos_min below or pos_max reaches" if checkpoint.pos_max <= pos_next:
                return True
            case _:
                # Without the second test nothing passes a threshold of 0.
                return checkpoint.pos_min < thold or checkpoint.pos_min == 0

    def _restore(self, slot: Slot, checkpoint: Checkpoint, pos_next: int) -> bool:
        seq = SeqId(slot.id)
        # The sequence is empty now: the old content goes before cells are searched.
        if not self._primary.restore(seq, checkpoint.state):
            return False
        # A later release checks that the state has arrived; before, its position is trusted.
        if self._rules.restore_is_checked:
            if self._primary.cells.seq_pos_max(seq) != checkpoint.pos_max:
                return False
            reached = checkpoint.pos_max_prompt + 1
        else:
            reached = max(checkpoint.pos_min_prompt + 1, checkpoint.pos_max_prompt)
        # An exact state resumes after its last token, `pos_max + 1`.
        kept = min(pos_next, max(checkpoint.pos_min + 1, checkpoint.pos_max))
        slot.n_past = min(len(slot.cache_tokens), kept)
        slot.n_past_prompt = min(len(slot.prompt_tokens), slot.n_past_prompt, reached)
        if self._rules.restore_moves_interval:
            slot.checkpoint_pos = checkpoint.pos_max
        self._record.append(
            vocabulary.CheckpointRestored(
                slot=slot.id,
                task=slot.id_task,
                pos_min=checkpoint.pos_min,
                pos_max=checkpoint.pos_max,
                n_past=slot.n_past,
                made_by=checkpoint.made_by,
            )
        )
        return True
