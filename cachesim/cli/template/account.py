"""The ledger of a request: tokens that were computed before, and why fewer are reused."""

from cachesim.engines.causes import Ledger
from cachesim.units import Count

from . import vocabulary


def account(equal: int, prompt: int, block: int) -> Ledger:
    """The rules between the tokens that are equal and those that are reused."""
    ledger = Ledger(Count(equal), "an earlier prompt" if equal else "nothing")
    most = min(equal, prompt - 1)
    ledger.apply(vocabulary.LAST_TOKEN, most, prompt_tokens=prompt)
    ledger.apply(vocabulary.WHOLE_BLOCKS, most // block * block, block=block)
    return ledger
