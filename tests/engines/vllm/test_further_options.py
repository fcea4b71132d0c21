"""Options that few servers set: what they change, and what a server refuses at its start."""

from typing import Any

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.vllm.options import VllmOptions
from cachesim.engines.vllm.vocabulary import ChunkScheduled
from cachesim.errors import OptionError
from cachesim.model.presets import preset
from cachesim.units import Tokens, as_tokens
from tests.engines.asking import answer, verdict

SMALL = {"block_size": 4}


def text(first: int, count: int) -> Tokens:
    return as_tokens(range(first, first + count))


def server(release: str = "0.33.0", model: str = "dense", **options: Any) -> Engine:
    return Engine.create(f"vllm@{release}", model=preset(model), options=SMALL | options)


def together(engine: Engine, *prompts: Tokens, predict: int = 4) -> list[tuple[int, int, int]]:
    """Chunks of requests that arrive together: request, start and end."""
    for prompt in prompts:
        engine.submit(Request(prompt=prompt, predict=predict))
    engine.run()
    engine.check_integrity()
    scheduled = [event for event in engine.events if isinstance(event, ChunkScheduled)]
    return [(int(each.task), int(each.start), int(each.end)) for each in scheduled]


@pytest.mark.parametrize(("release", "alone"), [("0.30.0", 8), ("0.31.0", 40)])
def test_a_threshold_cuts_a_request_that_is_alone_until_0_30(release: str, alone: int) -> None:
    options = {"long_prefill_token_threshold": 8}
    assert (0, 0, alone) == together(server(release, **options), text(10, 40))[0]
    beside = together(server(release, **options), text(10, 40), text(100, 20))
    assert [(0, 0, 8), (1, 0, 8)] == beside[:2]


def test_an_adaptive_threshold_is_at_least_a_share_of_the_step() -> None:
    options = {"long_prefill_token_threshold": 8, "max_num_batched_tokens": 40, "max_num_seqs": 8}
    adaptive = {"long_prefill_token_threshold_adaptive": True}
    chunks = together(server(**options, **adaptive), text(10, 60), text(100, 60))
    assert [(0, 0, 20), (1, 0, 20)] == chunks[:2]


def test_a_threshold_below_a_state_s_block_is_refused_until_0_26() -> None:
    options = {"long_prefill_token_threshold": 2, "mamba_cache_mode": "align"}
    with pytest.raises(OptionError, match="this release takes 0, or 4 or more"):
        server("0.26.0", "hybrid", **options)
    assert together(server("0.27.1", "hybrid", **options), text(10, 9))


def test_a_threshold_that_cuts_padded_drafts_is_refused() -> None:
    drafts = {"speculative_method": "ngram", "num_speculative_tokens": 3}
    with pytest.raises(OptionError, match="write 4 or more"):
        server(long_prefill_token_threshold=3, **drafts)


def test_a_watermark_keeps_a_second_request_waiting() -> None:
    """20 of 24 blocks are free beside the first; the second needs 10, and 12 stay free."""
    pool = {"num_gpu_blocks_override": 25, "max_num_batched_tokens": 64}
    both = together(server(**pool), text(10, 16), text(100, 40))
    apart = together(server(**pool, watermark=0.5), text(10, 16), text(100, 40))

    assert [0, 1] == [number for number, *_ in both[:2]]
    last_of_first = max(i for i, (number, *_) in enumerate(apart) if number == 0)
    assert last_of_first < min(i for i, (number, *_) in enumerate(apart) if number == 1)


def test_active_requests_are_fewer_than_the_runner_has_room_for() -> None:
    chunks = together(server(max_num_active_seqs=1), text(10, 8), text(100, 8))
    numbers = [number for number, *_ in chunks]
    assert sorted(numbers) == numbers
    with pytest.raises(OptionError, match="at most max_num_seqs"):
        server(max_num_seqs=2, max_num_active_seqs=3)


