"""Account of a lookup: what was computed before, and the rule that lowered the hit below it."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, TypeAlias

from cachesim.engines.causes import Cause, Ledger
from cachesim.engines.tokens import get_common_prefix
from cachesim.engines.vllm import vocabulary
from cachesim.engines.vllm.coordinator import Coordinator, Hit, SpecGroup
from cachesim.engines.vllm.managers import LookUp
from cachesim.engines.vllm.request import Request

# Accounting of lost reuse: the rule that lowered the number, group by group.
#
#     computed before   -last token->  -whole blocks->  full attention  -> look-ahead
#                       -> window -> state -> common hit -> store
#
# The numbers are the lookup's own: the hit of each kind of group in the first round.

NOTHING: Final = "nothing"

ATTENTION: Final = (vocabulary.ATTENTION_MISSING, vocabulary.ATTENTION_EVICTED)
MISSES: Final[Mapping[str, tuple[Cause, Cause]]] = {
    "full": ATTENTION,
    "chunked": ATTENTION,
    "window": (vocabulary.WINDOW_MISSING, vocabulary.WINDOW_EVICTED),
    "mamba": (vocabulary.STATE_MISSING, vocabulary.STATE_EVICTED),
}
"""Causes of a group's shorter hit: never cached, or evicted."""


Tails: TypeAlias = dict[tuple[int, int], list[tuple[tuple[int, ...], int]]]
"""Parts of units and the requests that computed them, by preceding prefix and first token."""


class Computed:
    """All computed sequences, by hash unit."""

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self._whole: dict[int, int] = {}  # prefix -> the request that first computed it
        self._tails: Tails = {}
        self._earlier: Tails = {}

    def learn(self, request: Request, count: int) -> None:
        """Add the computed tokens `[0, count)` of a request."""
        unit, first = self.unit, request.learned
        last = max(first, min(count // unit, len(request.hashes)))
        parent = request.hashes[first - 1] if first else request.root
        request.learned = last
        for index in range(first, last):
            number = request.hashes[index]
            if number not in self._whole:
                self._whole[number] = request.id
                self._remember(request, parent, index * unit, (index + 1) * unit)
            parent = number
        if count % unit and count // unit == last:
            self._remember(request, parent, count // unit * unit, count)

    def _remember(self, request: Request, parent: int, start: int, end: int) -> None:
        tail = tuple(request.tokens[start:end])
        known = self._tails.setdefault((parent, tail[0]), [])
        if not any(earlier[: len(tail)] == tail for earlier, _ in known):
            known.append((tail, request.id))

    def cut(self, left: AbstractSet[int]) -> None:
        """Keep only the prefixes `left`, and the parts of units added since the previous cut."""
        self._whole = {number: by for number, by in self._whole.items() if number in left}
        self._earlier, self._tails = self._tails, {}

    def equal(self, request: Request) -> tuple[int, str]:
        """Number of leading tokens that were computed before, and the request that did."""
        unit, parent, count, by = self.unit, request.root, 0, -1
        for unit_hash in request.hashes:
            if unit_hash not in self._whole:
                break
            parent, count, by = unit_hash, count + unit, self._whole[unit_hash]
        rest = request.tokens[count : count + unit]
        if rest:
            best = 0
            for tails in (self._earlier, self._tails):
                for tail, who in tails.get((parent, rest[0]), ()):
                    shared = get_common_prefix(tail, rest)
                    if shared > best:
                        best, by = shared, who
            count += best
        return count, f"request {by}" if count else NOTHING


@dataclass(frozen=True, slots=True)
class Account:
    """The accounting of a request's lookup; `lost` holds the evicted keys."""

    ledger: Ledger
    request: Request
    coordinator: Coordinator
    lost: AbstractSet[int]

    def of(self, hit: Hit) -> None:
        """Apply the causes between the computed tokens and the hit."""
        ledger, coordinator = self.ledger, self.coordinator
        known = self.request.num_tokens
        if not hit.by_group:  # no lookup
            ledger.apply(vocabulary.CACHE_NOT_READ, 0)
            return
        if ledger.equal > known - 1:
            ledger.apply(vocabulary.LAST_TOKEN, known - 1, prompt_tokens=known)
        grain = self._grain
        ledger.apply(vocabulary.WHOLE_BLOCKS, ledger.usable // grain * grain, block=grain)
        groups = list(zip(coordinator.spec_groups, hit.by_group, strict=False))
        for group, answer in groups:
            self._group(group, answer)
        if hit.length > ledger.usable:
            ledger.apply(vocabulary.STATE_FORGIVEN, hit.length, answer=hit.length)
        elif hit.length < ledger.usable:
            answers = {group.spec.kind: answer for group, answer in groups}
            ledger.apply(vocabulary.GROUPS_DISAGREE, hit.length, answers=answers)

    @property
    def _grain(self) -> int:
        coordinator = self.coordinator
        single = len(coordinator.managers) == 1
        return coordinator.scheduler_block if single else coordinator.alignment

    def _group(self, group: SpecGroup, answer: int) -> None:
        usable, spec = self.ledger.usable, group.spec
        if answer > usable:
            self.ledger.apply(
                vocabulary.GRANTS_MORE, answer, kind=spec.kind, block=spec.block, answer=answer
            )
            return
        served = answer
        if answer < usable and group.use_eagle and spec.kind != "mamba":
            hashes, grain = self.request.hashes, self._grain
            query = LookUp(hashes, usable, group.ids, drop_eagle_block=False, alignment=grain)
            _, without = group.manager.find(query)
            served = max(answer, min(without, usable))
        if served < usable:
            groups, unit = self.coordinator.pool.groups, self.coordinator.hash_block
            numbers = self.request.hashes[served // unit : usable // unit]
            evicted = any(number * groups + i in self.lost for number in numbers for i in group.ids)
            cause = MISSES[spec.kind][evicted]
            self.ledger.apply(cause, served, wanted=usable, found=served, block=spec.block)
        if answer < served:
            self.ledger.apply(
                vocabulary.LOOK_AHEAD_BLOCK, answer, kind=spec.kind, block=served - answer
            )
