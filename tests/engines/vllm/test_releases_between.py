"""Changes between releases of vLLM: groups' marks, ids, freed blocks, refused settings."""

from dataclasses import replace
from typing import Any

import pytest

from cachesim.engines import base
from cachesim.engines.vllm.block_pool import GroupSpec
from cachesim.engines.vllm.coordinator import KVCacheManager
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.options import VllmOptions
from cachesim.engines.vllm.request import Prefixes, Request
from cachesim.engines.vllm.splitter import Splitter
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.model.presets import preset
from conformance.real.vllm import playing

FULL = GroupSpec(kind="full", block=16)
ALL_MODE: Any = {"mamba_cache_mode": "all"}
ALIGN: Any = {"mamba_cache_mode": "align"}
EAGLE: Any = {"speculative_method": "eagle"}
STATES = GroupSpec(kind="mamba", block=16, speculative_blocks=2)
SMALL: Any = {"block_size": 32, "window_block_size": 16}
SHORT: Any = {"max_num_batched_tokens": 8, "max_num_seqs": 1}
THREE = replace(preset("hybrid"), layers=("ssm", "attention", "window"), window=32)


def groups_of(release: str, model: str, **options: Any) -> tuple[GroupSpec, ...]:
    given = VllmOptions(**options)
    rules = FAMILY.release(release).rules
    given.check(rules)
    return given.groups(preset(model), rules)


@pytest.mark.parametrize(
    ("release", "method", "marked"),
    [
        ("0.30.0", "mtp", ["mamba", "full", "full"]),
        ("0.31.0", "mtp", ["full"]),
        ("0.31.0", "eagle", ["mamba", "full", "full"]),
        ("0.32.0", "mtp", ["full"]),
        ("0.32.0", "eagle", ["mamba", "full", "full"]),
        ("0.33.0", "eagle", ["full"]),
        ("0.33.0", "none", []),
    ],
)
def test_a_release_marks_the_groups_that_its_engine_core_marks(
    release: str, method: str, marked: list[str]
) -> None:
    groups = groups_of(release, "hybrid-mtp", speculative_method=method)

    assert marked == [group.kind for group in groups if group.eagle]


@pytest.mark.parametrize(
    ("model", "options", "layers"),
    [
        ("dense", {}, {"full": [(0, 1, 2, 3)]}),
        ("dense", EAGLE, {"full": [(0, 1, 2, 3)]}),
        ("swa", {}, {"window": [(0, 2)], "full": [(1, 3)]}),
        ("swa", EAGLE, {"window": [(0, 2)], "full": [(1,), (3,)]}),  # the drafter's is beside 1
        ("hybrid", {}, {"mamba": [(0, 3), (1, 4)], "full": [(2, 5)]}),
        ("hybrid", EAGLE, {"mamba": [(0, 1, 3, 4)], "full": [(2, 5)]}),
        (
            "hybrid-delta",
            EAGLE | {"block_size": 32, "drafter_block_size": 16},
            {"mamba": [(0,), (2,)], "full": [(1,), (3,), ()]},
        ),
    ],
)
def test_groups_have_as_many_layers_each_as_the_engine_core_gives_them(
    model: str, options: dict[str, Any], layers: dict[str, list[tuple[int, ...]]]
) -> None:
    found: dict[str, list[tuple[int, ...]]] = {}
    for group in groups_of("0.33.0", model, **options):
        found.setdefault(group.kind, []).append(group.layers)

    assert layers == found
    assert [*layers] == [*found]


@pytest.mark.parametrize(
    ("model", "mode", "block"),
    [("hybrid", "align", 16), ("recurrent", "align", 32), ("hybrid", "all", 8)],
)
def test_beside_attention_states_have_its_blocks_in_align_mode(
    model: str, mode: str, block: int
) -> None:
    """0.23 to 0.33 were seen to overwrite the flag, in `_align_hybrid_block_size`."""
    size = 8 if mode == "all" else 32
    options: Any = {"mamba_cache_mode": mode, "mamba_block_size": size}
    groups = groups_of("0.27.1", model, **options)

    assert {block} == {group.block for group in groups if group.kind == "mamba"}


def test_prefill_is_cut_in_the_smallest_block_of_all_groups() -> None:
    """As the engine cores of 0.30.0 and 0.33.0 cut it (vllm-project/vllm#54076)."""
    groups = [STATES, GroupSpec(kind="full", block=16), GroupSpec(kind="full", block=8)]
    manager = KVCacheManager(groups, FAMILY.release("0.33.0").rules, num_blocks=50)
    splitter = Splitter.of(manager, budget=8192, use_eagle=False)
    request = Request.make(0, Prefixes(8, 0), range(10, 40), max_tokens=1)

    assert splitter is not None
    assert 24 == splitter.take(request, 30, 0, 0)


