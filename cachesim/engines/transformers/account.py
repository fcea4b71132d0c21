"""The ledger: what was computed before a request, and why less of it is reused."""

import numpy as np

from cachesim.engines.causes import Ledger
from cachesim.engines.tokens import PrefixTree
from cachesim.engines.transformers import vocabulary
from cachesim.engines.transformers.cache import PagedAttentionCache
from cachesim.engines.transformers.options import TransformersOptions
from cachesim.engines.transformers.requests import RequestState
from cachesim.units import Count


class Account:
    """The computed tokens, and the rules between them and a match."""

    def __init__(self, cache: PagedAttentionCache, options: TransformersOptions) -> None:
        self.cache, self.options = cache, options
        self.computed = PrefixTree()
        self._learned: dict[int, int] = {}  # tokens of an active request in `computed`

    def learn(self, state: RequestState) -> None:
        """Add what an active request has computed."""
        if self._learned.get(state.id) != state.position_offset and state.position_offset:
            self._learned[state.id] = state.position_offset
            self.computed.learn(np.array(state.computed(), np.int64), None, state.id)

    def forget(self, request: int) -> None:
        """A request is active no more."""
        self._learned.pop(request, None)

    def of(self, state: RequestState, matched: int) -> Ledger:
        """The rules between the tokens computed before and the match."""
        prompt, page = state.initial, self.options.page_size
        best, by = self.computed.find(np.array(prompt, np.int64), None)
        name = f"request {by}" if best else "nothing"
        if matched > best:  # older than the record of computed tokens
            best, name = matched, "an earlier request"
        ledger = Ledger(Count(best), name)
        if not self.cache.use_prefix_sharing:
            allowed = self.options.allow_block_sharing
            ledger.apply(vocabulary.WINDOW_LAYERS if allowed else vocabulary.SHARING_OFF, 0)
            return ledger
        if best > len(prompt) - 1:
            ledger.apply(vocabulary.LAST_TOKEN, len(prompt) - 1, prompt_tokens=len(prompt))
        ledger.apply(vocabulary.WHOLE_PAGES, ledger.usable // page * page, page=page)
        if matched < ledger.usable:
            [full] = self.cache.allocators.values()
            missing = full.hashes(prompt)[matched // page : ledger.usable // page]
            evicted = not full.ledger.lost.isdisjoint(missing)
            cause = vocabulary.EVICTED if evicted else vocabulary.NOT_HASHED
            ledger.apply(cause, matched, wanted=ledger.usable, found=matched)
        return ledger
