"""The ledger: what was evaluated before a prompt, and that less of it is held."""

from collections.abc import Iterable

import numpy as np

from cachesim.engines.causes import Ledger
from cachesim.engines.llama_cpp_python import vocabulary
from cachesim.engines.tokens import PrefixTree, get_common_prefix
from cachesim.units import Count, Integers, Token, Tokens


class Account:
    """The tokens ever evaluated."""

    def __init__(self) -> None:
        self.computed = PrefixTree()

    def learn(self, tokens: Iterable[Token] | Integers, task: int) -> None:
        """Add tokens that a request evaluated."""
        self.computed.learn(np.asarray(tokens, np.int64), None, int(task))

    def of(self, prompt: Tokens, kept: Iterable[Tokens]) -> Ledger:
        """Compare the tokens of a prompt ever evaluated with those still kept."""
        best, by = self.computed.find(np.array(prompt, np.int64), None)
        held = max(get_common_prefix(tokens, prompt) for tokens in kept)
        name = f"request {by}" if best else "nothing"
        if held > best:
            best, name = held, "an earlier request"
        ledger = Ledger(Count(best), name)
        if held < best:
            ledger.apply(vocabulary.REPLACED, held, wanted=best, found=held)
        return ledger
