"""Sources of draft tokens: the request, the true continuation, or the prompt."""

from dataclasses import dataclass
from typing import Final

from cachesim.engines.vllm.options import VllmOptions
from cachesim.engines.vllm.request import Request
from cachesim.engines.vllm.step import PLACEHOLDER
from cachesim.units import Tokens

NGRAM: Final = 2
"""Tokens that must have been seen together before (`prompt_lookup_min`)."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """Proposes the next step's drafts.

    An EAGLE or MTP head proposes in every step; n-grams where the last tokens were seen before.
    """

    options: VllmOptions

    def propose(
        self, request: Request, forced: Tokens | None, given: tuple[Tokens, ...] | None, turn: int
    ) -> list[int]:
        """The drafts after what has been sampled so far."""
        count = self.options.drafts
        if not count:
            return []
        if given is not None:
            found = [int(each) for each in given[turn]] if turn < len(given) else []
        elif self.options.speculative_method == "ngram":
            found = _lookup(request.tokens, count)
        elif forced is not None:
            found = [int(each) for each in forced[request.num_output : request.num_output + count]]
        else:
            found = _lookup(request.tokens, count)
        found = found[:count]
        if self.options.use_eagle:
            found += [PLACEHOLDER] * (count - len(found))
        return found


def _lookup(tokens: list[int], count: int) -> list[int]:
    last = tokens[-NGRAM:]
    for end in range(len(tokens) - 1, NGRAM - 1, -1):
        if tokens[end - NGRAM : end] == last:
            return tokens[end : end + count]
    return []
