"""The numbers of SGLang's own classes, request by request, on the engine as users start it."""

from collections.abc import Sequence
from typing import Any

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.options import SglangOptions
from cachesim.engines.sglang.server import Sglang
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.model.presets import tiny
from cachesim.typed import of_kind
from cachesim.units import Tokens, as_tokens

RELEASES = ("0.5.9", "0.5.23")
R = as_tokens(range(400, 403))
A = as_tokens(range(200))
D1 = A[:150] + as_tokens(range(200, 250))
D2 = A[:150] + as_tokens(range(250, 300))
TURN = A + R + as_tokens(range(300, 350))
TRACE = (A, A, TURN, D1, D2, D1, TURN + R + as_tokens(range(350, 400)))


def strategy(release: str, name: str) -> dict[str, Any]:
    option = "mamba_scheduler_strategy" if release == "0.5.9" else "mamba_radix_cache_strategy"
    return {option: name}


def cached(
    release: str,
    prompts: Sequence[Tokens],
    *,
    model: str = "hybrid",
    replies: Sequence[Tokens] = (),
    **options: Any,
) -> list[int]:
    """What is reused of each prompt, one after the other, with three generated tokens each."""
    engine = Engine.create(
        f"sglang@{release}",
        model=tiny(model, vocabulary=4096),
        options=options,
        arithmetic="counts",
    )
    found = []
    for number, prompt in enumerate(prompts):
        reply = replies[number] if replies else R
        ticket = engine.submit(Request(prompt=prompt, predict=len(reply), reply=reply))
        engine.run()
        answer = engine.reply(ticket)
        assert answer is not None
        found.append(int(answer.cached or 0))
        engine.check_integrity()
    return found


def fresh(first: int, count: int) -> Tokens:
    return as_tokens(range(first, first + count))


@pytest.mark.parametrize("release", RELEASES)
def test_one_trace_all_strategies(release: str) -> None:
    dense = cached(release, TRACE, model="dense")
    plain = cached(release, TRACE, **strategy(release, "no_buffer"))
    tracked = cached(release, TRACE, **strategy(release, "extra_buffer"))

    assert [0, 199, 202, 150, 150, 199, 255] == dense
    assert [0, 0, 202, 0, 0, 0, 255] == plain
    assert [0, 192, 192, 0, 128, 128, 192] == tracked


@pytest.mark.parametrize("release", RELEASES)
def test_z2_sharing_the_middle_of_a_node_gives_nothing_without_tracks(release: str) -> None:
    p = fresh(0, 300)
    second = p[:150] + fresh(1000, 150)
    third = p[:150] + fresh(2000, 150)

    prompts = (p, second, third, second + R + fresh(3000, 20))

    assert [0, 0, 0, 302] == cached(release, prompts, **strategy(release, "no_buffer"))


@pytest.mark.parametrize("release", RELEASES)
def test_z3_a_prompt_that_is_sent_again_never_hits(release: str) -> None:
    p = fresh(0, 192)

    found = cached(
        release,
        (p, p, p, p + fresh(500, 1)),
        replies=((p[0],),) * 4,
        **strategy(release, "no_buffer"),
    )

    assert [0, 0, 0, 192] == found


@pytest.mark.parametrize("release", RELEASES)
def test_z4_states_lie_where_chunks_end(release: str) -> None:
    p = fresh(0, 300)
    options = {"chunked_prefill_size": 128} | strategy(release, "no_buffer")

    assert [0, 128] == cached(release, (p, p[:150] + fresh(1000, 60)), **options)


@pytest.mark.parametrize("release", RELEASES)
def test_z7_the_branching_point_is_saved_instead_of_the_tail(release: str) -> None:
    p = fresh(0, 300)
    second, third = p[:150] + fresh(1000, 150), p[:150] + fresh(2000, 150)
    prompts = (p, second, second + R + fresh(3000, 30), third)

    assert [0, 0, 128, 128] == cached(release, prompts, **strategy(release, "extra_buffer"))


@pytest.mark.parametrize("release", RELEASES)
def test_z8_a_prompt_of_whole_chunks_misses_once(release: str) -> None:
    p = fresh(0, 192)

    assert [0, 0, 128] == cached(release, (p, p, p), **strategy(release, "extra_buffer"))


@pytest.mark.parametrize("release", RELEASES)
def test_z9_decoding_saves_a_state_every_interval(release: str) -> None:
    p, reply = fresh(0, 100), fresh(1000, 200)
    options = {"mamba_track_interval": 64} | strategy(release, "extra_buffer")

    found = cached(release, (p, p + reply + fresh(2000, 9)), replies=(reply, R), **options)

    assert [0, 256] == found


def test_z10_a_limit_on_states_of_one_path_drops_the_shallow_ones() -> None:
    p = fresh(0, 400)
    options = {"chunked_prefill_size": 64} | strategy("0.5.23", "extra_buffer")
    prompts = (p, p[:150] + fresh(1000, 60))

    assert [0, 0] == cached("0.5.23", prompts, mamba_max_states_per_path=2, **options)
    assert [0, 128] == cached("0.5.23", prompts, **options)


@pytest.mark.parametrize("release", RELEASES)
def test_s27_keys_of_pairs_end_a_token_earlier(release: str) -> None:
    p = fresh(0, 40)
    prompts = (p, p, p[:20] + fresh(1000, 20))
    eagle = cached(release, prompts, model="dense", speculative_algorithm="EAGLE")

    assert [0, 38, 19] == eagle
    assert [0, 39, 20] == cached(release, prompts, model="dense")


