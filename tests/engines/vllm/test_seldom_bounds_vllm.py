"""Bounds of vLLM's cache that requests seldom meet, worked out from upstream's own expressions."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.family import Profile
from cachesim.engines.vllm.block_pool import GroupKind, GroupSpec
from cachesim.engines.vllm.connector import _ends
from cachesim.engines.vllm.coordinator import KVCacheManager, _admission_cap, replay_boundaries
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.managers import Need, SlidingWindow
from cachesim.engines.vllm.request import Chunk, Prefixes
from cachesim.engines.vllm.request import Request as ScheduledRequest
from cachesim.engines.vllm.runner import ChunkStore, Pages
from cachesim.engines.vllm.server import Vllm, _lookup
from cachesim.engines.vllm.vocabulary import ChunkScheduled
from cachesim.model.build import build
from cachesim.model.presets import preset, tiny

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
    rules = replace(RULES, retention=replace(RULES.retention, boundaries="eagle-exact"))

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


def test_a_state_that_is_kept_takes_its_block_from_other_groups() -> None:
    network = build(tiny("hybrid"), "ring")
    pages = Pages(network, (spec("full", 4), spec("mamba", 4)))
    pages.reach(3)
    pages.take(0, np.array([2]))
    store = ChunkStore(pages, ([1], [2]), 0, 4, 1)
    store.targets[1] = (2,)
    layer = network.spec.recurrent_layers[0]
    store.keep_states(layer, np.ones((1, 1, pages.shapes[layer].row), pages.shapes[layer].dtype))

    assert 1 == pages.owner[2]
    assert pages.state(layer, 2).all()


def windows(profile: str, window: int, **options: Any) -> SlidingWindow:
    """The manager of a model's windows, blocks of 16."""
    engine = Engine.create(
        profile,
        model=tiny("swa", window=window),
        options={"max_model_len": 1024, **options},
        arithmetic="counts",
    )
    assert isinstance(engine, Vllm)
    return next(
        manager
        for manager in engine.manager.coordinator.managers
        if isinstance(manager, SlidingWindow)
    )


@pytest.mark.parametrize(
    ("window", "whole", "short"), [(1, 0, 1), (2, 1, 1), (17, 1, 1), (18, 2, 1), (50, 4, 3)]
)
def test_blocks_in_a_row_that_make_a_hit(window: int, whole: int, short: int) -> None:
    """Those of the window - 1 tokens before; one less, but one, with the rule that is too short."""
    assert whole == windows("vllm@0.33.0", window).needed(use_eagle=False)
    assert whole + 1 == windows("vllm@0.33.0", window).needed(use_eagle=True)
    assert short == windows("vllm@0.33.0+window-one-short", window).needed(use_eagle=False)


@pytest.mark.parametrize(("tokens", "blocks"), [(31, 5), (32, 5), (33, 6), (48, 6), (49, 7)])
def test_a_window_is_admitted_with_what_a_step_may_add(tokens: int, blocks: int) -> None:
    """32 tokens before and those of a step, in blocks of 16, and one more."""
    options = {"max_num_batched_tokens": tokens, "max_num_seqs": 1, "async_scheduling": False}

    assert blocks == windows("vllm@0.33.0", 33, **options).admission_cap


@pytest.mark.parametrize(("tokens", "most"), [(8192, 1024), (1024, 1024), (255, 255), (5, 5)])
def test_requests_at_once_are_at_most_the_tokens_of_a_step(tokens: int, most: int) -> None:
    options = FAMILY.read(Profile("vllm", "0.33.0"), {"max_num_batched_tokens": tokens})

    assert most == options.limits(RULES).max_seqs


def chunks(*requests: Request, **options: Any) -> list[tuple[int, int, int]]:
    """The chunks of the last of some requests to a hybrid: first token, end, drafts."""
    engine = Engine.create(
        "vllm@0.33.0", model=preset("hybrid"), options=options, arithmetic="ring"
    )
    for request in requests:
        ticket = engine.submit(request)
        engine.run()
    found = (event for event in engine.events if isinstance(event, ChunkScheduled))
    return [(each.start, each.end, each.drafts) for each in found if each.task == ticket]


NGRAMS: dict[str, Any] = {
    "block_size": 4,
    "prefix_match_unit": 1,
    "speculative_method": "ngram",
    "num_speculative_tokens": 2,
}


def test_a_single_token_that_a_boundary_cuts_has_no_draft_slots() -> None:
    again = Request(prompt=tuple(range(300, 316)), predict=2)

    assert (15, 16, 0) == chunks(again, again, **NGRAMS)[0]


@pytest.mark.parametrize(("longest", "chunk"), [(20, (17, 18, 0)), (21, (17, 20, 2))])
def test_draft_slots_end_one_token_before_the_longest_request(
    longest: int, chunk: tuple[int, int, int]
) -> None:
    again = Request(prompt=tuple(range(300, 318)), predict=1)

    assert [chunk] == chunks(again, again, max_model_len=longest, **NGRAMS)


def test_attentions_hit_for_a_store_leaves_the_last_token_to_compute() -> None:
    groups, prefixes = [spec("mamba", 16), spec("full", 16)], Prefixes(16, 0)
    manager = KVCacheManager(groups, FAMILY.release("0.27.1").rules, num_blocks=20)
    first, again = (
        ScheduledRequest.make(number, prefixes, range(10, 42), max_tokens=1) for number in (0, 1)
    )
    assert manager.allocate_slots(first, 32) is not None
    manager.free(first)
    manager.new_step_starts()
    hit, diverged = manager.attention_hit(again)

    assert (16, True) == (hit.length, diverged)


@pytest.mark.parametrize(("computed", "counted"), [(8, 2), (12, 1), (16, 0)])
def test_free_blocks_of_a_hit_that_lie_before_the_window_are_not_counted(
    computed: int, counted: int
) -> None:
    """A store reaches further than the hit, and the window moves on with it."""
    [window] = KVCacheManager([spec("window", 4, window=5)], RULES, num_blocks=20).managers
    hit = window.pool.get_new_blocks(3)
    window.pool.free_blocks(hit)
    request: Any = SimpleNamespace(id=0)

    slots = computed + 4
    found = window.num_blocks_to_allocate(request, hit, Need(slots, slots, computed, 12))

    assert counted == found - (slots // 4 - max((computed - 4) // 4, len(hit)))
