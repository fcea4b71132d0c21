"""Slots and the prompt cache: saving, loading, clearing, idle slots, purging."""

from cachesim.engines.ledger import Holdings
from cachesim.engines.llamacpp import causes
from cachesim.engines.llamacpp.events import (
    CacheEntryLoaded,
    CacheLoadFailed,
    CacheState,
    IdleSlotSaved,
    PromptCacheUpdateBegun,
    PromptSaving,
    SlotPurged,
)
from cachesim.engines.llamacpp.prompt_cache import Entry, PromptCache, Swap
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot
from cachesim.engines.tokens import get_common_prefix
from cachesim.units import Tokens


def update_prompt_cache(
    server: ServerContext, slot: Slot, prompt: Tokens, holdings: Holdings
) -> None:
    """Park the slot's prompt, look for a better one, apply the limits.

    Upstream: the last part of `get_available_slot`. The order decides: making room for the
    outgoing prompt may drop the very entry that the new one needs.
    """
    if server.cache is None:
        return
    server.emit(PromptCacheUpdateBegun(slot=slot.id))
    swap = Swap(slot.id, server.emit, holdings)
    prompt_save(server, server.cache, slot, swap)
    if not prompt_load(server, server.cache, slot, prompt, swap):
        server.prompt_clear(slot)
        holdings.rule_out(slot, causes.SLOT_CLEARED, slot=int(slot.id))
    server.cache.update(swap)
    emit_state(server, server.cache, slot)


def prompt_save(server: ServerContext, cache: PromptCache, slot: Slot, swap: Swap) -> bool:
    """Copy a slot's prompt into the cache (upstream: `prompt_save`); True if an entry was made."""
    prompt = slot.prompt
    if not prompt.tokens:
        return False
    saved = server.contexts.save(slot.id, partial=False)
    server.emit(
        PromptSaving(
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
    """Take the best entry, if one beats the slot's own tokens (upstream: `prompt_load`).

    False means that a blob did not load: the entry stays, and the slot's memory is empty already.
    """
    entry = cache.find(slot.prompt.tokens, prompt, swap)
    if entry is None:
        return True
    state = entry.state
    if not server.contexts.load_target(state.target, slot.id):
        server.emit(CacheLoadFailed(slot=slot.id, part="target", size=state.target_size))
        swap.rule_out(entry, causes.CACHE_LOAD_FAILED)
        return False
    if not server.contexts.load_companion(state.companion, slot.id):
        server.emit(CacheLoadFailed(slot=slot.id, part="companion", size=state.companion_size))
        if cache.rules.load_consumes:
            entry.empty()
        swap.rule_out(entry, causes.CACHE_LOAD_FAILED)
        return False
    slot.prompt.tokens = entry.tokens[:]
    slot.prompt.checkpoints = list(entry.checkpoints)
    slot.prompt.approximate = entry.approximate
    if cache.rules.load_consumes:
        cache.entries.remove(entry)
    server.emit(
        CacheEntryLoaded(
            slot=slot.id,
            n_tokens=entry.n_tokens,
            checkpoints=len(entry.checkpoints),
            kept=not cache.rules.load_consumes,
            shared=get_common_prefix(entry.tokens, prompt),
        )
    )
    if swap.holdings is not None:
        swap.holdings.takes_over(slot, entry)
    return True


def save_idle_slots(server: ServerContext) -> None:
    """After a launch: copy idle slots into the cache (upstream: `slot_save_and_clear`).

    Trap: an empty slot file leaves a slot without tokens and its cells as they were. Where slots
    share their cells, later releases clear such a slot here; in earlier ones the cells are lost.
    """
    unified = server.options.unified
    if server.cache is None or not server.options.cache_idle_slots:
        return
    if server.rules.selection.idle_save_needs_unified and not unified:
        return
    for slot in server.slots:
        if slot.is_processing:
            continue
        if not slot.prompt.tokens:
            clears = unified and not server.rules.selection.idle_save_needs_unified
            if clears and server.contexts.target.seq_pos_max(slot.id) >= 0:
                server.prompt_clear(slot)
            continue
        if not slot.completed and not server.rules.selection.idle_saves_any_task:
            if unified:
                server.prompt_clear(slot)
            continue
        server.emit(IdleSlotSaved(slot=slot.id))
        swap = Swap(slot.id, server.emit)
        made = prompt_save(server, server.cache, slot, swap)
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
    """Empty the first idle slot that holds something, unsaved (upstream's name)."""
    if not server.options.unified:
        return False
    for slot in server.slots:
        if not slot.is_processing and slot.prompt.tokens:
            server.emit(SlotPurged(slot=slot.id, n_tokens=slot.prompt.n_tokens))
            server.prompt_clear(slot)
            return True
    return False


def emit_state(server: ServerContext, cache: PromptCache, slot: Slot) -> None:
    """Upstream's "cache state" line."""
    server.emit(
        CacheState(
            slot=slot.id,
            entries=len(cache.entries),
            size=cache.size,
            limit_size=cache.limit_size,
            limit_tokens=cache.limit_tokens,
            estimate=cache.token_limit(),
        )
    )
