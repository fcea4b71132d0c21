"""What the server or the simulator refuses, and that a refusal leaves everything as it was."""

import json
from typing import Any

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.profile import Profile
from cachesim.errors import (
    ContractError,
    InputError,
    OptionError,
    ProfileError,
    TokenError,
    UpstreamAbort,
)
from cachesim.model.presets import preset
from cachesim.units import as_tokens
from tests.engines.llamacpp.play import Play, run

OCTOBER = "llama.cpp@b11549"


def create(profile: str = OCTOBER, model: str = "dense", **options: Any) -> Engine:
    return Engine.create(profile, model=preset(model), options=options, arithmetic="ring")


@pytest.mark.parametrize(
    ("profile", "option", "words"),
    [
        ("llama.cpp@b9093", {"checkpoint_min_step": 1}, ("b9538", "b11549")),
        ("llama.cpp@b9538", {"checkpoint_every_nt": 1}, ("b9093",)),
        ("llama.cpp@b9538", {"kv_unified_per_slot": 512}, ("b11549",)),
        ("llama.cpp@b9093", {"spec_type": "draft-mtp"}, ("b9538", "b11549")),
        ("llama.cpp@b9093", {"model_draft": "dense"}, ("b9538", "b11549")),
        (OCTOBER, {"ctx_checkpoint": 1}, ("did you mean 'ctx_checkpoints'",)),
        (OCTOBER, {"colour": 1}, ("there are", "batch_size")),
        (OCTOBER, {"parallel": 0}, ("-1 for the automatic four",)),
        (OCTOBER, {"parallel": "2"}, ("'parallel'", "'2'", "whole number")),
        (OCTOBER, {"ctx_size": 0}, ("from 1",)),
        (OCTOBER, {"ctx_size": True}, ("True",)),
        (OCTOBER, {"slot_prompt_similarity": 2}, ("from 0 to 1",)),
        (OCTOBER, {"swa_full": 1}, ("true or false",)),
        (OCTOBER, {"spec_type": "magic"}, ("draft-mtp",)),
        (OCTOBER, {"spec_type": "draft-mtp"}, ("needs an MTP head", "has none")),
        (OCTOBER, {"spec_type": "draft-simple"}, ("model_draft",)),
        (OCTOBER, {"model_draft": "dense"}, ("spec_type",)),
    ],
)
def test_a_wrong_option_is_refused_with_what_to_write(
    profile: str, option: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(OptionError) as refused:
        create(profile, **option)
    message = str(refused.value)
    assert [word for word in (*words, *option) if word not in message] == []


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ("llama.cpp@b1", ("b9093, b9538, b11549",)),
        ("llama.cpp@b9538+24142", ("24142", "did you mean '24143'")),
        ("llama.cpp@b11549+22384", ("does not fit", "b9093")),
        ("llama.cpp@b9093+24035", ("does not fit", "b9538, b11549")),
        ("llama.cpp@b11549+24411", ("does not fit", "b9093, b9538")),
    ],
)
def test_a_wrong_profile_is_refused_with_those_there_are(
    profile: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(ProfileError) as refused:
        create(profile)
    assert all(word in str(refused.value) for word in words)


def test_older_names_of_a_release_are_the_release() -> None:
    assert Profile.parse("llama.cpp@b11434") == Profile.parse(OCTOBER)
    assert create("llama.cpp@b9509").profile.release == "b9538"
    assert create("llama.cpp@b9094").profile.release == "b9093"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"prompt": as_tokens([1, 512])}, TokenError),
        ({"prompt": as_tokens([-1])}, TokenError),
        ({"prompt": as_tokens([1]), "reply": as_tokens([600])}, TokenError),
        ({"prompt": as_tokens([1]), "drafts": (as_tokens([600]),)}, TokenError),
        ({"prompt": as_tokens([1]), "predict": -2}, OptionError),
        ({"prompt": as_tokens([1]), "completions": 0}, OptionError),
        ({"prompt": as_tokens([1]), "slot": -3}, OptionError),
        ({"prompt": as_tokens([1]), "options": {"n_kep": 1}}, OptionError),
        ({"prompt": as_tokens([1]), "options": {"n_keep": "x"}}, OptionError),
        ({"prompt": as_tokens([1]), "options": {"n_discard": -5}}, OptionError),
        ({"prompt": as_tokens([1]), "options": {"message_spans": [{"role": "user"}]}}, OptionError),
        (
            {
                "prompt": as_tokens([1]),
                "options": {"message_spans": [{"role": "user", "start": 9}]},
            },
            OptionError,
        ),
        (
            {"prompt": as_tokens([1]), "options": {"message_delimiters": [{"role": "user"}]}},
            OptionError,
        ),
    ],
)
def test_a_wrong_request_is_refused_and_changes_nothing(
    fields: dict[str, Any], error: type[InputError]
) -> None:
    engine = create()
    before = engine.snapshot()
    with pytest.raises(error):
        engine.submit(Request(**fields))
    assert engine.snapshot() == before
    assert not engine.step()