@pytest.mark.parametrize(
    ("release", "states", "unit"), [("0.27.1", 8, 2), ("0.27.1", 4, 2), ("0.31.0", 8, 8)]
)
def test_ids_beside_states_of_mode_all_are_coarse_by_size_until_027(
    release: str, states: int, unit: int
) -> None:
    """As `resolve_kv_cache_block_sizes` returns them for states in the smallest blocks."""
    options: Any = ALL_MODE | {"block_size": 8, "mamba_block_size": states, "prefix_match_unit": 2}
    rules = FAMILY.release(release).rules
    manager = KVCacheManager(groups_of(release, "hybrid", **options), rules, num_blocks=50, unit=2)

    assert unit == manager.sizes.hash_block


@pytest.mark.parametrize("release", ["0.27.1", "0.33.0"])
def test_an_interval_of_retention_is_checked_without_a_prefix_cache_too(release: str) -> None:
    """By the coordinator without prefix caching, whose state has one block for all tokens."""
    options: Any = {"enable_prefix_caching": False, "prefix_cache_retention_interval": 32}
    with pytest.raises(OptionError, match="multiple of 4096 tokens"):
        groups_of(release, "hybrid", **options)


def test_a_mark_that_is_named_goes_before_the_releases_own() -> None:
    groups = groups_of("0.33.0", "swa", speculative_method="eagle", eagle_groups="window")

    assert ["window"] == [group.kind for group in groups if group.eagle]


@pytest.mark.parametrize(
    ("release", "model", "options", "words"),
    [
        ("0.24.0", "dense", {"prefix_cache_retention_interval": 0}, "without groups"),
        ("0.33.0", "dense", {"prefix_cache_retention_interval": 64}, "without groups"),
        ("0.23.0", "hybrid", {"prefix_cache_retention_interval": 0}, r"thins \(window\)"),
        ("0.33.0", "hybrid", {"prefix_cache_retention_interval": 24}, "multiple of 16"),
        ("0.26.0", "hybrid", ALIGN | {"max_num_batched_tokens": 8}, "takes 16 or more"),
        ("0.33.0", "dense", {"max_num_batched_tokens": 8, "max_num_seqs": 9}, "which is 9"),
        ("0.33.0", "dense", EAGLE | SHORT | {"num_speculative_tokens": 8}, "more than the 8"),
        ("0.31.0", "hybrid", ALL_MODE | {"mamba_block_size": 8}, "are as large as attention's"),
        ("0.27.1", "hybrid", ALL_MODE | {"mamba_block_size": 32}, "at most as large"),
        ("0.33.0", "hybrid-mtp", EAGLE | {"drafter_block_size": 5}, "blocks of 5 and 16 tokens"),
        ("0.33.0", "swa", EAGLE | SMALL | {"drafter_block_size": 24}, "16 and 24 and 32 tokens"),
        ("0.33.0", "dense", EAGLE | {"drafter_block_size": 8}, "in their group"),
        ("0.27.1", "hybrid", ALIGN | EAGLE | {"drafter_block_size": 8}, "does not start with it"),
        # Blocks of windows that no release makes.
        ("0.33.0", "hybrid", {"window_block_size": 8}, "full attention and windows"),
        ("0.33.0", "dense", {"window_block_size": 8}, "full attention and windows"),
        ("0.33.0", "swa", {"window_block_size": 12}, "must divide one another"),
    ],
)
def test_what_a_release_refuses_at_its_start_is_refused(
    release: str, model: str, options: dict[str, Any], words: str
) -> None:
    """The releases' own engine cores and coordinators raise there."""
    with pytest.raises(OptionError, match=words):
        groups_of(release, model, **options)


