"""Prefill on another server: what arrives of it, late or not at all."""

from collections import Counter
from functools import partial
from typing import Any

import pytest

from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.vllm.nixl import Nixl
from cachesim.engines.vllm.server import Vllm
from cachesim.engines.vllm.vocabulary import (
    ChunkScheduled,
    LeaseEnded,
    LoadFailed,
    PrefilledElsewhere,
)
from cachesim.errors import OptionError
from cachesim.model.presets import preset
from cachesim.model.spec import Sizes
from cachesim.typed import of_kind, there_is
from cachesim.units import Count, Token, Tokens
from tests.engines import asking

PROMPT = tuple(map(Token, range(200, 400)))
OTHER = tuple(map(Token, range(420, 500)))
WINDOW, BLOCK = 32, 16  # of the preset swa


def server(model: str = "hybrid", **options: Any) -> Vllm:
    wanted = {"connector": "nixl", "load_steps": 2} | options
    made = Engine.create("vllm@0.33.0", model=preset(model), options=wanted, arithmetic="ring")
    return of_kind(Vllm, made)


answer = partial(asking.answer, predict=4)


def connector(engine: Vllm) -> Nixl:
    assert engine.nixl is not None
    return engine.nixl


def is_cold(reply: Reply, model: str) -> bool:
    cold = answer(server(model, connector="none"), reply.prompt)
    return cold.generated == reply.generated and bool((cold.logits == reply.logits).all())


def frees_all(engine: Vllm) -> bool:
    pools = engine.manager.pool, connector(engine).ahead.manager.pool
    return all(pool.num_free == pool.size - 1 for pool in pools) and not connector(engine).prefills


@pytest.mark.parametrize("model", ["dense", "recurrent", "hybrid", "hybrid-delta", "hybrid-swa"])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 33, 95, 96, 97, 200])
def test_a_prompt_prefilled_on_another_server_gives_the_cold_answer(
    model: str, length: int
) -> None:
    engine = server(model)
    for prompt in (PROMPT[:length], PROMPT[:length], PROMPT[:length] + OTHER):
        reply = answer(engine, prompt)

        assert is_cold(reply, model)
        assert (len(prompt) - 1 if length > 1 else reply.cached) == reply.cached
    assert frees_all(engine)


@pytest.mark.parametrize(("model", "left"), [("dense", 0), ("swa", 0), ("hybrid", 1)])
def test_the_prefill_server_leaves_the_last_token_of_a_model_with_states(
    model: str, left: int
) -> None:
    engine = server(model)

    answer(engine, PROMPT)

    told = [event.tokens for event in engine.events if isinstance(event, PrefilledElsewhere)]
    assert [Count(200 - left)] == told


@pytest.mark.parametrize("length", range(64, 64 + 2 * BLOCK))
def test_the_last_token_misses_one_of_its_window_where_the_rest_is_whole_blocks(
    length: int,
) -> None:
    """The window is laid out for token N, and token N - 1 is computed again."""
    short = (length - WINDOW + 1) % BLOCK == 0

    assert (not short) == is_cold(answer(server("swa"), PROMPT[:length]), "swa")


def test_what_this_server_has_is_not_read_again() -> None:
    engine = server("dense")
    answer(engine, PROMPT[:96])
    contents = Counter[int]()
    pages = connector(engine).ahead.runner.pages
    read = pages.content

    def counted(group: int, block: int) -> Any:
        contents[block] += 1
        return read(group, block)

    pages.content = counted  # type: ignore[method-assign]

    answer(engine, PROMPT[:150])

    assert 4 == contents.total()  # blocks 6 to 9


def test_a_request_that_reads_no_cache_is_computed_here() -> None:
    engine = server()
    reply = answer(engine, PROMPT, cache_prompt=False)

    assert 0 == reply.cached
    assert is_cold(reply, "hybrid")
    assert frees_all(engine)


@pytest.mark.parametrize("model", ["dense", "hybrid"])
def test_a_failed_read_ends_the_request_or_is_computed_here(model: str) -> None:
    engine = server(model)
    assert "InternalServerError" == answer(engine, PROMPT, options={"failed_block": 0}).error
    assert frees_all(engine)

    engine = server(model, kv_load_failure_policy="recompute")
    reply = answer(engine, PROMPT, options={"failed_block": 0})

    assert any(isinstance(event, LoadFailed) for event in engine.events)
    assert is_cold(reply, model)
    assert frees_all(engine)


@pytest.mark.parametrize("failed", [0, 1, 9])
@pytest.mark.parametrize("length", [3, 40])
def test_all_of_a_failed_read_is_computed_here(length: int, failed: int) -> None:
    engine = server("dense", kv_load_failure_policy="recompute")

    reply = answer(engine, PROMPT[:length], options={"failed_block": failed})

    assert 0 == next(event.start for event in engine.events if isinstance(event, ChunkScheduled))
    assert is_cold(reply, "dense")


