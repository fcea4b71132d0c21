"""Slots and the prompt cache: saving, loading, clearing, idle slots, purging."""

from collections.abc import Sequence
from typing import Any

from cachesim.engines.causes import Cause
from cachesim.engines.llamacpp import causes
from cachesim.engines.llamacpp.events import SlotPurged
from cachesim.engines.llamacpp.holdings import Holdings
from cachesim.engines.llamacpp.prompt_cache import Entry, PromptCache
from cachesim.engines.llamacpp.prompt_cache_events import (
    CacheEntryCompared,
    CacheEntryDropped,
    CacheEntryLoaded,
    CacheEntryObsolete,
    CacheEntryTooLarge,
    CacheLoadFailed,
    CacheSearchBegun,
    CacheState,
    IdleSlotSaved,
    PromptAlreadyCached,
    PromptCacheUpdateBegun,
    PromptSaving,
)
from cachesim.engines.llamacpp.ratio import Float32, shown
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot
from cachesim.engines.tokens import get_common_prefix
from cachesim.units import Count, Token, Tokens


class SwapLog:
    """Turns what the cache does into events and into losses of the request that waits."""

    def __init__(
        self,
        server: ServerContext,
        cache: PromptCache,
        slot: Slot,
        holdings: Holdings | None = None,
    ) -> None:
        self.server = server
        self.cache = cache
        self.slot = slot
        self.holdings = holdings

    def already_cached(self, tokens: Sequence[Token]) -> None:
        """Upstream: "prompt is already in the cache, skipping"."""
        self.server.emit(PromptAlreadyCached(slot=self.slot.id, n_tokens=len(tokens)))

    def obsolete(self, entry: Entry) -> None:
        """Upstream: "removing obsolete cached prompt"."""
        self.server.emit(CacheEntryObsolete(slot=self.slot.id, n_tokens=entry.n_tokens))
        self.refused(entry, causes.CACHE_OBSOLETE_ENTRY)

    def too_large(self, size: int, limit: int) -> None:
        """The prompt is not saved at all."""
        self.server.emit(CacheEntryTooLarge(slot=self.slot.id, size=size, limit=limit))

    def making_room(self, entry: Entry) -> None:
        """An entry goes before the one that needs its place is appended."""
        self._dropped(entry, "room", limit=self.cache.limit_size)
        self.refused(entry, causes.CACHE_MAKING_ROOM, size=entry.size)

    def limit_reached(self, entry: Entry, *, which: str, estimate: int) -> None:
        """An entry goes because a limit was reached."""
        self._dropped(entry, which, limit=estimate)

    def looking(self, f_keep: Float32, f_sim: Float32) -> None:
        """The search begins with the slot's own ratios as the bar."""
        self.server.emit(
            CacheSearchBegun(slot=self.slot.id, f_keep=shown(f_keep), f_sim=shown(f_sim))
        )

    def compared(self, entry: Entry, *, lcp: Count, f_keep: Float32, f_sim: Float32) -> None:
        """One entry of the search."""
        self.server.emit(
            CacheEntryCompared(
                slot=self.slot.id,
                n_tokens=entry.n_tokens,
                lcp=lcp,
                f_keep=shown(f_keep),
                f_sim=shown(f_sim),
            )
        )

    def refused(self, entry: Entry, cause: Cause, **detail: Any) -> None:  # noqa: ANN401
        """An entry is out of the race."""
        if self.holdings is not None:
            self.holdings.rule_out(entry, cause, n_tokens=entry.n_tokens, **detail)

    def _dropped(self, entry: Entry, reason: str, *, limit: int) -> None:
        self.server.emit(
            CacheEntryDropped(
                slot=self.slot.id,
                reason=reason,
                n_tokens=entry.n_tokens,
                size=entry.size,
                limit=limit,
            )
        )


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
    log = SwapLog(server, server.cache, slot, holdings)
    prompt_save(server, server.cache, slot, log)
    if not prompt_load(server, server.cache, slot, prompt, log):
        server.prompt_clear(slot)
        holdings.rule_out(slot, causes.SLOT_CLEARED, slot=int(slot.id))
    server.cache.update(log)
    emit_state(server, server.cache, slot)


def prompt_save(server: ServerContext, cache: PromptCache, slot: Slot, log: SwapLog) -> bool:
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
    return cache.alloc(entry, log)


def prompt_load(
    server: ServerContext, cache: PromptCache, slot: Slot, prompt: Tokens, log: SwapLog
) -> bool:
    """Take the best entry, if one beats the slot's own tokens (upstream: `prompt_load`).

    False means that a blob did not load: the entry stays, and the slot's memory is empty already.
    """
    entry = cache.find(slot.prompt.tokens, prompt, log)
    if entry is None:
        return True
    state = entry.state
    if not server.contexts.load_target(state.target, slot.id):
        server.emit(CacheLoadFailed(slot=slot.id, part="target", size=state.target_size))
        log.refused(entry, causes.CACHE_LOAD_FAILED)
        return False
    if not server.contexts.load_companion(state.companion, slot.id):
        server.emit(CacheLoadFailed(slot=slot.id, part="companion", size=state.companion_size))
        if cache.rules.load_consumes:
            entry.state = state.emptied()
        log.refused(entry, causes.CACHE_LOAD_FAILED)
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
    if log.holdings is not None:
        log.holdings.takes_over(slot, entry)
    return True


def save_idle_slots(server: ServerContext) -> None:
    """After a launch: copy what the idle slots hold into the cache (`--cache-idle-slots`)."""
    unified = server.options.unified
    if server.cache is None or not server.options.cache_idle_slots:
        return
    if server.rules.selection.idle_save_needs_unified and not unified:
        return
    for slot in server.slots:
        if slot.is_processing or not slot.prompt.tokens:
            continue
        server.emit(IdleSlotSaved(slot=slot.id))
        log = SwapLog(server, server.cache, slot)
        made = prompt_save(server, server.cache, slot, log)
        if server.rules.selection.idle_save_needs_unified:
            server.prompt_clear(slot)
            server.cache.update(log)
        else:
            if made:
                server.cache.update(log)
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
