"""What the server or the simulator refuses, and that a refusal leaves everything as it was."""

from typing import Any

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.family import Profile
from cachesim.errors import ContractError, InputError, OptionError, TokenError, UpstreamAbort
from cachesim.model.presets import preset
from cachesim.units import as_tokens
from tests.engines.llamacpp.play import Play, run

MAY, JUNE, OCTOBER = ALL = ("llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549")


def create(profile: str = OCTOBER, model: str = "dense", **options: Any) -> Engine:
    return Engine.create(profile, model=preset(model), options=options, arithmetic="ring")


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
