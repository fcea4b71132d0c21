"""The slot of a task, and the swap of its prompt with the prompt cache."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from cachesim.engines.causes import Candidates
from cachesim.engines.llamacpp.prompt_cache import (
    HALF,
    Entry,
    Float32,
    PromptCache,
    Swap,
    quotient,
    ratio,
)
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot, Task
from cachesim.engines.llamacpp.vocabulary import causes, events
from cachesim.engines.tokens import get_common_prefix
from cachesim.units import Count, Tokens


def update_prompt_cache(
    server: ServerContext, slot: Slot, prompt: Tokens, candidates: Candidates
) -> None:
    """Save the slot's prompt, load a better one, apply the limits.

    Upstream: the last part of `get_available_slot`.
    """
    if server.cache is None:
        return
    server.emit(events.PromptCacheUpdateBegun(slot=slot.id))
    swap = Swap(slot.id, server.emit, candidates, server.brief)
    # Saved before the search. Trap: making room for the outgoing prompt may drop the entry that the
    # new one needs.
    prompt_save(server, server.cache, slot, swap)
    # A state that did not load has already replaced the memory's content: nothing is left to keep.
    if not prompt_load(server, server.cache, slot, prompt, swap):
        server.prompt_clear(slot)
        candidates.rule_out(slot, causes.SLOT_CLEARED, slot=int(slot.id))
    server.cache.update(swap)
    emit_state(server, server.cache, slot)


def prompt_save(server: ServerContext, cache: PromptCache, slot: Slot, swap: Swap) -> bool:
    """Copy a slot's prompt into the cache (upstream: `prompt_save`); True for a new entry."""
    prompt = slot.prompt
    if not prompt.tokens:
        return False
    saved = server.contexts.save(slot.id, partial=False)
    server.emit(
        events.PromptSaving(
            slot=slot.id,
            n_tokens=prompt.n_tokens,
            size=saved.size,
            size_companion=saved.companion_size,
        )
    )
    entry = Entry(
        tokens=prompt.tokens[:],
        state=saved,
        checkpoints=tuple(prompt.checkpoints),
        approximate=prompt.approximate,
    )
    return cache.alloc(entry, swap)


def prompt_load(
    server: ServerContext, cache: PromptCache, slot: Slot, prompt: Tokens, swap: Swap
) -> bool:
    """Load the best entry, if one exceeds the slot's own tokens (upstream: `prompt_load`).

    False if a blob did not load.
    """
    entry = cache.find(slot.prompt.tokens, prompt, swap)
    if swap.brief and swap.candidates is not None:
        swap.candidates.keep(slot, entry)
    if entry is None:
        return True
    state = entry.state
    # The entry stays, and the slot's memory is already empty. Usually busy slots of a unified cache
    # have left too few cells.
    if not server.contexts.load_target(state.target, slot.id):
        server.emit(events.CacheLoadFailed(slot=slot.id, part="target", size=state.target_size))
        swap.rule_out(entry, causes.CACHE_LOAD_FAILED)
        return False
    if not server.contexts.load_companion(state.companion, slot.id):
        server.emit(
            events.CacheLoadFailed(slot=slot.id, part="companion", size=state.companion_size)
        )
        # Trap: the entry stays without the target's part, and its next load counts as a success
        # although nothing is restored.
        if cache.rules.load_consumes:
            cache.empty(entry)
        swap.rule_out(entry, causes.CACHE_LOAD_FAILED)
        return False
    slot.prompt.tokens = entry.tokens[:]
    slot.prompt.checkpoints = list(entry.checkpoints)
    slot.prompt.approximate = entry.approximate
    # A load takes the entry out. Trap: if the request keeps only a prefix of it, the rest is lost.
    # #24143 keeps the entry, at its old age.
    if cache.rules.load_consumes:
        cache.remove(entry)
    server.emit(
        events.CacheEntryLoaded(
            slot=slot.id,
            n_tokens=entry.n_tokens,
            checkpoints=len(entry.checkpoints),
            kept=not cache.rules.load_consumes,
            shared=get_common_prefix(entry.tokens, prompt),
        )
    )
    if swap.candidates is not None:
        swap.candidates.transfer(slot, entry)
    return True