@pytest.mark.parametrize(
    ("release", "model", "options"),
    [
        ("0.29.0", "dense", {"prefix_cache_retention_interval": 0}),
        ("0.23.0", "swa", {"prefix_cache_retention_interval": 0}),
        ("0.24.0", "hybrid", {"prefix_cache_retention_interval": 32}),
        ("0.27.1", "hybrid", {"max_num_batched_tokens": 8}),
        ("0.27.1", "hybrid", ALL_MODE | {"mamba_block_size": 8}),
        ("0.31.0", "hybrid-delta", ALL_MODE | {"mamba_block_size": 8}),
        ("0.26.0", "hybrid", {"max_num_batched_tokens": 8, "enable_prefix_caching": False}),
        ("0.33.0", "hybrid", EAGLE | {"drafter_block_size": 8}),
        ("0.27.1", "hybrid", EAGLE | {"drafter_block_size": 32}),
        ("0.32.0", "dense", EAGLE | SHORT | {"num_speculative_tokens": 8}),
        ("0.33.0", "dense", EAGLE | SHORT | {"num_speculative_tokens": 7}),
        ("0.33.0", "swa", EAGLE | SMALL | {"drafter_block_size": 8}),
    ],
)
def test_what_a_release_starts_with_is_not_refused(
    release: str, model: str, options: dict[str, Any]
) -> None:
    assert groups_of(release, model, **options)


@pytest.mark.parametrize("release", ["0.26.0", "0.27.1"])
def test_partial_hits_beside_windows_ended_the_engine_core(release: str) -> None:
    """Workload store-77 of seed 20261123, on both releases' own schedulers."""
    with pytest.raises(UpstreamAbort, match="fine-grained"):
        first_look_up(release)
    assert 0 == first_look_up("0.28.0")  # no hit is partial


def first_look_up(release: str) -> int:
    """With ids of 16 tokens, and blocks of 32 in all groups, a window's among them."""
    window = GroupSpec(kind="window", block=32, window=40)
    groups = [GroupSpec(kind="full", block=32), window, GroupSpec(kind="mamba", block=32)]
    manager = KVCacheManager(groups, FAMILY.release(release).rules, num_blocks=50, unit=16)
    request = Request.make(0, Prefixes(16, 0), range(10, 80), max_tokens=1)
    return manager.get_computed_blocks(request).length


def rejected_drafts(release: str) -> list[int]:
    """Blocks of states after each step: a prompt of 14 tokens, two drafts, and none."""
    manager = KVCacheManager([FULL, STATES], FAMILY.release(release).rules, num_blocks=50)
    prefixes = Prefixes(manager.sizes.hash_block, 0)
    request = Request.make(0, prefixes, range(10, 24), max_tokens=9)
    held = []
    for computed, new in ((0, 14), (14, 3), (15, 1)):
        request.num_computed = computed
        if computed == 14:
            request.append(5)
        assert manager.allocate_slots(request, new) is not None
        held.append(len(manager.managers[1].tables[request.id]))
    return held


@pytest.mark.parametrize("release", ["0.19.1", "0.22.1"])
def test_a_step_without_drafts_after_rejected_ones_ended_the_engine_core(release: str) -> None:
    """Seen on both releases' own cache manager: `num_required_blocks 3 < len(req_blocks) 4`."""
    with pytest.raises(UpstreamAbort, match=r"allocate_new_blocks.*num_required_blocks >"):
        rejected_drafts(release)
    assert [3, 4, 4] == rejected_drafts("0.23.0")  # a table may be longer than a step needs


@pytest.mark.parametrize(
    ("release", "connector", "held"),
    [("0.28.0", "store", 2), ("0.28.0", "none", 0), ("0.29.0", "store", 0), ("0.33.0", "store", 0)],
)
def test_beside_a_store_one_release_holds_the_last_state_of_each_group(
    release: str, connector: str, held: int
) -> None:
    """Its scheduler was seen to keep those blocks out of the free queue until the request ends."""
    options: dict[str, Any] = {"connector": connector, "async_scheduling": False}
    options |= {"block_size": 32, "prefix_match_unit": 8}
    model = preset("hybrid")
    engine: Any = base.Engine.create(
        f"vllm@{release}", model=model, options=options, arithmetic="ring"
    )
    engine.submit(
        base.Request(prompt=tuple(range(300, 340)), predict=30, reply=tuple(range(400, 430)))
    )
    most = 0
    while engine.step():
        most = max(most, sum(map(len, engine.manager.pins.values())))

    assert held == most
    assert {} == engine.manager.pins


