"""The ledger: what was computed before a request, and why less of it is reused."""

import numpy as np

from cachesim.engines.causes import Ledger
from cachesim.engines.marconi import vocabulary
from cachesim.engines.marconi.tree import Match, Tree
from cachesim.engines.tokens import PrefixTree
from cachesim.units import Count, Tokens


class Account:
    """The computed tokens, and the rules between them and a match."""

    def __init__(self) -> None:
        self.computed = PrefixTree()
        self._served = 0

    def learn(self, tokens: Tokens) -> None:
        """Add what a request has computed."""
        self.computed.learn(np.array(tokens, np.int64), None, self._served)
        self._served += 1

    def of(self, prompt: Tokens, match: Match, tree: Tree, *, whole: bool) -> Ledger:
        """The ledger of a prompt, which may be reused as a `whole` or up to its last token."""
        most = len(prompt) - (not whole)
        best, by = self.computed.find(np.array(prompt, np.int64), None)
        held, legal = tree.agreed(prompt[:most])
        name = f"request {by}" if best else "nothing"
        if held > best:  # older than the record of computed tokens
            best, name = held, "an earlier request"
        ledger = Ledger(Count(best), name)
        if best > most:
            ledger.apply(vocabulary.LAST_TOKEN, most, prompt_tokens=len(prompt))
        if held < ledger.usable:
            ledger.apply(vocabulary.NOT_KEPT, held, wanted=ledger.usable, found=held)
        legal = min(legal, ledger.usable)
        if legal < ledger.usable:
            ledger.apply(vocabulary.NO_STATE_YET, legal, wanted=ledger.usable, found=legal)
        if match.reusable != ledger.usable:
            ledger.apply(vocabulary.FALSE_MATCH, match.reusable, answer=match.reusable)
        return ledger
