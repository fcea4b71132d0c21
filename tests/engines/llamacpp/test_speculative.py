"""Speculative decoding: whatever is drafted, the reply is the one without drafts."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.model.build import build
from cachesim.model.presets import preset, tiny
from cachesim.units import Tokens, as_tokens
from cachesim.verify.oracle import cold_logits
from tests.engines.llamacpp.play import Play, run

JUNE, OCTOBER = "llama.cpp@b9538", "llama.cpp@b11549"
both = pytest.mark.parametrize("profile", [JUNE, OCTOBER])

COMPANIONS = [
    ("hybrid-mtp", {"spec_type": "draft-mtp"}, "cut"),
    ("dense", {"spec_type": "draft-simple", "model_draft": "hybrid"}, "abort"),
    ("dense", {"spec_type": "draft-simple", "model_draft": "swa"}, "cut"),
    ("hybrid", {"spec_type": "draft-simple", "model_draft": "dense"}, "checkpoint"),
    ("recurrent", {"spec_type": "draft-simple", "model_draft": "recurrent"}, "checkpoint"),
]


def talk(engine: Engine, prompt: list[int], predict: int = 12, **fields: Any) -> Reply:
    ticket = engine.submit(Request(prompt=as_tokens(prompt), predict=predict, **fields))
    engine.run()
    engine.check_integrity()
    reply = engine.reply(ticket)
    assert reply is not None
    return reply


def verified(engine: Engine) -> list[dict[str, Any]]:
    return [event.as_dict() for event in engine.events if event.name() == "draft-verified"]


def create(profile: str, model: str, **options: Any) -> Engine:
    return Engine.create(profile, model=preset(model), options=options, arithmetic="ring")


@both
@pytest.mark.parametrize(
    ("model", "options", "how"), [each for each in COMPANIONS if each[2] != "abort"]
)
def test_wrong_and_right_drafts_change_no_reply(
    profile: str, model: str, options: dict[str, Any], how: str
) -> None:
    plain = talk(create(profile, model), run(range(300, 340)))
    said = plain.generated
    wrong = as_tokens([3, 4, 5])
    drafts = (said[1:4], wrong, (said[5], 3, 4), said[7:10], wrong)
    engine = create(profile, model, **options)
    reply = talk(engine, run(range(300, 340)), drafts=drafts)
    assert reply.generated == said
    assert engine.network.difference(reply.logits, plain.logits) == 0.0
    kinds = {each["rolled_back"] for each in verified(engine)}
    assert kinds == {"nothing", how}
    held = engine.snapshot()["slots"][0]["tokens"]
    assert held == [*range(300, 340), *said[:-1]]


@both
def test_the_companion_drafts_by_itself_and_is_often_right(profile: str) -> None:
    """A draft model that is the target itself is never wrong."""
    engine = create(profile, "dense", spec_type="draft-simple", model_draft="dense")
    reply = talk(engine, run(range(300, 340)), 21)
    plain = talk(create(profile, "dense"), run(range(300, 340)), 21)
    assert reply.generated == plain.generated
    found = verified(engine)
    assert sum(each["accepted"] for each in found) == sum(each["drafted"] for each in found) == 15


@both
def test_an_mtp_head_drafts_in_the_real_arithmetic(profile: str) -> None:
    play = Play(profile, "hybrid-mtp", arithmetic="float", spec_type="draft-mtp")
    reply = play.reply(run(range(300, 340)), 12, forced=False)
    rows = range(39, 39 + len(reply.generated))
    cold = cold_logits(play.engine.network, reply.prompt + reply.generated[:-1], rows=rows)
    assert play.engine.network.difference(reply.logits, cold) == 0.0
    assert verified(play.engine)


@both
def test_a_target_that_can_be_cut_and_a_companion_that_cannot_end_the_process(
    profile: str,
) -> None:
    engine = create(profile, "dense", spec_type="draft-simple", model_draft="hybrid")
    with pytest.raises(UpstreamAbort, match="common_memory::seq_rm"):
        talk(engine, run(range(300, 340)), drafts=(as_tokens([3, 4, 5]),))


@pytest.mark.parametrize(("batch_size", "predict"), [(2, 4), (3, 8)])
def test_a_draft_longer_than_the_batch_ends_the_process(batch_size: int, predict: int) -> None:
    """As the wheels of b9294 to b9873 do; one token more in the batch, and they answer."""
    prompt, drafts = run(range(300, 320)), ((4, 5, 6), (4, 5, 6))
    options = {"spec_type": "draft-mtp", "batch_size": batch_size}
    with pytest.raises(UpstreamAbort, match="llama_batch size exceeded"):
        talk(create(JUNE, "hybrid-mtp", **options), prompt, predict, drafts=drafts)

    roomy = create(JUNE, "hybrid-mtp", **options | {"batch_size": batch_size + 1})
    assert predict == len(talk(roomy, prompt, predict, drafts=drafts).generated)


@both
def test_a_draft_never_overshoots_the_budget_or_the_context(profile: str) -> None:
    engine = create(profile, "hybrid-mtp", spec_type="draft-mtp", ctx_size=256)
    reply = talk(engine, run(range(300, 340)), 3, drafts=((4, 5, 6), (4, 5, 6)))
    assert len(reply.generated) == 3
    made = [e.as_dict() for e in engine.events if e.name() == "draft-made"]
    assert [each["most"] for each in made] == [1]
    reply = talk(engine, [7] * 250, -1, drafts=())
    assert (reply.truncated, len(reply.generated)) == (True, 6)


@both
def test_a_draft_below_the_minimum_is_dropped(profile: str) -> None:
    engine = create(profile, "hybrid-mtp", spec_type="draft-mtp", spec_draft_n_min=2)
    reply = talk(engine, run(range(300, 340)), 8, drafts=((4,), (4,)))
    assert len(reply.generated) == 8
    assert verified(engine) == []


@both
def test_checkpoints_and_parked_prompts_hold_the_companion(profile: str) -> None:
    sizes = {}
    for options in ({}, {"spec_type": "draft-mtp"}):
        play = Play(profile, "hybrid-mtp", **options)
        play.ask(run(range(300)), drafts=())
        play.ask(run(range(1000, 1100)), drafts=())
        (parked,) = play.snapshot["prompt_cache"]
        created = [e.as_dict()["size"] for e in play.engine.events
                   if e.name() == "checkpoint-created"]  # fmt: skip
        sizes[len(options)] = (parked["bytes"], created[0])
    assert sizes[1][0] > sizes[0][0]
    assert sizes[1][1] > sizes[0][1]


def test_a_companion_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(OptionError, match="same vocabulary"):
        create(
            OCTOBER, "dense", spec_type="draft-simple", model_draft=preset("dense", vocabulary=64)
        )


DRAFTS = st.lists(st.lists(st.integers(300, 302), max_size=5), max_size=6)


@settings(max_examples=max(10, settings.default.max_examples // 3))
@given(
    profile=st.sampled_from([JUNE + "+erase-equal", OCTOBER + "+erase-equal"]),
    companion=st.sampled_from([each for each in COMPANIONS if each[2] != "abort"]),
    prompts=st.lists(
        st.tuples(st.lists(st.integers(300, 302), min_size=1, max_size=20), DRAFTS),
        min_size=1, max_size=4,
    ),
)  # fmt: skip
def test_random_drafts_leave_answers_and_memory_as_they_would_be(
    profile: str, companion: tuple[str, dict[str, Any], str],
    prompts: list[tuple[list[int], list[list[int]]]],
) -> None:  # fmt: skip
    model, options, _ = companion
    engine = Engine.create(profile, model=build(tiny(model), "ring"), options={
        **options,
        **({"model_draft": tiny(options["model_draft"])} if "model_draft" in options else {}),
    })  # fmt: skip
    assert isinstance(engine, LlamaCpp)
    held: list[int] = []
    for letters, given_drafts in prompts:
        prompt = held[: len(letters) * 3] + letters
        drafts: tuple[Tokens, ...] = tuple(as_tokens(each) for each in given_drafts)
        forced = as_tokens([300 + (k * k) % 3 for k in range(9)])
        reply = talk(engine, prompt, 9, reply=forced, drafts=drafts)
        rows = range(len(prompt) - 1, len(prompt) + 8)
        cold = cold_logits(engine.network, reply.prompt + forced[:-1], rows=rows)
        assert engine.network.difference(reply.logits, cold) == 0.0
        held = [*prompt, *forced]


@pytest.mark.parametrize(("profile", "counted"), [(JUNE, (8, 6)), (OCTOBER, (8, 4))])
def test_a_replayed_draft_counts_as_the_release_counts_it(
    profile: str, counted: tuple[int, int]
) -> None:
    """Two of four are right, twice; until #26320 the target's own token counts beside them."""
    said = as_tokens(range(11, 23))
    drafts = (as_tokens([12, 13, 30, 31]), as_tokens([16, 17, 32, 33]))
    options = {"spec_draft_n_max": 4}
    engine = create(profile, "hybrid", **COMPANIONS[3][1], **options)
    reply = talk(engine, run(range(300, 400)), reply=said, drafts=drafts)
    assert (reply.drafted, reply.accepted) == counted
