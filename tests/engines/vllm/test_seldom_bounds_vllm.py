"""Bounds of vLLM's cache that requests seldom meet, worked out from upstream's own expressions."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cachesim.engines.vllm.coordinator import _admission_cap, replay_boundaries
from cachesim.engines.vllm.drafting import _lookup
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.groups import GroupKind, GroupSpec
from cachesim.engines.vllm.pages import Pages
from cachesim.engines.vllm.step import Chunk
from cachesim.engines.vllm.store import _ends
from cachesim.model.build import build
from cachesim.model.presets import tiny

RULES = FAMILY.release("0.33.0").rules


def spec(kind: GroupKind, block: int, **more: int) -> GroupSpec:
    return GroupSpec(kind=kind, block=block, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([1, 2, 3, 4, 1, 2], [3, 4, 1]),
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2]),  # the last time counts
        ([5, 1, 2, 1, 2], [1, 2]),
        ([1, 1, 1], [1]),
        ([1, 2, 3, 4], []),
        ([1, 2], []),
    ],
)
def test_what_followed_the_last_two_tokens(tokens: list[int], found: list[int]) -> None:
    assert found == _lookup(tokens, 3)


@pytest.mark.parametrize(
    ("prompt", "eagle", "ends"),
    [
        (64, False, (63,)),
        (64, True, (32, 48)),  # sent again: up to 63; with more tokens: up to 64; less a block
        (65, True, (48,)),
        (10, True, (0,)),
        (16, True, (0,)),
        (17, True, (0,)),
        (33, True, (16,)),
    ],
)
def test_where_a_prompt_that_is_sent_again_can_resume(
    prompt: int, eagle: bool, ends: tuple[int, ...]
) -> None:
    retention = replace(RULES.retention, boundaries="eagle-exact")
    rules = replace(RULES, retention=retention)

    assert ends == replay_boundaries(rules, prompt, 16, eagle=eagle)


@pytest.mark.parametrize(
    ("group", "local", "ends"),
    [
        (spec("mamba", 16), 0, [96]),
        (spec("window", 16, window=1), 0, []),
        (spec("window", 16, window=2), 0, [96]),  # position 95 is seen from 96
        (spec("window", 16, window=17), 0, [96]),
        (spec("window", 16, window=18), 0, [80, 96]),
        (spec("window", 16, window=18), 80, [96]),
        (spec("chunked", 16, chunk=64), 0, [80, 96]),
        (spec("chunked", 16, chunk=48), 0, []),
    ],
)
def test_which_blocks_a_store_has_to_bring(group: GroupSpec, local: int, ends: list[int]) -> None:
    """To go on at 96: the window of position 96, the chunk that it lies in, a state."""
    assert ends == list(_ends(group, local, 96))


@pytest.mark.parametrize(
    ("group", "most"),
    [
        (spec("full", 16), None),
        (spec("window", 16, window=33), (33 - 1 + 64) // 16 + 1),
        (spec("window", 16, window=34), 7 + 1),
        (spec("window", 16, window=4000), 1024 // 16 + 1),
        (spec("chunked", 16, chunk=64), 128 // 16),
        (spec("chunked", 16, chunk=65), 9),
    ],
)
def test_blocks_that_a_request_of_any_length_holds_at_most(
    group: GroupSpec, most: int | None
) -> None:
    """64 tokens in flight, 1,024 in all."""
    assert most == _admission_cap(group, 64, 1024)


@pytest.mark.parametrize(
    ("drafts", "count", "last"),
    [((), 2, [8, 9]), ((5,), 2, [9, 5]), ((5, -1), 2, [5, 0]), ((5,), 9, [6, 7, 8, 9, 5])],
)
def test_the_last_tokens_of_a_chunk(drafts: tuple[int, ...], count: int, last: list[int]) -> None:
    request: Any = SimpleNamespace(tokens=list(range(12)))
    chunk = Chunk(request=request, start=6, count=4, drafts=drafts)

    assert last == chunk.last_tokens(count)
    assert chunk.tokens[-min(count, len(chunk.tokens)) :] == last


def test_a_block_is_copied_with_everything_in_it_and_belongs_to_its_group() -> None:
    network = build(tiny("hybrid"), "ring")
    groups = (spec("full", 4), spec("mamba", 4))
    pages = Pages(network, groups)
    pages.reach(3)
    for held in (*pages.keys.values(), *pages._values.values(), *pages._states.values()):
        held[...] = np.arange(held.size).reshape(held.shape)
    for group in (0, 1):
        expected = pages.content(group, 1)
        pages.copy(group, 1, 2)
        copied = pages.content(group, 2)
        for layer, parts in expected.items():
            for one, other in zip(parts, copied[layer], strict=True):
                assert np.array_equal(one, other)
        assert [group] == [pages.owner[2]]
        lost = pages.content(1 - group, 2)
        assert all(not part.any() for parts in lost.values() for part in parts)
