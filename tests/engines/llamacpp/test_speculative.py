"""Speculative decoding: whatever is drafted, the reply is the one without drafts."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachesim.engines.base import Engine
from cachesim.errors import OptionError
from cachesim.model.build import build
from cachesim.model.presets import preset, tiny
from cachesim.units import Tokens, as_tokens
from tests.engines.asking import answer, is_cold, names
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


@both
def test_an_mtp_head_drafts_in_the_real_arithmetic(profile: str) -> None:
    play = Play(profile, "hybrid-mtp", arithmetic="float", spec_type="draft-mtp")
    reply = play.reply(run(range(300, 340)), 12, forced=False)

    assert is_cold(play.engine, reply)
    assert "draft-verified" in names(play.engine)


def test_a_companion_of_another_vocabulary_is_refused() -> None:
    options = {"spec_type": "draft-simple", "model_draft": preset("dense", vocabulary=64)}
    with pytest.raises(OptionError, match="same vocabulary"):
        Engine.create(OCTOBER, model=preset("dense"), options=options, arithmetic="ring")


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
    held: list[int] = []
    for letters, given_drafts in prompts:
        prompt = held[: len(letters) * 3] + letters
        drafts: tuple[Tokens, ...] = tuple(as_tokens(draft) for draft in given_drafts)
        forced = as_tokens([300 + (k * k) % 3 for k in range(9)])
        reply = answer(engine, prompt, 9, reply=forced, drafts=drafts)

        assert forced == reply.generated
        assert is_cold(engine, reply)
        held = [*prompt, *forced]