def test_a_failed_read_of_states_leaves_running_requests_as_they_are() -> None:
    """Tables of states have null blocks, which all requests share."""
    engine = server("recurrent", kv_load_failure_policy="recompute", load_steps=1)
    first = engine.submit(Request(prompt=PROMPT[:17], predict=9))
    for _ in range(3):
        engine.step()

    failed = answer(engine, PROMPT[40:58], options={"failed_block": 0})

    running = there_is(engine.reply(first))
    alone = asking.answer(server("recurrent", connector="none"), PROMPT[:17], 9)
    assert (alone.logits == running.logits).all()
    assert is_cold(failed, "recurrent")
    assert 1 == sum(isinstance(event, LoadFailed) for event in engine.events)


@pytest.mark.parametrize(("lease", "same"), [(0, True), (7, True), (3, False)])
def test_a_read_after_the_lease_brings_what_others_have_written(lease: int, same: bool) -> None:
    """The prefill server's pool has room for one of the two prompts beside the first."""
    room = {"num_gpu_blocks_override": 14, "max_num_seqs": 1}
    engine = server("dense", kv_lease_steps=lease, load_steps=6, **room)
    ticket = engine.submit(Request(prompt=PROMPT[:100], predict=4))
    engine.submit(Request(prompt=OTHER, predict=1))
    engine.submit(Request(prompt=OTHER[::-1], predict=1))
    engine.run()

    assert same == is_cold(there_is(engine.reply(ticket)), "dense")
    ended = [event.task for event in engine.events if isinstance(event, LeaseEnded)]
    assert same == (int(ticket) not in ended)


@pytest.mark.parametrize("steps", range(12))
def test_a_cancelled_request_frees_the_blocks_of_both_servers(steps: int) -> None:
    engine = server(load_steps=4)
    ticket = engine.submit(Request(prompt=PROMPT, predict=8))
    for _ in range(steps):
        engine.step()

    engine.cancel(ticket)
    engine.run()

    assert frees_all(engine)


def test_what_is_not_simulated_beside_it_is_refused() -> None:
    with pytest.raises(OptionError, match="'nixl' is not simulated beside"):
        server(speculative_method="ngram")


def compressor(release: str, **options: Any) -> Vllm:
    sizes = Sizes(token=297, window=4096)  # of blocks of 64 tokens, and of rings of 8 rows
    model = preset("swa", chunked=True, window=2, sizes=sizes)
    given = {"connector": "nixl", "rings": True, "block_size": 64} | options
    made = Engine.create(f"vllm@{release}", model=model, options=given, arithmetic="ring")
    return of_kind(Vllm, made)


def same_as_cold(engine: Vllm, prompt: Tokens, release: str) -> bool:
    reply, cold = answer(engine, prompt), answer(compressor(release, connector="none"), prompt)
    return cold.generated == reply.generated and bool((cold.logits == reply.logits).all())


@pytest.mark.parametrize("budget", [8192, 64, 7, 1])
def test_a_ring_gives_the_cold_answer_in_chunks_of_any_size_and_after_a_hit(budget: int) -> None:
    engine = compressor("0.33.0", connector="none", max_num_batched_tokens=budget, max_num_seqs=1)
    for prompt in (PROMPT[:130], PROMPT[:130], PROMPT[:70] + OTHER):
        assert same_as_cold(engine, prompt, "0.33.0")
    assert engine.manager.pool.num_free == engine.manager.pool.size - 1


@pytest.mark.parametrize("length", range(64, 81))
@pytest.mark.parametrize("release", ["0.31.0", "0.32.0"])
def test_a_read_brings_four_rows_of_a_ring_until_0320_and_all_at_0330(
    release: str, length: int
) -> None:
    prompt = PROMPT[:length]
    is_brought = length % 2 or (length - 2) % 8 < 4  # the row of the open pair, if there is one
    assert same_as_cold(compressor(release), prompt, release) == bool(is_brought)
    assert same_as_cold(compressor("0.33.0"), prompt, "0.33.0")


def test_a_prompt_of_any_length_holds_one_ring() -> None:
    engine = compressor("0.33.0", connector="none")
    engine.submit(Request(prompt=PROMPT, predict=4))
    engine.step()
    [request] = engine.scheduler.running
    assert [len(table) for table in engine.manager.tables_of(request)] == [1, 4]


@pytest.mark.parametrize(
    ("release", "options", "told"),
    [
        ("0.31.0", {"rings": False, "block_size": 2}, "beside rings: 0.31.0"),
        ("0.32.0", {"rings": False, "block_size": 2}, "beside rings: 0.31.0"),
        ("0.33.0", {"block_size": 5}, "divide block_size"),
        ("0.33.0", {"connector": "none", "speculative_method": "ngram"}, "without a drafter"),
    ],
)
def test_a_ring_that_is_not_simulated_is_refused(
    release: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(OptionError, match=told):
        compressor(release, **options)