def save_idle_slots(server: ServerContext) -> None:
    """Copy idle slots into the cache after a launch (upstream: `slot_save_and_clear`)."""
    unified = server.options.unified
    if server.cache is None or not server.options.cache_idle_slots:
        return
    # Until b9601 slots with cells of their own are never copied.
    if server.rules.selection.idle_save_needs_unified and not unified:
        return
    for slot in server.slots:
        if slot.is_processing:
            continue
        # Trap: an empty slot file leaves a slot without tokens and its cells as they were. If slots
        # share their cells, later releases clear such a slot here; in earlier ones the cells are
        # lost.
        if not slot.prompt.tokens:
            clears = unified and not server.rules.selection.idle_save_needs_unified
            if clears and server.contexts.target.seq_pos_max(slot.id) >= 0:
                server.prompt_clear(slot)
            continue
        # #26893 proposes to save completions only: nothing else searches the prompt cache.
        if not slot.completed and not server.rules.selection.idle_saves_any_task:
            if unified:
                server.prompt_clear(slot)
            continue
        server.emit(events.IdleSlotSaved(slot=slot.id))
        swap = Swap(slot.id, server.emit)
        made = prompt_save(server, server.cache, slot, swap)
        # Until b9601 the cells are freed at once; later the limits apply only to a new entry, and
        # slots with cells of their own keep their content: the cache holds a second copy.
        if server.rules.selection.idle_save_needs_unified:
            server.prompt_clear(slot)
            server.cache.update(swap)
        else:
            if made:
                server.cache.update(swap)
            if unified:
                server.prompt_clear(slot)
        emit_state(server, server.cache, slot)


def try_clear_idle_slots(server: ServerContext) -> bool:
    """Clear the first idle slot with tokens, unsaved (upstream's name)."""
    # With cells of its own a slot gives none to another.
    if not server.options.unified:
        return False
    for slot in server.slots:
        # Trap: the first by id, not the oldest, and its prompt is not saved.
        if not slot.is_processing and slot.prompt.tokens:
            server.emit(events.SlotPurged(slot=slot.id, n_tokens=slot.prompt.n_tokens))
            server.prompt_clear(slot)
            return True
    return False


def emit_state(server: ServerContext, cache: PromptCache, slot: Slot) -> None:
    """Upstream's "cache state" line."""
    server.emit(
        events.CacheState(
            slot=slot.id,
            entries=len(cache.entries),
            size=cache.size,
            limit_size=cache.limit_size,
            limit_tokens=cache.limit_tokens,
            estimate=cache.token_limit(),
        )
    )


Road: TypeAlias = Literal["id", "similarity", "age"]
"""Reason for a slot's selection: named by the request, most similar, least recently used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A slot, and a flag to swap its prompt with the prompt cache."""

    slot: Slot
    road: Road
    update: bool
    sim: Float32 | None = None
    f_keep: Float32 | None = None


def candidates_of(server: ServerContext, task: Task) -> Candidates:
    """The number of tokens that each slot and entry shares with a new prompt."""
    ended, cache = server.ended, server.cache
    common: dict[object, Count] = {
        slot: get_common_prefix(slot.prompt.tokens, task.tokens) for slot in server.slots
    }
    if cache is not None:
        common.update(cache.common(task.tokens).items())
    for index, tokens in enumerate(() if ended is None else ended.held):
        common[index] = get_common_prefix(tokens, task.tokens)

    def name(holder: Slot | Entry | int) -> str:
        if isinstance(holder, Slot):
            return f"slot {holder.id}"
        if isinstance(holder, Entry) and cache is not None:
            return f"prompt cache entry {cache.entries.index(holder)}"
        return f"what {ended.model if ended else None} held before it was unloaded"

    candidates = Candidates(common, name)
    if ended is not None:
        for index in range(len(ended.held)):
            candidates.rule_out(index, causes.MODEL_UNLOADED, model=ended.model, asked=ended.asked)
    return candidates


def choose_slot(server: ServerContext, task: Task) -> Slot | None:
    """Find the slot for a task; with None or a busy slot the task has to wait.

    Upstream: the head of `process_single_task`.
    """
    candidates = candidates_of(server, task)
    task.ledger = candidates.ledger
    choice: Choice | None
    # Until pinned requests use the prompt cache, a pinned task takes its slot without comparison:
    # nothing is saved, nothing is loaded.
    if task.id_slot >= 0 and not server.rules.selection.pinned_slot_uses_cache:
        choice = Choice(slot=_by_id(server, task), road="id", update=False)
    else:
        choice = get_available_slot(server, task)
    if choice is None:
        return None
    if task.kind != "completion":  # "cache prompts only for completion tasks"
        choice = replace(choice, update=False, f_keep=None)
    _rule_out_slots(server, choice, candidates)
    if choice.update:
        update_prompt_cache(server, choice.slot, task.tokens, candidates)
    slot = int(choice.slot.id)
    # NaN: a pinned request and an empty slot. Nothing was compared, so the cache was not asked.
    if choice.f_keep is None or choice.sim is None or np.isnan(choice.f_keep):
        candidates.settle_on(choice.slot, causes.CACHE_UNSEEN, chosen=slot)
    else:
        ratios = {"f_keep": float(choice.f_keep), "sim": float(choice.sim)}
        candidates.settle_on(choice.slot, causes.F_KEEP, slot=slot, **ratios)
    return choice.slot


