from dataclasses import replace
from typing import Any

import pytest

from cachesim.engines.base import Engine, Reply, Request
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.model.presets import preset
from cachesim.units import Tokens, as_tokens
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import judge


def text(first: int, count: int) -> Tokens:
    return as_tokens(range(first, first + count))


def server(profile: str, model: str = "hybrid", **options: Any) -> Engine:
    return Engine.create(f"vllm@{profile}", model=preset(model), options=options)


def ask(engine: Engine, prompt: Tokens, count: int = 1, **wishes: Any) -> Reply:
    ticket = engine.submit(Request(prompt=prompt, predict=count, **wishes))
    engine.run()
    reply = engine.reply(ticket)
    assert reply is not None
    return reply


def why(reply: Reply) -> list[tuple[str, int, int]]:
    return [(loss.rule, loss.before, loss.after) for loss in reply.losses]


def test_the_account_of_a_resend_names_the_last_token_and_whole_blocks() -> None:
    engine = server("0.33.0", "dense")
    ask(engine, text(300, 64))

    reply = ask(engine, text(300, 64))

    assert 48 == reply.cached
    assert [("last-token", 64, 63), ("whole-blocks", 63, 48)] == why(reply)


def test_the_second_sharer_has_no_state_and_the_third_one_has() -> None:
    engine = server("0.33.0")
    shared = text(300, 40)
    ask(engine, shared + text(400, 60))

    second, third = (ask(engine, shared + text(265 + 15 * at, 15)) for at in range(2))

    assert (0, 32) == (second.cached, third.cached)
    assert [("whole-blocks", 40, 32), ("state-missing", 32, 0)] == why(second)
    assert [("whole-blocks", 40, 32)] == why(third)


def test_what_was_evicted_is_told_apart_from_what_never_was() -> None:
    engine = server("0.33.0", "dense", num_gpu_blocks_override=6)
    ask(engine, text(300, 64))
    ask(engine, text(400, 64))

    reply = ask(engine, text(300, 64))

    assert ("attention-evicted", 48) == why(reply)[-1][:2]


@pytest.mark.parametrize(
    ("release", "more"),
    [("0.30.0", {}), ("0.33.0", {"disable_lookahead_block_hashes": True})],
)
def test_a_drafter_costs_the_last_block(release: str, more: dict[str, Any]) -> None:
    options = {"speculative_method": "eagle", "num_speculative_tokens": 1}
    engine = server(release, "dense", **options, **more)
    ask(engine, text(300, 70))

    reply = ask(engine, text(300, 70))

    assert ("look-ahead-block", 64, 48) == why(reply)[-1]


def test_a_drafter_costs_no_block_whose_id_covers_the_next_token() -> None:
    engine = server("0.33.0", "dense", speculative_method="mtp", num_speculative_tokens=1)
    ask(engine, text(300, 70))

    assert ("whole-blocks", 69, 64) == why(ask(engine, text(300, 70)))[-1]
    assert 48 == ask(engine, [*text(300, 64), 7, *text(364, 6)]).cached


def test_a_request_that_does_not_read_the_cache_says_so() -> None:
    engine = server("0.33.0", "dense")
    ask(engine, text(300, 64))

    reply = ask(engine, text(300, 64), cache_prompt=False)

    assert [("cache-not-read", 64, 0)] == why(reply)


def test_salts_keep_conversations_apart() -> None:
    engine = server("0.33.0", "dense")
    ask(engine, text(300, 64), options={"cache_salt": "a"})

    other = ask(engine, text(300, 65), options={"cache_salt": "b"})
    same = ask(engine, text(300, 65), options={"cache_salt": "a"})

    assert (0, 64) == (other.cached, same.cached)


def test_a_reset_forgets_everything() -> None:
    engine: Any = server("0.33.0", "dense")
    ask(engine, text(300, 64))

    done = engine.reset_prefix_cache()

    assert done
    again = ask(engine, text(300, 64))
    assert 0 == again.cached
    assert "Attention's blocks after 0 of 48 tokens have no id" == again.losses[-1].sentence


