"""Operations in any order, sensible or not: the books agree until upstream's process would end."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachesim.engines.llamacpp.memory.attention import MARGIN, LanePlan, plan_lanes, visible_cells
from cachesim.engines.llamacpp.memory.batch import Batch, Ids, Splitter
from cachesim.engines.llamacpp.memory.context import BatchAllocr, Refusal, outputs_of
from cachesim.engines.llamacpp.memory.module import Memory
from cachesim.errors import UpstreamAbort
from conformance.real.vectors.memory import MemoryPlayer

ids = st.integers(0, 2)
places = st.integers(-1, 14)
flags = st.sampled_from(["none", "partial"])
RUN = st.fixed_dictionaries(
    {
        "seqs": st.lists(ids, min_size=1, max_size=2, unique=True),
        "start": st.integers(0, 12),
        "count": st.integers(1, 6),
    }
)
FAIL = st.fixed_dictionaries({"ubatch": st.integers(0, 2), "code": st.sampled_from([2, -2, -3])})


def op(name: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"op": st.just(name), **fields})


DECODE = st.fixed_dictionaries(
    {
        "op": st.just("decode"),
        "n_ubatch": st.integers(5, 9),
        "runs": st.lists(RUN, min_size=1, max_size=3),
        "follow": st.booleans(),
    },
    optional={"fail": FAIL, "all_outputs": st.booleans()},
)
OPERATIONS = st.one_of(
    DECODE,
    DECODE,
    DECODE,
    op("seq_rm", seq=st.integers(-1, 3), p0=places, p1=places),
    op("seq_cp", src=ids, dst=ids, p0=places, p1=places),
    op("seq_keep", seq=ids),
    op("seq_add", seq=ids, p0=places, p1=places, delta=st.integers(-5, 5)),
    op("seq_div", seq=ids, p0=places, p1=places, divisor=st.integers(1, 3)),
    op("clear", data=st.booleans()),
    op("save", seq=st.integers(-1, 2), flags=flags, slot=st.sampled_from("ab")),
    op("load", seq=st.integers(-1, 2), flags=flags, slot=st.sampled_from("ab")),
)
MEMORIES = {
    "kv": {"cells": 12, "n_swa": 4, "swa_type": "standard"},
    "iswa": {"cells": 16, "swa_cells": 10, "n_swa": 4, "swa_type": "chunked"},
    "recurrent": {"recurrent_cells": 3, "n_rs_seq": 2},
    "hybrid": {"cells": 16, "recurrent_cells": 3, "n_rs_seq": 2},
    "hybrid-iswa": {
        "cells": 16,
        "swa_cells": 12,
        "n_swa": 4,
        "swa_type": "symmetric",
        "recurrent_cells": 3,
        "n_rs_seq": 0,
    },
}
PARTS = {"kv": "cells", "swa": "swa_cells", "recurrent": "recurrent_cells"}


def followed(player: MemoryPlayer, step: dict[str, Any]) -> dict[str, Any]:
    """A decode whose runs start where memory ends, so that most of them are valid."""
    if step["op"] != "decode" or not step["follow"]:
        return step
    runs = [
        {**run, "start": player.context.seq_pos_max(run["seqs"][0]) + 1} for run in step["runs"]
    ]
    return {**step, "runs": runs[:1]}


def check_lanes(player: MemoryPlayer) -> None:
    """The rows of the last ubatch see through lanes exactly the cells that the mask shows them."""
    if not player.context.reached or player.context.cleanup:
        return
    ubatch, _ = player.context.reached[-1]
    for cache in player.parts.caches.values():
        masked = visible_cells(cache.streams, cache.mask, ubatch, causal=True)
        for plan in plan_lanes(cache.streams, ubatch):
            picked, frame = np.r_[plan.picked] - MARGIN, plan.frame
            for row, low, high in zip(frame.rows, frame.low, frame.high, strict=True):
                seen = picked[(frame.positions >= low) & (frame.positions <= high)]
                assert masked[row] == sorted(seen.tolist())


@settings(max_examples=max(5, settings.default.max_examples // 2))
@pytest.mark.parametrize("kind", sorted(MEMORIES))
@given(
    st.lists(OPERATIONS, max_size=30), st.booleans(), st.sampled_from(["b9094", "b9509", "b11434"])
)
def test_any_order_of_operations_keeps_the_books(
    kind: str, steps: list[dict[str, Any]], unified: bool, build: str
) -> None:
    layers = {part: 1 for part, needs in PARTS.items() if needs in MEMORIES[kind]}
    memory = {"kind": kind, "n_seq_max": 3, "unified": unified, "layers": layers}
    player = MemoryPlayer(build, {**memory, **MEMORIES[kind]})
    for step in steps:
        if step["op"] == "load" and step["slot"] not in player.slots:
            continue
        try:
            player.play(followed(player, step))
        except UpstreamAbort:
            return
        if step["op"] == "decode":
            check_lanes(player)


class NoRuns(BatchAllocr):
    """Never says that a batch is one sequence's run, so that the general way is gone everywhere."""

    def _init_alike(
        self, batch: Batch, seqs: tuple[Ids, ...], memory: Memory
    ) -> Splitter | Refusal:
        positions = tuple(batch.positions or self.continued(seqs, memory))
        reason = self.refusal(positions, seqs, {seqs[0]}, memory)
        return Refusal(reason=reason) if reason else Splitter(positions, seqs, outputs_of(batch))


