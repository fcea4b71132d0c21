"""The slot of a request, and the update of the RAM prompt cache."""

import numpy as np

from cachesim.engines.events import Event
from cachesim.engines.ik_llama import events
from cachesim.engines.ik_llama.context import Context
from cachesim.engines.ik_llama.matching import (
    common_prefix,
    discard,
    kept_fraction,
    similarity,
)
from cachesim.engines.ik_llama.options import Options
from cachesim.engines.ik_llama.prompt_cache import PromptCache, PromptEntry
from cachesim.engines.ik_llama.rules import Rules
from cachesim.engines.ik_llama.slot import CachedPrompt, Slot
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
        """True if there is a RAM prompt cache."""
        return self._options.cache_ram != 0

    def choose(self, slots: list[Slot], prompt: Tokens) -> Slot | None:
        """The slot for a request that names none (`get_available_slot`), its cache consulted."""
        slot, score = self._most_similar(slots, prompt)
        by = "similarity"
        if slot is None:
            slot = min((s for s in slots if s.available), key=lambda s: s.t_last_used, default=None)
            by = "least recently used"
        if slot is None:
            return None
        f_keep = self._kept(slot, prompt)
        self._record.append(
            events.SlotSelected(slot=slot.id, by=by, similarity=float(score), f_keep=float(f_keep))
        )
        self._consult(slot, prompt, f_keep)
        return slot

    def _most_similar(self, slots: list[Slot], prompt: Tokens) -> tuple[Slot | None, np.float32]:
        best, best_score = None, np.float32(0)
        threshold = np.float32(self._options.slot_prompt_similarity)
        if threshold == 0:
            return None, best_score
        for slot in slots:
            if not slot.available or not slot.cache_tokens:
                continue
            score = self._similarity(slot, prompt)
            if score > best_score and score > threshold:
                best, best_score = slot, score
        return best, best_score

    def _similarity(self, slot: Slot, prompt: Tokens) -> np.float32:
        """The Dice ratio; a shifted slot takes the better of two (`calculate_slot_similarity`)."""
        held, asked = self._cache.stripped(slot.cache_tokens), self._cache.stripped(prompt)
        score = similarity(held, asked, self._cache.text_of)
        if slot.n_discarded_prompt > 0 and len(asked) >= slot.n_ctx:
            shifted = discard(asked, slot.n_kept_prompt, slot.n_discarded_prompt)
            score = max(score, similarity(held, shifted, self._cache.text_of))
        return score

    def _kept(self, slot: Slot, prompt: Tokens) -> np.float32:
        held, asked = self._cache.stripped(slot.cache_tokens), self._cache.stripped(prompt)
        if slot.n_discarded_prompt > 0 and len(asked) >= slot.n_ctx:
            return kept_fraction(
                held, discard(asked, slot.n_keep, slot.n_discarded_prompt), self._cache.text_of
            )
        return kept_fraction(held, asked, self._cache.text_of)

    # -- the RAM prompt cache ----------------------------------------------------------------

    def _consult(self, slot: Slot, prompt: Tokens, f_keep: np.float32) -> None:
        """Save when too little would be kept; then load, whether saved or not (an oddity)."""
        slot.list_moved_out = False
        update = bool(slot.cache_tokens) and f_keep < np.float32(self._options.cache_ram_similarity)
        long_enough = self._longer_than_n_min(slot)
        if self.enabled and update and long_enough:
            self._save(slot)
        if not self.enabled or not self._cache.entries:
            return
        self._copy(slot)
        self._load(slot, prompt)
        for entry in self._cache.update():
            self._record.append(events.PromptEvicted(n_tokens=len(entry.tokens), size=entry.size))
        slot.cache_tokens = list(slot.cached_prompt.tokens)
        slot.n_kept_prompt = slot.cached_prompt.n_kept_prompt
        slot.n_discarded_prompt = slot.cached_prompt.n_discarded_prompt

    @staticmethod
    def _copy(slot: Slot) -> None:
        slot.cached_prompt.tokens = list(slot.cache_tokens)
        slot.cached_prompt.n_kept_prompt = slot.n_kept_prompt
        slot.cached_prompt.n_discarded_prompt = slot.n_discarded_prompt

    def _longer_than_n_min(self, slot: Slot) -> bool:
        if self._options.cache_ram_n_min < 0:
            return False  # compared as an unsigned number: nothing is ever saved (an oddity)
        return len(self._cache.stripped(slot.cache_tokens)) >= self._options.cache_ram_n_min

    def _save(self, slot: Slot) -> None:
        """Copy the slot's conversation into the cache (`prompt_save`, alloc)."""
        self._copy(slot)
        prompt = slot.cached_prompt
        if not self._cache.room_for(prompt):
            self._record.append(
                events.PromptAlreadyCached(slot=slot.id, n_tokens=len(prompt.tokens))
            )
            return
        seq = SeqId(slot.id)
        entry = PromptEntry(
            tokens=list(prompt.tokens),
            n_kept_prompt=prompt.n_kept_prompt,
            n_discarded_prompt=prompt.n_discarded_prompt,
            checkpoints=list(prompt.checkpoints),
            state=self._primary.save(seq, partial=False),
            pos_min=self._primary.cells.seq_pos_min(seq),
            length=Count(len(prompt.tokens)),
        )
        self._cache.entries.append(entry)
        self._record.append(
            events.PromptSaved(
                slot=slot.id,
                n_tokens=len(entry.tokens),
                size=entry.size,
                checkpoints=len(entry.checkpoints),
            )
        )

    def _load(self, slot: Slot, prompt: Tokens) -> None:
        """Move the most similar entry into the slot (`server_prompt_cache::load`)."""
        score = np.float32(0)
        if slot.cached_prompt.tokens:
            score = self._cache.similarity(slot.cached_prompt, prompt)
        best, best_prefix = -1, 0
        for index, entry in enumerate(self._cache.entries):
            if not self._admitted(entry, prompt):
                continue
            candidate = self._cache.similarity(entry, prompt)
            prefix = self._cache.match(entry, prompt).left
            longer = self._rules.ram_ties_to_longer_prefix and best >= 0
            if candidate > score or (longer and candidate == score and prefix > best_prefix):
                best, score, best_prefix = index, candidate, prefix
        if self._cache.tags is None and not self._rules.clones_token_lists:
            # The scan moved every list out, the slot's and the winner's too (an oddity).
            for entry in self._cache.entries:
                entry.tokens = []
            slot.list_moved_out = bool(slot.cached_prompt.tokens)
            slot.cached_prompt.tokens = []
        if best >= 0:
            self._take(slot, best, score)

    def _admitted(self, entry: PromptEntry, prompt: Tokens) -> bool:
        rules, match = self._rules, self._cache.match(entry, prompt).left
        length = len(self._cache.stripped(entry.tokens))
        floor = np.float32(self._options.cache_ram_similarity)
        if rules.ram_floor and (length == 0 or np.float32(match) / np.float32(length) < floor):
            return False
        if rules.n_min_is_a_prefix and match < self._options.cache_ram_n_min:
            return False
        if rules.ram_reuse_n_min and match < self._options.cache_ram_reuse_n_min:
            return False
        prefix = common_prefix(entry.tokens, prompt, self._cache.text_of).left
        rewindable = entry.pos_min <= prefix or any(
            checkpoint.pos_max <= prefix for checkpoint in entry.checkpoints
        )
        return rewindable or not rules.ram_rewindable_only

    def _take(self, slot: Slot, index: int, score: np.float32) -> None:
        entry = self._cache.entries[index]
        if not self._primary.restore(SeqId(slot.id), entry.state):
            self._record.append(
                events.PromptLoadFailed(slot=slot.id, entry=index, n_tokens=entry.length)
            )
            return
        del self._cache.entries[index]
        slot.cached_prompt = CachedPrompt(
            tokens=entry.tokens,
            n_kept_prompt=entry.n_kept_prompt,
            n_discarded_prompt=entry.n_discarded_prompt,
            checkpoints=entry.checkpoints,
        )
        self._record.append(
            events.PromptLoaded(
                slot=slot.id, entry=index, n_tokens=entry.length, similarity=float(score)
            )
        )