@pytest.mark.parametrize(("method", "release"), [("eagle", "0.29.0"), ("ngram", "0.30.0")])
@pytest.mark.parametrize("arithmetic", ["ring", "counts"])
def test_in_all_mode_a_decode_that_is_handed_no_block_of_the_last_step_ends_the_engine(
    method: str, release: str, arithmetic: Any
) -> None:
    """V2 hands it to none, and 0.29 takes V2 with EAGLE; V1 to none in a step without drafts."""

    def play(profile: str, named: str) -> None:
        options = ALL_MODE | {"speculative_method": named}
        model = preset("hybrid")
        engine = base.Engine.create(profile, model=model, options=options, arithmetic=arithmetic)
        engine.submit(base.Request(prompt=tuple(range(300, 340)), predict=4))
        engine.run()

    play("vllm@0.30.0", "eagle")
    with pytest.raises(UpstreamAbort, match="prev_step_d is not None"):
        play(f"vllm@{release}", method)


def test_a_windows_run_ends_where_the_blocks_of_all_groups_end() -> None:
    groups = [GroupSpec(kind="full", block=32), GroupSpec(kind="window", block=16, window=17)]
    manager = KVCacheManager(groups, FAMILY.release("0.33.0").rules, num_blocks=30)
    prefixes = Prefixes(16, 0)
    first, again = (Request.make(at, prefixes, range(10, 90), max_tokens=1) for at in (0, 1))
    assert manager.allocate_slots(first, 80) is not None

    assert 64 == manager.get_computed_blocks(again).length


def test_windows_have_blocks_of_their_own() -> None:
    windows = groups_of("0.33.0", "swa", **SMALL)
    beside_states = VllmOptions(**SMALL).groups(THREE, FAMILY.release("0.28.0").rules)

    assert {("full", 32), ("window", 16)} == {(window.kind, window.block) for window in windows}
    assert [("mamba", 32), ("full", 32), ("window", 16)] == [
        (state.kind, state.block) for state in beside_states
    ]


@pytest.mark.parametrize("release", ["0.26.0", "0.27.1"])
def test_windows_beside_states_have_none_where_ids_cover_the_largest_block(release: str) -> None:
    with pytest.raises(OptionError, match="beside states this release does not start"):
        VllmOptions(**SMALL | ALIGN).groups(THREE, FAMILY.release(release).rules)


@pytest.mark.parametrize("given", ["none", ""])
@pytest.mark.parametrize(
    ("release", "model", "mode"),
    [
        ("0.19.1", "hybrid", "all"),
        ("0.27.1", "hybrid", "all"),
        ("0.27.1", "hybrid-delta", "align"),
        ("0.28.0", "hybrid", "align"),
        ("0.33.0", "hybrid", "align"),
    ],
)
def test_a_server_that_caches_prefixes_chooses_the_mode_of_states(
    release: str, model: str, mode: str, given: str
) -> None:
    """By `MambaModelConfig`, whose classes of Mamba layers support `all`; `none` is no choice."""
    options: Any = {"mamba_cache_mode": given} if given else {}
    modes = {each.mode for each in groups_of(release, model, **options) if each.kind == "mamba"}
    off = groups_of(release, model, **options, enable_prefix_caching=False)

    assert {mode} == modes
    assert {"none"} == {each.mode for each in off if each.kind == "mamba"}


@pytest.mark.parametrize(
    ("release", "model", "method", "interval"),
    [
        ("0.28.0", "hybrid", "none", None),
        ("0.29.0", "hybrid", "none", 0),
        ("0.29.0", "hybrid", "ngram", 0),
        ("0.29.0", "hybrid", "eagle", None),
        ("0.29.0", "swa", "eagle", 0),
        ("0.30.0", "hybrid", "eagle", 0),
    ],
)
def test_only_a_hybrid_with_a_drafter_keeps_all_states_by_default_in_029(
    release: str, model: str, method: str, interval: int | None
) -> None:
    options = {"speculative_method": method}
    made: Any = base.Engine.create(f"vllm@{release}", model=preset(model), options=options)

    assert interval == made.manager.coordinator.retention


@pytest.mark.parametrize(("release", "preempted"), [("0.30.0", [0, 1]), ("0.31.0", [0, 0])])
def test_a_state_beside_its_cached_tail_takes_one_block_since_0_31(
    release: str, preempted: list[int]
) -> None:
    """Results of the real schedulers with 9 blocks."""
    groups = [{"kind": "full", "block": 8}, {"kind": "mamba", "block": 8, "mode": "align"}]
    config = {"groups": groups, "blocks": 9, "hash_block": 2, "retention": 0}
    prompts = ("300-309", "400-409")
    together = [{"prompt": prompt, "generate": 3, "reply": "1 2 3"} for prompt in prompts]

    [result] = playing.play({"config": config, "steps": [together]}, FAMILY.release(release).rules)

    assert preempted == [request["preempted"] for request in result["requests"]]