def test_with_states_keys_are_tokens_whatever_the_drafter() -> None:
    """A tree with states takes no pairs, beside windows neither."""
    p = fresh(0, 64)
    prompts = (p, p + fresh(100, 1))
    for model in ("hybrid", "hybrid-swa"):
        assert [0, 64] == cached("0.5.23", prompts, model=model, speculative_algorithm="EAGLE")


@pytest.mark.parametrize("release", RELEASES)
def test_windows_are_a_part_of_a_match(release: str) -> None:
    """0.5.9 lets a window go as soon as it is passed, 0.5.23 when 128 tokens have slid out."""
    p, reply = fresh(0, 40), fresh(500, 60)
    prompts = (p, p + reply + fresh(900, 5), p + reply[:20] + fresh(950, 5), p)

    found = cached(release, prompts, model="swa", replies=(reply, R, R, R))

    assert {"0.5.9": [0, 99, 40, 39], "0.5.23": [0, 99, 60, 39]}[release] == found


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(OptionError, match="with states and `no_buffer` it must be 1"):
        cached("0.5.9", (), page_size=4, mamba_scheduler_strategy="no_buffer")
    with pytest.raises(OptionError, match="with states and `no_buffer` it must be 1"):
        cached("0.5.9", (), page_size=4)
    with pytest.raises(OptionError, match="this release turns its radix cache off"):
        cached("0.5.9", (), speculative_algorithm="EAGLE")
    with pytest.raises(OptionError, match="must be a multiple of the page, 16"):
        cached("0.5.23", (), page_size=16, chunked_prefill_size=100)
    with pytest.raises(OptionError, match="must be a multiple of 64"):
        cached("0.5.23", (), mamba_track_interval=100)
    with pytest.raises(OptionError, match=r"that have it are 0\.5\.23"):
        cached("0.5.9", (), mamba_radix_cache_strategy="no_buffer")


def test_drafts_and_mixed_chunks_go_together_since_0523() -> None:
    asked = SglangOptions(enable_mixed_chunk=True, speculative_algorithm="EAGLE")

    found = {release: asked.mixes(FAMILY.release(release).rules) for release in RELEASES}

    assert {"0.5.9": False, "0.5.23": True} == found


def test_a_prompt_beyond_the_context_gets_the_servers_word() -> None:
    engine = Engine.create("sglang@0.5.23", model=tiny("dense"), options={"context_length": 20})
    reply = engine.reply(engine.submit(Request(prompt=as_tokens([5] * 30), predict=1)))
    assert reply is not None
    assert "BadRequestError" == reply.error
    assert "longer than the model's context length (19 tokens)" in reply.message


def test_an_extra_key_keeps_prefixes_apart() -> None:
    engine = Engine.create("sglang@0.5.23", model=tiny("dense"), options={}, arithmetic="counts")
    found = []
    for key in ("a", "b", "a"):
        ticket = engine.submit(
            Request(prompt=as_tokens(range(50)), predict=1, options={"extra_key": key})
        )
        engine.run()
        reply = engine.reply(ticket)
        assert reply is not None
        found.append(reply.cached)
    assert [0, 0, 49] == found


def fill(profile: str, **options: Any) -> list[int]:
    """A prompt of whole pages with EAGLE, under a window of two pages less one token."""
    engine = Engine.create(
        profile,
        model=tiny("swa", vocabulary=4096, window=128),
        options={"page_size": 64, "speculative_algorithm": "EAGLE", **options},
        arithmetic="counts",
    )
    found = []
    for prompt in (fresh(0, 1024), fresh(0, 1044)):
        ticket = engine.submit(Request(prompt=prompt, predict=3, reply=R))
        engine.run()
        answer = engine.reply(ticket)
        assert answer is not None
        found.append(int(answer.cached or 0))
    return found


def test_34870_put_back_ends_the_server_where_it_looks_at_its_pools() -> None:
    strict = {"strict_mem_check_during_idle": True}

    assert fill("sglang@0.5.23", **strict) == [0, 960]
    assert fill("sglang@0.5.23+no-34870") == [0, 0]
    with pytest.raises(UpstreamAbort, match="available=16320, evictable=1024"):
        fill("sglang@0.5.23+no-34870", **strict)


@pytest.mark.parametrize(
    ("release", "named", "options", "running"),
    [
        ("0.5.23", "extra_buffer", {}, 3),
        ("0.5.23", "no_buffer", {}, 5),
        ("0.5.9", "extra_buffer", {}, 3),
        ("0.5.9", "extra_buffer", {"speculative_algorithm": "EAGLE"}, 4),
        ("0.5.23", "extra_buffer", {"speculative_algorithm": "EAGLE"}, 3),
        ("0.5.23", "no_buffer", {"max_total_tokens": 9}, 4),
        ("0.5.9", "no_buffer", {"max_total_tokens": 9}, 5),
    ],
)
def test_states_and_tokens_bound_the_requests_that_run_at_once(
    release: str, named: str, options: dict[str, Any], running: int
) -> None:
    """Sixteen states: three a request, and one or two more where states are tracked apart."""
    engine = Engine.create(
        f"sglang@{release}",
        model=tiny("hybrid", vocabulary=4096),
        options={"max_mamba_cache_size": 16, **strategy(release, named), **options},
        arithmetic="counts",
    )

    assert running == of_kind(Sglang, engine).scheduler.limits.max_running


def test_a_server_with_fewer_states_than_one_request_takes_does_not_start() -> None:
    with pytest.raises(OptionError, match=r"too small to serve any requests.*takes 5; write 5"):
        Engine.create(
            "sglang@0.5.23",
            model=tiny("hybrid", vocabulary=4096),
            options={"max_mamba_cache_size": 4},
            arithmetic="counts",
        )