def without_runs(player: MemoryPlayer, *, sections: bool) -> MemoryPlayer:
    known = player.context.allocr
    player.context.allocr = NoRuns(
        known.rules,
        n_seq_max=known.n_ids,
        unified=False,
        vocabulary=known.vocabulary,
        sections=sections,
    )
    return player


def lanes(player: MemoryPlayer) -> list[tuple[list[int], ...]]:
    """The cells that the rows of the last ubatch read in each cache."""
    if not player.context.reached or player.context.cleanup:
        return []
    ubatch, _ = player.context.reached[-1]

    def told(plan: LanePlan) -> tuple[list[int], ...]:
        numbers = (np.r_[plan.picked], *plan.frame)
        return tuple(number.tolist() for number in numbers)

    return [
        told(plan)
        for cache in player.parts.caches.values()
        for plan in plan_lanes(cache.streams, ubatch)
    ]


ONE_RUN = st.fixed_dictionaries(
    {
        "op": st.just("decode"),
        "n_ubatch": st.integers(4, 9),
        "runs": st.lists(
            st.fixed_dictionaries(
                {
                    "seqs": st.lists(ids, min_size=1, max_size=1),
                    "start": st.one_of(st.integers(0, 12), st.integers(58, 68)),
                    "count": st.integers(1, 6),
                }
            ),
            min_size=1,
            max_size=1,
        ),
        "follow": st.sampled_from([True, True, False]),
    },
    optional={"fail": FAIL, "all_outputs": st.booleans()},
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", sorted(MEMORIES))
@given(
    st.lists(st.one_of(ONE_RUN, ONE_RUN, OPERATIONS), max_size=30),
    st.booleans(),
    st.sampled_from(["b9094", "b9509", "b11434"]),
    st.booleans(),
)
def test_a_run_does_straight_what_the_general_way_does(
    kind: str, steps: list[dict[str, Any]], unified: bool, build: str, sections: bool
) -> None:
    layers = {part: 1 for part, needs in PARTS.items() if needs in MEMORIES[kind]}
    memory = {"kind": kind, "n_seq_max": 3, "unified": unified, "layers": layers}
    straight = MemoryPlayer(build, {**memory, **MEMORIES[kind]})
    straight.context.allocr.sections = sections
    general = without_runs(MemoryPlayer(build, {**memory, **MEMORIES[kind]}), sections=sections)
    for step in steps:
        if step["op"] == "load" and step["slot"] not in straight.slots:
            continue
        op = followed(straight, step)
        try:
            expected = general.play(op)
        except UpstreamAbort as end:
            with pytest.raises(UpstreamAbort, match=re.escape(str(end))):
                straight.play(op)
            return
        assert expected == straight.play(op)
        assert general.context.refusal == straight.context.refusal
        if op["op"] == "decode":
            assert lanes(general) == lanes(straight)
