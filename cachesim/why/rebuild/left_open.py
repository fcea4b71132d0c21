"""Other prompts that fit a log: what its lines leave open is drawn anew, request by request.

    line      f_sim = 0.247: the slot's first 683 to 688 tokens
    least     [ 683 of the slot ][ new ................... ]
    most      [ 688 of the slot ....... ][ new ........... ]
    lost      [ 688 of the slot ....... ][ what a lost conversation went on with ][ new ]

A draw is taken only if a copy of the server answers it as the log says.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from cachesim.engines.tokens import Rope
from cachesim.why.infer.evidence import counts_of
from cachesim.why.read.observed import Observed
from cachesim.why.rebuild.from_log import ENTRY, Candidate, Rebuilder, matches_choice
from cachesim.why.replay.replayed import Rebuilt, Replay

MOST_DRAWN: Final = 16
"""Most prompts drawn for a request, besides those of the likeliest replay."""

PARTS: Final = 6
"""Parts into which what is open is divided."""


class OtherPrompts(Rebuilder):
    """A replay with other prompts: draw 0 shares the least, 1 the most, others between.

    With `lost`, prompts may also go on like conversations that the server no longer held.
    """

    def __init__(self, replay: Replay, draw: int, *, lost: bool = False) -> None:
        super().__init__(replay.log, replay.settings, replay.hints)
        self._draw, self._rng, self._lost = draw, Random(draw), lost

    def _candidates(self, rebuilt: Rebuilt) -> list[Candidate]:
        usual = super()._candidates(rebuilt)
        request, (slots, entries) = rebuilt.observed, self.player.held()
        held = slots[request.slot] if 0 <= request.slot < len(slots) else Rope()
        least = float(self.settings.values.get("slot_prompt_similarity", 0.1))
        limits = [*_limits(request, len(usual[0].prompt), slots, entries)]
        drawn = [
            candidate
            for candidate in self._others(rebuilt, usual)
            if matches_choice(request, candidate, held, least)
            and all(candidate.prompt.common(rope) <= most for rope, most in limits)
        ]
        if self._draw > 1:
            self._rng.shuffle(drawn)
        return [*drawn[:MOST_DRAWN], *usual]

    def _others(self, rebuilt: Rebuilt, usual: Sequence[Candidate]) -> Iterator[Candidate]:
        """Prompts that part elsewhere from their holder."""
        slots, entries = self.player.held()
        names = {f"slot {n}": rope for n, rope in enumerate(slots)}
        names |= {f"{ENTRY} {n}": rope for n, rope in enumerate(entries)}
        holders = {(request.holder, request.cache_prompt): request for request in reversed(usual)}
        for candidate in reversed(holders.values()):
            known, whole = candidate.common, len(candidate.prompt)
            rope = names.get(candidate.holder, Rope())
            bounds = (known.low, known.high) if known.how == "bounded" else (known.value,) * 2
            low, high = (min(at or 0, len(rope), whole) for at in bounds)
            for place in self._places(low, high):
                start = rope[:place]
                starts = [*(self._as_lost(start, whole) if self._lost else ()), start]
                for each in starts:
                    prompt = self._filled(rebuilt.observed, each, rope, whole)
                    yield replace(candidate, prompt=prompt, goes_on=False, at_joint=False)

    def _as_lost(self, start: Rope, whole: int) -> Iterator[Rope]:
        """The start, gone on with like each earlier conversation that begins with it."""
        for request in self.replay.requests:
            earlier = request.submitted.prompt if request.submitted is not None else Rope()
            if start.common(earlier) == len(start) < len(earlier):
                yield earlier[: self._places(len(start) + 1, min(len(earlier), whole))[0]]

    def _places(self, low: int, high: int) -> list[int]:
        """Where a prompt may part: an entry of which too little is equal is not loaded, so the
        least that the log's lines allow is often not the least that explains its counts.
        """
        places = sorted({low + part * (high - low) // PARTS for part in range(PARTS + 1)})
        if self._draw > 1:
            return [self._rng.randint(low, max(low, high)) for _ in places]
        return places[::-1] if self._draw else places


def _limits(
    request: Observed, whole: int, slots: Sequence[Rope], entries: Sequence[Rope]
) -> Iterator[tuple[Rope, int]]:
    """What is held, and the most of it that the prompt begins with, by the log's lines."""
    for number, common in request.slot_common.items():
        if number < len(slots):
            yield slots[number], common
    ratio = request.sim if request.sim is not None else request.search.sim
    bounds = counts_of(ratio, whole)
    if bounds is not None and request.slot < len(slots):
        yield slots[request.slot], bounds.high
    remaining = iter(entries)
    for compared in request.search.compared:
        for entry in remaining:
            if len(entry) == compared.n_tokens:
                yield entry, compared.lcp
                break