def test_accepted_drafts_and_preemption_leave_the_answer_as_it_is() -> None:
    network = preset("hybrid-delta")
    reply = text(320, 12)
    options = {"speculative_method": "eagle", "num_speculative_tokens": 3, "block_size": 4}
    engine = Engine.create("vllm@0.33.0", model=network, options=options)

    found = ask(engine, text(300, 10), 12, reply=reply)
    verdict = judge(found, Oracle(engine.network))

    assert verdict is not None
    assert "same" == verdict.answer
    assert any(event.name() == "drafts-verified" for event in engine.events)


@pytest.mark.parametrize(
    ("profile", "options", "match"),
    [
        ("0.19.1", {"prefix_cache_retention_interval": 0}, "has no option"),
        ("0.19.1", {"mamba_block_size": 32}, "blocks of one size"),
        ("0.33.0", {"mamba_cache_mode": "all"}, "has no mamba_cache_mode 'all'"),
        ("0.33.0", {"prefix_match_unit": 5}, "must divide"),
        ("0.19.1", {"mamba_cache_mode": "all", "speculative_method": "mtp"}, "write align"),
        ("0.33.0", {"block_sise": 8}, "did you mean 'block_size'"),
        ("0.33.0", {"num_gpu_blocks_override": 2}, "more blocks for a single request"),
        ("0.33.0", {"num_gpu_blocks_override": 8, "max_model_len": 4096}, "holds no request"),
    ],
)
def test_what_does_not_go_together_is_refused(
    profile: str, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(OptionError, match=match):
        server(profile, **options)


def test_a_unit_that_a_single_group_would_ignore_is_refused_since_033() -> None:
    with pytest.raises(OptionError, match="write 16"):
        server("0.33.0", "dense", prefix_match_unit=4)
    server("0.33.0", "dense", prefix_match_unit=16)
    server("0.33.0", "dense", prefix_match_unit=4, enable_prefix_caching=False)

    before = server("0.30.0", "dense", prefix_match_unit=4)
    ask(before, text(300, 46))

    assert 32 == ask(before, text(300, 46)).cached


@pytest.mark.parametrize(("release", "cached"), [("0.19.1", 16), ("0.24.0", 0), ("0.33.0", 0)])
def test_a_window_of_one_token_keeps_no_block_since_024(release: str, cached: int) -> None:
    model = replace(preset("swa"), window=1)
    engine = Engine.create(f"vllm@{release}", model=model, options={"block_size": 4})
    ask(engine, text(300, 20))

    assert cached == ask(engine, text(300, 20)).cached


@pytest.mark.parametrize("release", ["0.19.1", "0.24.0", "0.28.0", "0.30.0"])
@pytest.mark.parametrize("model", ["hybrid-mtp", "hybrid-swa"])
def test_a_model_without_state_space_layers_falls_back_to_align(release: str, model: str) -> None:
    wishes = {"mamba_cache_mode": "all", "speculative_method": "mtp"}
    engines = [
        server(release, model, **wishes | more) for more in ({}, {"mamba_cache_mode": "align"})
    ]
    replies = [[ask(engine, text(300, 46), 5) for _ in range(2)] for engine in engines]

    assert [each.cached for each in replies[1]] == [each.cached for each in replies[0]]
    assert [each.generated for each in replies[1]] == [each.generated for each in replies[0]]


def test_drafts_in_all_mode_leave_no_state_at_a_boundary_that_they_pass() -> None:
    wishes = {"mamba_cache_mode": "all", "speculative_method": "eagle"}
    engine = server("0.24.0", "hybrid", **wishes)
    first = ask(engine, text(300, 46), 20, reply=text(400, 20))
    again = ask(engine, first.prompt + first.generated + text(280, 9))
    verdicts = [judge(each, Oracle(engine.network), trace=None) for each in (first, again)]

    assert 64 == again.cached
    assert ["same", "diverged"] == [None if each is None else each.answer for each in verdicts]


def test_a_prompt_beyond_the_longest_is_refused_by_the_server() -> None:
    reply = ask(server("0.33.0", "dense", max_model_len=32), text(300, 40))

    assert "BadRequestError" == reply.error
    assert "maximum context length is 32 tokens" in reply.message


def test_a_partial_hit_beyond_its_table_ends_the_engine_core() -> None:
    drafting = {"speculative_method": "eagle", "prefix_cache_retention_interval": -1}
    engine = server(
        "0.33.0+no-46281",
        mamba_block_size=32,
        eagle_groups="all",
        disable_lookahead_block_hashes=True,
        **drafting,
    )
    ask(engine, text(300, 96))

    with pytest.raises(UpstreamAbort, match=r"_apply_cow.*block_idx < len"):
        ask(engine, text(300, 96))


@pytest.mark.parametrize(
    ("profile", "verdict"), [("0.33.0", "same"), ("0.33.0+skips-aborted", "diverged")]
)
def test_a_chunk_runs_though_its_request_is_aborted_and_others_read_it(
    profile: str, verdict: str
) -> None:
    engine = server(profile, "dense", async_scheduling=True)
    gone, stays = (
        engine.submit(Request(prompt=text(300, 40) + text(400 + 20 * at, 9), predict=2))
        for at in range(2)
    )
    engine.step()  # both are scheduled; the second was given the first one's blocks
    engine.cancel(gone)
    engine.run()

    reply = engine.reply(stays)
    assert reply is not None
    judged = judge(reply, Oracle(engine.network))

    assert 32 == reply.cached
    assert judged is not None
    assert verdict == judged.answer


def test_the_smaller_number_is_served_first_under_priorities() -> None:
    engine = server("0.33.0", "dense", scheduling_policy="priority", max_num_seqs=1)
    for at, priority in enumerate((0, 1, -1, 0)):
        wishes = {"priority": priority}
        engine.submit(Request(prompt=text(300 + 20 * at, 9), predict=1, options=wishes))
    engine.run()

    done = [event.task for event in engine.events if event.name() == "request-finished"]
    assert [2, 0, 3, 1] == done


def test_a_chunk_at_whose_border_the_hit_ends_needs_nothing() -> None:
    spec = preset("swa", chunked=True, window=16)
    engine = Engine.create("vllm@0.33.0", model=spec, options={"block_size": 8})
    ask(engine, text(300, 30))

    border, inside = (ask(engine, text(300, 16 + at) + text(400 + 5 * at, 9)) for at in (0, 8))

    assert (16, 24) == (border.cached, inside.cached)
    assert all("same" == judge_of(engine, reply) for reply in (border, inside))


def judge_of(engine: Engine, reply: Reply) -> str:
    found = judge(reply, Oracle(engine.network))
    assert found is not None
    return found.answer


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"speculative_method": "eagle"}, "chunked attention cannot be combined"),
        ({"mamba_block_size": 32}, "all blocks are equal"),
        ({"block_size": 24}, "must be whole blocks"),
    ],
)
def test_what_upstream_asserts_of_chunks_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        Engine.create("vllm@0.33.0", model=preset("swa", chunked=True), options=options)


def test_a_store_may_bring_no_state_to_the_oldest_release() -> None:
    engine: Any = server("0.19.1", connector="store")
    ask(engine, text(300, 40))
    engine.reset_prefix_cache()

    with pytest.raises(UpstreamAbort, match="not verified yet"):
        ask(engine, text(300, 40))


@pytest.mark.parametrize(("release", "connector", "held"), [
    ("0.28.0", "store", 1), ("0.28.0", "none", 0), ("0.30.0", "store", 0), ("0.33.0", "store", 0),
])  # fmt: skip
def test_beside_a_store_one_release_holds_the_block_of_the_last_state(
    release: str, connector: str, held: int
) -> None:
    """Its scheduler was seen to keep that block out of the free queue until the request ends."""
    flags = {"mamba_block_size": 32, "block_size": 8, "prefix_match_unit": 8}
    engine: Any = server(release, connector=connector, **flags)
    engine.submit(Request(prompt=text(300, 40), predict=30, reply=text(400, 30)))
    most = 0
    while engine.step():
        most = max(most, sum(map(len, engine.manager.pins.values())))
        engine.check_integrity()

    assert held == most
    assert {} == engine.manager.pins