@pytest.mark.parametrize(("release", "waits"), [("0.32.0", False), ("0.33.0", True)])
def test_a_prefill_waits_for_its_turn_beside_a_decode_since_0_33(release: str, waits: bool) -> None:
    found = {}
    for interval in (1, 4):
        engine = server(release, prefill_schedule_interval=interval, async_scheduling=False)
        engine.submit(Request(prompt=text(10, 8), predict=12))
        for _ in range(2):
            engine.step()
        engine.submit(Request(prompt=text(100, 8), predict=1))
        engine.run()
        chunks = [event for event in engine.events if isinstance(event, ChunkScheduled)]
        found[interval] = [int(chunk.task) for chunk in chunks].index(1)
    assert waits == (found[4] > found[1])


@pytest.mark.parametrize("release", ["0.24.0", "0.30.0", "0.33.0"])
def test_without_the_hybrid_manager_windows_keep_all_blocks_and_answers_are_right(
    release: str,
) -> None:
    hits = {}
    for off in (False, True):
        engine = server(release, "swa", disable_hybrid_kv_cache_manager=off)
        first = answer(engine, text(10, 120), 4)
        branch = answer(engine, (*text(10, 40), *text(200, 20)), 4)
        assert ["same", "same"] == [verdict(engine, each) for each in (first, branch)]
        hits[off] = branch.cached
    assert 40 == hits[True]
    assert (release == "0.24.0") == (hits[False] == 40)  # sparse retention since 0.30


def test_without_the_hybrid_manager_a_model_with_states_does_not_start() -> None:
    with pytest.raises(OptionError, match="does not start with it"):
        server(model="hybrid", disable_hybrid_kv_cache_manager=True)


@pytest.mark.parametrize(
    ("ranges", "drafts"),
    [
        ("", ()),
        ("[[1, 2, 3]]", (2, 2)),
        ("[[4, 5, 0], [1, 2, 1]]", (1, 1, 1, 0, 0)),
    ],
)
def test_drafts_by_the_number_of_requests(ranges: str, drafts: tuple[int, ...]) -> None:
    options = VllmOptions(speculative_method="ngram", num_speculative_tokens_per_batch_size=ranges)
    assert drafts == options.drafts_by_size


@pytest.mark.parametrize(
    "ranges", ["[]", "3", "[[2, 3, 1]]", "[[1, 3, 1], [3, 4, 1]]", "[[1, 2]]", "[" * 9000, "{}"]
)
def test_ranges_that_are_none_are_refused(ranges: str) -> None:
    with pytest.raises(OptionError, match="write ranges that begin at 1"):
        server(speculative_method="ngram", num_speculative_tokens_per_batch_size=ranges)


@pytest.mark.parametrize("option", ["pipeline_parallel_size", "enable_chunked_prefill"])
def test_a_field_that_is_not_simulated_says_what_would_differ(option: str) -> None:
    with pytest.raises(OptionError, match=r"is not simulated: .* would"):
        server(**{option: 2})


def test_the_drafter_keeps_its_last_block_if_asked_to() -> None:
    heads = {"speculative_method": "eagle", "num_speculative_tokens": 2}
    hits = []
    for keeps in (False, True):
        engine = server("0.32.0", disable_eagle_block_drop=keeps, **heads)
        hits.append([answer(engine, text(10, 41), 1).cached for _ in range(2)])
    assert [[0, 36], [0, 40]] == hits


@pytest.mark.parametrize("release", ["0.30.0", "0.31.0", "0.32.0"])
@pytest.mark.parametrize(("leaves", "hit"), [(False, 0), (True, 24)])
def test_a_state_at_the_junction_serves_siblings_behind_a_drafter(
    release: str, leaves: bool, hit: int
) -> None:
    engine = server(
        release,
        "hybrid-mtp",
        block_size=32,
        prefix_match_unit=8,
        speculative_method="mtp",
        enable_mamba_shared_prefix_checkpoint=leaves,
    )
    siblings = [(*text(10, 56), *text(100 + 50 * number, 40)) for number in range(4)]
    replies = [answer(engine, sibling, 1) for sibling in siblings]

    assert [0, 0, hit, hit] == [reply.cached for reply in replies]
    assert {"same"} == {verdict(engine, reply) for reply in replies}
