from itertools import pairwise
from typing import Any

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.vllm.block_pool import GroupSpec
from cachesim.engines.vllm.checkpoints import is_exportable
from cachesim.engines.vllm.coordinator import KVCacheManager
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.managers import Mamba
from cachesim.engines.vllm.request import Prefixes
from cachesim.engines.vllm.request import Request as Scheduled
from cachesim.engines.vllm.vocabulary import ChunkScheduled
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.model.presets import preset
from cachesim.units import Tokens, as_tokens
from tests.engines.asking import answer, cached, verdict

TRITON = {"gdn_prefill_backend": "triton"}
FINE = {"block_size": 32, "prefix_match_unit": 8}
SMALLER = {
    "block_size": 32,
    "drafter_block_size": 16,
    "speculative_method": "eagle",
    "max_num_batched_tokens": 64,
}


def text(first: int, count: int) -> Tokens:
    return as_tokens(range(first, first + count))


def chunks(engine: Engine) -> list[tuple[int, int]]:
    return [
        (event.start, event.end) for event in engine.events if isinstance(event, ChunkScheduled)
    ]


@pytest.mark.parametrize(
    ("release", "model", "options", "cuts"),
    [
        ("0.31.0", "hybrid", {}, [64]),
        ("0.32.0", "hybrid", {}, []),
        ("0.32.0", "hybrid-delta", {}, [64]),
        ("0.33.0", "hybrid", {}, []),
        ("0.33.0", "hybrid", FINE, []),
        ("0.33.0", "hybrid-delta", {}, []),
        ("0.33.0", "hybrid-delta", FINE, []),
        ("0.33.0", "hybrid-delta", TRITON, [64]),
        ("0.33.0", "hybrid-swa", {}, [64]),
        ("0.33.0", "recurrent", {}, []),
    ],
)
def test_the_last_chunk_of_a_prompt_is_not_cut_where_its_layers_export_the_state(
    release: str, model: str, options: dict[str, Any], cuts: list[int]
) -> None:
    engine = Engine.create(f"vllm@{release}", model=preset(model), options=options)

    answer(engine, text(300, 70), 1)
    assert list(pairwise([0, *cuts, 70])) == chunks(engine)

    again = answer(engine, text(300, 75), 1)
    assert (64, "same") == (again.cached, verdict(engine, again))


@pytest.mark.parametrize(("prompt", "found"), [(60, 48), (90, 64), (100, 96), (120, 112)])
def test_beside_smaller_blocks_of_a_drafter_the_state_of_a_short_last_chunk_is_lost(
    prompt: int, found: int
) -> None:
    """The scheduler counts in the smallest blocks, the manager in those of the states."""
    engine = Engine.create("vllm@0.33.0", model=preset("hybrid"), options=SMALLER)

    assert [0, found] == cached(engine, text(300, prompt), text(300, prompt + 5), predict=1)


@pytest.mark.parametrize(
    ("span", "position", "alignment", "wanted"),
    [
        ((0, 33), 32, 1, True),
        ((0, 33), 32, 0, False),  # layers that export none
        ((0, 16), 12, 1, False),  # no entry before the last one
        ((16, 40), 32, 1, True),
        ((12, 40), 32, 1, True),
        ((14, 40), 32, 1, False),  # begins inside a unit
        ((20, 33), 32, 1, False),  # the entry holds the state that it begins with
        ((28, 52), 28, 1, False),
        ((0, 33), 33, 1, False),
        ((16, 40), 32, 32, False),  # not on the kernel's grid
    ],
)
def test_a_state_is_exported_inside_its_chunk_into_an_entry_of_its_own(
    span: tuple[int, int], position: int, alignment: int, *, wanted: bool
) -> None:
    assert wanted == is_exportable(span, position, unit=4, block=16, alignment=alignment)


def test_an_exported_state_among_drafts_ends_the_engine_core() -> None:
    group = GroupSpec(kind="mamba", block=4, checkpoint_alignment=1, speculative_blocks=8)
    manager = KVCacheManager([group], FAMILY.release("0.33.0").rules, num_blocks=40)
    request = Scheduled.make(0, Prefixes(4), [7], max_tokens=9)

    with pytest.raises(UpstreamAbort, match="_get_partial_block_hash"):
        manager.allocate_slots(request, 9, num_lookahead=8)


def test_a_null_block_gets_no_id_beyond_the_known_tokens() -> None:
    group = GroupSpec(kind="mamba", block=4, checkpoint_alignment=1, speculative_blocks=8)
    manager = KVCacheManager([group], FAMILY.release("0.33.0").rules, num_blocks=40)
    request = Scheduled.make(0, Prefixes(4), text(1, 9), max_tokens=9)
    (states,) = manager.managers
    states.tables[0] = [0, 0, 0, 0]

    assert isinstance(states, Mamba)
    assert states._cache_export(request, None, 12, 2) is None


@pytest.mark.parametrize(("retention", "kept"), [(None, [8]), (0, [])])
def test_the_exported_state_of_a_resumed_reply_is_kept_by_dense_retention_alone(
    retention: int | None, kept: list[int]
) -> None:
    group = GroupSpec(kind="mamba", block=4, checkpoint_alignment=1)
    rules = FAMILY.release("0.33.0").rules
    manager = KVCacheManager([group], rules, num_blocks=40, retention=retention)
    request = Scheduled.make(0, Prefixes(4), list(range(5)), max_tokens=9)
    for token in range(5, 11):
        request.append(token)

    manager.allocate_slots(request, 11)

    pool = manager.pool
    named = zip(pool.key_tokens, pool.key, strict=True)
    assert kept == [tokens for tokens, key in named if key is not None]


@pytest.mark.parametrize(("blocks", "most"), [(8, 16), (10, 16), (11, 32)])
def test_a_prompt_of_one_block_needs_no_entry_for_an_exported_state(blocks: int, most: int) -> None:
    options = {"num_gpu_blocks_override": blocks, "max_model_len": 4096}

    with pytest.raises(OptionError, match=f"4096 tokens: write {most} or less"):
        Engine.create("vllm@0.33.0", model=preset("hybrid"), options=options)


def test_every_draft_beyond_an_exported_state_is_judged() -> None:
    drafting = {"block_size": 8, "speculative_method": "eagle", "num_speculative_tokens": 8}
    engine = Engine.create("vllm@0.33.0", model=preset("hybrid"), options=drafting)
    engine.submit(Request(prompt=text(1, 5), predict=3))
    engine.step()

    assert 1 == len(answer(engine, text(9, 1), 1).generated)