@pytest.mark.parametrize(
    ("profile", "field"),
    [
        ("llama.cpp@b9093", "message_spans"),
        ("llama.cpp@b9093", "message_delimiters"),
        ("llama.cpp@b9538", "message_delimiters"),
    ],
)
def test_a_field_that_the_release_does_not_have_is_refused(profile: str, field: str) -> None:
    with pytest.raises(OptionError, match="the releases that have it are"):
        create(profile).submit(Request(prompt=as_tokens([1]), options={field: []}))


@pytest.mark.parametrize("profile", ["llama.cpp@b9093", "llama.cpp@b9538", OCTOBER])
def test_a_prompt_as_long_as_the_context_is_refused_and_the_run_goes_on(profile: str) -> None:
    play = Play(profile, "hybrid", ctx_size=256)
    play.ask(run(range(100)), 4)
    held = play.snapshot["slots"][0]
    reply = play.reply(run(range(256)))
    assert reply.error == "exceed_context_size_error"
    assert (reply.cached, reply.processed, reply.generated) == (None, None, ())
    assert "256 tokens" in reply.message
    after = play.snapshot["slots"][0]
    assert (after["tokens"], after["checkpoints"]) == (held["tokens"], held["checkpoints"])
    assert sum(loss.before - loss.after for loss in reply.losses) == reply.equal == 100
    assert reply.losses[-1].rule == "exceed_context_size_error"
    assert play.ask(run(range(255))) == (96, 159)


def test_an_empty_prompt_is_answered_at_once_with_nothing() -> None:
    play = Play(OCTOBER, "dense")
    reply = play.reply([], 4)
    assert (reply.cached, reply.processed, reply.generated) == (0, 0, ())
    play.reply(run(range(50)))
    play.reply([])
    told = [event.as_dict() for event in play.engine.events]
    assert "NaN" not in json.dumps(told)


def test_more_completions_than_slots_are_refused() -> None:
    play = Play(OCTOBER, "dense", parallel=2)
    reply = play.reply(run(range(10)), completions=3)
    assert reply.error == "invalid_request_error"
    assert "slots (2)" in reply.message
    assert play.tokens(0) == play.tokens(1) == 0


def test_a_refused_cut_ends_the_process_since_june() -> None:
    """#24891 keeps what only its warning tolerates; without it such a cut is fatal."""
    play = Play("llama.cpp@b9538", "recurrent", ctx_checkpoints=0)
    play.ask(run(range(100)), 4)
    server = play.engine.server
    slot = server.slots[0]
    slot.prompt.keep_first(50)
    with pytest.raises(UpstreamAbort, match="common_memory::seq_rm"):
        server.contexts.seq_rm(slot.id, 50, -1)


def test_books_that_disagree_are_a_broken_contract() -> None:
    play = Play(OCTOBER, "dense")
    play.ask(run(range(100)))
    play.engine.server.slots[0].prompt.tokens.pop()
    with pytest.raises(ContractError, match="99 tokens"):
        play.engine.check_integrity()
