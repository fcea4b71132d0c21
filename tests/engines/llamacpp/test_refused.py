"""What the server or the simulator refuses, and that a refusal leaves everything as it was."""

import json
from typing import Any

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.profile import Profile
from cachesim.errors import (
    ContractError,
    InputError,
    OptionError,
    ProfileError,
    TokenError,
    UpstreamAbort,
    UpstreamEndless,
)
from cachesim.model.presets import preset
from cachesim.units import as_tokens
from tests.engines.llamacpp.play import Play, run

MAY, JUNE, OCTOBER = ALL = ("llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549")


def create(profile: str = OCTOBER, model: str = "dense", **options: Any) -> Engine:
    return Engine.create(profile, model=preset(model), options=options, arithmetic="ring")


@pytest.mark.parametrize(
    ("profile", "option", "words"),
    [
        ("llama.cpp@b9093", {"checkpoint_min_step": 1}, ("b9538 to b11549",)),
        ("llama.cpp@b9538", {"checkpoint_every_nt": 1}, ("b8672 to b9294",)),
        ("llama.cpp@b9538", {"kv_unified_per_slot": 512}, ("b11549",)),
        ("llama.cpp@b9093", {"spec_type": "draft-mtp"}, ("b9294 to b11549",)),
        ("llama.cpp@b9093", {"model_draft": "dense"}, ("b9294 to b11549",)),
        (OCTOBER, {"ctx_checkpoint": 1}, ("did you mean 'ctx_checkpoints'",)),
        (OCTOBER, {"colour": 1}, ("there are", "batch_size")),
        (OCTOBER, {"parallel": 0}, ("-1 for the automatic four",)),
        (OCTOBER, {"parallel": "2"}, ("'parallel'", "'2'", "whole number")),
        (OCTOBER, {"ctx_size": True}, ("True",)),
        (OCTOBER, {"slot_prompt_similarity": 2}, ("from 0 to 1",)),
        (OCTOBER, {"swa_full": 1}, ("true or false",)),
        (OCTOBER, {"spec_type": "magic"}, ("draft-mtp",)),
        (OCTOBER, {"spec_type": "draft-mtp"}, ("needs an MTP head", "has none")),
        (OCTOBER, {"spec_type": "draft-simple"}, ("model_draft",)),
        (OCTOBER, {"model_draft": "dense"}, ("spec_type",)),
        (OCTOBER, {"spec_type": "draft-simple", "model_draft": 0.5}, ("0.5", "a preset")),
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
        ("llama.cpp@b1", (f"the nearest is {FAMILY.names()[0]}",)),
        ("llama.cpp@b9538+24142", ("24142", "did you mean '24143'")),
        ("llama.cpp@b11549+22384", ("does not fit", "b9093")),
        ("llama.cpp@b9093+24035", ("does not fit", "b9538 to b11549")),
        ("llama.cpp@b11549+24411", ("has '24411' already", "b9713")),
        ("llama.cpp@b9538-24411", ("to take back", "b9713")),
        ("llama.cpp@b11549-24143", ("was not merged",)),
        ("llama.cpp@b11549-25472", ("take back 28302 first",)),
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
        ({"prompt": as_tokens([1]), "options": {"ignore_eos": 1}}, OptionError),
        ({"prompt": (), "options": {"prompt_string": "yes"}}, OptionError),
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
    assert reply.losses[-1].rule == "request-refused"
    assert reply.losses[-1].detail == {"error": "exceed_context_size_error"}
    assert play.ask(run(range(255))) == (96, 159)


@pytest.mark.parametrize("profile", ALL)
def test_an_empty_list_of_tokens_is_refused_before_it_reaches_a_slot(profile: str) -> None:
    play = Play(profile, "dense")
    reply = play.reply([], 4)
    assert reply.error == "invalid_request_error"
    assert (reply.slot, reply.cached, reply.processed) == (None, None, None)
    assert ["request-refused"] == [event.name() for event in play.engine.events]


@pytest.mark.parametrize(("profile", "processed"), [(MAY, 20), (JUNE, 20), (OCTOBER, 0)])
def test_an_empty_text_is_answered_with_the_number_of_the_request_before(
    profile: str, processed: int
) -> None:
    """The numbers are the wheels'; the older ones do not reset what a slot processed."""
    play = Play(profile, "hybrid")
    assert (0, 0) == play.ask([], options={"prompt_string": True})
    assert (0, 20) == play.ask([300] * 20, 2)
    assert (0, processed) == play.ask([], options={"prompt_string": True})
    told = [event.as_dict() for event in play.engine.events]
    assert "NaN" not in json.dumps(told)


@pytest.mark.parametrize("slot", [-1, 0])
@pytest.mark.parametrize("prompt", [[300] * 300, []])
@pytest.mark.parametrize("profile", ALL)
def test_a_run_of_refused_requests_does_not_end_the_server(
    profile: str, prompt: list[int], slot: int
) -> None:
    """Thirty and then a normal one, as played on the wheels; texts that are empty too."""
    play = Play(profile, "hybrid", ctx_size=256)
    fields: dict[str, Any] = {} if prompt else {"options": {"prompt_string": True}}
    for _ in range(30):
        reply = play.reply(prompt, slot=slot, **fields)
        assert reply.error == ("exceed_context_size_error" if prompt else None)
    assert (0, 20) == play.ask([300] * 20)


@pytest.mark.parametrize("profile", ALL)
def test_empty_texts_that_wait_for_one_another_do_not_end_the_server(profile: str) -> None:
    """The wheels answer 400 of them in one call."""
    play = Play(profile, "hybrid", ctx_size=256)
    empty = Request(prompt=(), options={"prompt_string": True})
    tickets = [play.engine.submit(empty) for _ in range(12)]
    play.engine.run()
    replies = [play.engine.reply(ticket) for ticket in tickets]
    assert [0] * 12 == [reply.processed for reply in replies if reply is not None]


@pytest.mark.parametrize("prompt", [[300] * 400, []])
@pytest.mark.parametrize("profile", [MAY, JUNE])
def test_completions_of_a_prompt_that_is_refused_end_the_older_servers(
    profile: str, prompt: list[int]
) -> None:
    """Its children wait for a parent that never comes; b9093 8 of 8 times, b9538 7 of 8."""
    play = Play(profile, "hybrid", ctx_size=256, parallel=3, kv_unified=True)
    with pytest.raises(UpstreamAbort, match="too many consecutive empty batches"):
        play.reply(prompt, completions=2, options={"prompt_string": True})


@pytest.mark.parametrize("release", ["b9873", "b10068", "b10566", "b11063", "b11549"])
def test_later_releases_release_the_children_of_a_refused_prompt(release: str) -> None:
    play = Play(f"llama.cpp@{release}", "hybrid", ctx_size=256, parallel=3, kv_unified=True)
    play.ask([300] * 20, 2, completions=2)
    reply = play.reply([300] * 400, completions=2)
    errors = [each.error for each in play.engine.replies(play.ticket)]
    assert (reply.error, errors[1:]) == ("exceed_context_size_error", ["cancelled"])
    assert (16, 4) == play.ask([300] * 20, 2)


def test_october_waits_for_ever_for_the_children_of_an_empty_text() -> None:
    """The parent is answered with success, so nobody cancels its children."""
    play = Play(OCTOBER, "hybrid", parallel=3)
    with pytest.raises(UpstreamEndless, match="nothing to decode"):
        play.reply([], completions=2, options={"prompt_string": True})


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
