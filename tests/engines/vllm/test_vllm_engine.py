from typing import Any

import pytest

from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.engines.vllm.server import Vllm
from cachesim.errors import OptionError
from cachesim.model.presets import preset
from cachesim.typed import of_kind
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


def test_salts_keep_conversations_apart() -> None:
    engine = server("0.33.0", "dense")
    ask(engine, text(300, 64), options={"cache_salt": "a"})

    other = ask(engine, text(300, 65), options={"cache_salt": "b"})
    same = ask(engine, text(300, 65), options={"cache_salt": "a"})

    assert (0, 64) == (other.cached, same.cached)


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


def test_a_unit_that_a_single_group_would_ignore_is_refused_since_033() -> None:
    with pytest.raises(OptionError, match="write 16"):
        server("0.33.0", "dense", prefix_match_unit=4)
    server("0.33.0", "dense", prefix_match_unit=16)
    server("0.33.0", "dense", prefix_match_unit=4, enable_prefix_caching=False)

    before = server("0.30.0", "dense", prefix_match_unit=4)
    ask(before, text(300, 46))

    assert 32 == ask(before, text(300, 46)).cached


def test_drafts_in_all_mode_leave_no_state_at_a_boundary_that_they_pass() -> None:
    wishes = {"mamba_cache_mode": "all", "speculative_method": "eagle"}
    engine = server("0.24.0", "hybrid", **wishes)
    first = ask(engine, text(300, 46), 20, reply=text(400, 20))
    again = ask(engine, first.prompt + first.generated + text(280, 9))
    verdicts = [judge(each, Oracle(engine.network), trace=None) for each in (first, again)]

    assert 64 == again.cached
    assert ["same", "diverged"] == [None if each is None else each.answer for each in verdicts]


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


@pytest.mark.parametrize(
    ("profile", "model", "verdict"),
    [
        ("0.33.0", "hybrid", "diverged"),
        ("0.33.0", "hybrid-delta", "same"),
        ("0.33.0+prefills-last", "hybrid", "same"),
    ],
)
def test_a_prefill_chunk_as_long_as_a_decode_spoils_a_request_that_nothing_is_drafted_for(
    profile: str, model: str, verdict: str
) -> None:
    engine = server(profile, model, speculative_method="ngram", num_speculative_tokens=2)
    reply = text(400, 8)
    drafted = engine.submit(
        Request(prompt=text(300, 20), predict=8, reply=reply, drafts=(reply[1:3],))
    )
    for _ in range(3):
        engine.step()  # two chunks of the prompt, then both drafts
    engine.submit(Request(prompt=text(350, 3), predict=1))
    engine.run()

    found = engine.reply(drafted)
    assert found is not None
    assert verdict == judge_of(engine, found)


@pytest.mark.parametrize("profile", ["0.33.0", "0.33.0+skips-aborted"])
def test_an_aborted_request_leaves_nothing_behind_once_its_step_has_come_back(profile: str) -> None:
    engine = server(profile, "dense", async_scheduling=True)
    gone, stays = (
        engine.submit(Request(prompt=text(300 + 50 * at, 40), predict=2, reply=text(290, 2)))
        for at in range(2)
    )
    engine.step()  # both are scheduled
    engine.cancel(gone)
    engine.forget(gone)
    engine.run()

    reply = engine.reply(stays)
    assert reply is not None
    assert [290, 291] == list(reply.generated)
    assert {} == of_kind(Vllm, engine).runner.held


def test_a_server_with_a_limit_forgets_prefixes_that_nothing_holds() -> None:
    engine = of_kind(Vllm, server("0.33.0", "dense", num_gpu_blocks_override=12))
    engine.remember(20)
    for at in range(30):
        salt = {"cache_salt": str(at)}
        engine.submit(Request(prompt=text(300, 65), predict=1, options=salt))
        engine.run()
        engine.forget(Ticket(at))

    assert len(engine.prefixes) <= 20 + 4
    assert len(engine.prefixes._numbers | engine.prefixes._earlier) < 60


def test_a_request_that_is_aborted_between_its_steps_leaves_nothing_behind() -> None:
    engine = server("0.33.0", "dense", max_num_batched_tokens=16)
    gone = engine.submit(Request(prompt=text(300, 40), predict=2))
    engine.step()
    engine.cancel(gone)

    assert {} == of_kind(Vllm, engine).runner.held
    assert not engine.step()


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