def _by_id(server: ServerContext, task: Task) -> Slot:
    # Ids beyond the slots are taken modulo their number, as upstream does.
    slot = server.slots[task.id_slot % len(server.slots)]
    server.emit(events.SlotChosenById(slot=slot.id, task=task.id))
    return slot


def get_available_slot(server: ServerContext, task: Task) -> Choice | None:
    """Choose by id, by similarity, or by age (upstream's name)."""
    pinned = _by_id(server, task) if task.id_slot >= 0 else None
    threshold = np.float32(server.options.slot_prompt_similarity)
    # 0 switches the comparison off (`--slot-prompt-similarity 0`).
    if threshold != 0:
        best, sim = _most_similar(server, task, pinned, threshold)
        if best is not None:
            # A slot that keeps half of its tokens or more is used as it is (upstream: `f_keep`).
            # In single precision from the rounded similarity, as upstream: 0.5 is a bound that is
            # hit. Trap: a pinned slot below the threshold counts as 0 and is swapped; an empty one
            # divides 0 by 0, and NaN is not below one half, so the cache is not asked (#28139).
            kept = np.float32(sim * np.float32(task.n_tokens))
            f_keep = quotient(kept, np.float32(best.prompt.n_tokens))
            if sim > 0:
                server.emit(
                    events.SlotChosenBySimilarity(
                        slot=best.id,
                        task=task.id,
                        similarity=float(sim),
                        threshold=float(np.float32(server.options.slot_prompt_similarity)),
                        f_keep=float(f_keep),
                    )
                )
            return Choice(
                slot=best,
                road="similarity" if task.id_slot < 0 else "id",
                update=bool(f_keep < HALF),
                sim=sim,
                f_keep=f_keep,
            )
    if pinned is not None:
        return Choice(slot=pinned, road="id", update=False)
    oldest = _least_recently_used(server)
    if oldest is None:
        return None
    server.emit(
        events.SlotChosenByAge(slot=oldest.id, task=task.id, t_last_used=oldest.t_last_used)
    )
    # No slot is similar enough, or none was compared: the prompt is always swapped.
    return Choice(slot=oldest, road="age", update=True)


def _most_similar(
    server: ServerContext, task: Task, pinned: Slot | None, threshold: Float32
) -> tuple[Slot | None, Float32]:
    """The idle slot with the largest share of the prompt, above the threshold (`sim_best`)."""
    best, sim_best = pinned, np.float32(0.0)
    for slot in server.slots:
        if slot.is_processing or not slot.prompt.tokens:
            continue
        # Trap: an id beyond the slots (used modulo elsewhere) never matches here, and counts as 0.
        if task.id_slot >= 0 and slot.id != task.id_slot:
            continue
        sim = ratio(get_common_prefix(slot.prompt.tokens, task.tokens), task.n_tokens)
        # Both strict: among equals the lowest id stays, and 10 of 100 tokens do not pass 0.1.
        if sim > sim_best and sim > threshold:
            best, sim_best = slot, sim
    return best, sim_best


def _least_recently_used(server: ServerContext) -> Slot | None:
    """The idle slot released longest ago."""
    # From the highest id down: upstream's test is `<=` in order of ids, so the highest of equals
    # wins, and a fresh server fills its last slot first.
    idle = (slot for slot in reversed(server.slots) if not slot.is_processing)
    return min(idle, key=lambda slot: slot.t_last_used, default=None)


def _rule_out_slots(server: ServerContext, choice: Choice, candidates: Candidates) -> None:
    threshold = float(np.float32(server.options.slot_prompt_similarity))
    chosen = int(choice.slot.id)
    for slot in server.slots:
        if slot is choice.slot:
            continue
        if slot.is_processing:
            candidates.rule_out(slot, causes.SLOT_BUSY, slot=int(slot.id))
        elif choice.road == "id":
            candidates.rule_out(slot, causes.SLOT_PINNED, slot=int(slot.id), chosen=chosen)
        elif threshold == 0:
            candidates.rule_out(slot, causes.SLOT_AGE, slot=int(slot.id), chosen=chosen)
        else:
            candidates.rule_out(
                slot, causes.SLOT_SIMILARITY, slot=int(slot.id), threshold=threshold
            )
