"""The explanation of a miss: the engine's own entries, added up."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.base import Reply
from cachesim.engines.causes import Cause, Ledger, Loss
from cachesim.errors import ContractError
from cachesim.play import run
from cachesim.scenario import full_profile, load
from cachesim.scenario.shipped import shipped_file
from cachesim.typed import there_is
from cachesim.units import Count, Pos, Tokens, as_tokens
from cachesim.verify.explain import Divergence, IdealCache, Part, adds_up, explain, sentence


def reply(
    prompt: Tokens,
    *,
    cached: int | None = 0,
    equal: int = 0,
    losses: tuple[Loss, ...] = (),
    generated: Tokens = (),
    error: str | None = None,
) -> Reply:
    return Reply(
        prompt=prompt,
        generated=generated,
        logits=np.zeros((len(generated), 1), np.uint64),
        cached=None if cached is None else Count(cached),
        processed=None,
        equal=Count(equal),
        equal_with="slot 0" if equal else "nothing",
        losses=losses,
        error=error,
    )


DEPTH = Cause(
    id="memory-depth",
    sentence="memory starts at {pos_min}, not below {threshold}",
    about="About.",
    fields=("pos_min", "threshold"),
)
RESTORED = Cause(
    id="checkpoint-restored",
    sentence="checkpoint {n_tokens} was restored",
    about="About.",
    fields=("n_tokens",),
)
SOME = Cause(id="some-cause", sentence="a branch decided so", about="About.")


def loss(cause: Cause, before: int, after: int, **detail: object) -> Loss:
    return Loss(cause=cause, before=Count(before), after=Count(after), detail=detail)


# --- the ideal cache -------------------------------------------------------------------------

short = st.lists(st.integers(1, 3), min_size=1, max_size=8).map(as_tokens)


@given(st.lists(short), short)
def test_the_ideal_cache_reuses_the_longest_prefix_ever_computed_but_for_the_last_token(
    seen: list[Tokens], prompt: Tokens
) -> None:
    ideal = IdealCache()
    for tokens in seen:
        ideal.remember(reply(tokens))

    prefixes = {tokens[:n] for tokens in seen for n in range(len(tokens) + 1)} | {()}
    longest = max(n for n in range(len(prompt) + 1) if prompt[:n] in prefixes)
    assert longest == ideal.common(prompt)
    assert min(longest, len(prompt) - 1) == ideal.due(reply(prompt))


@pytest.mark.thorough
@given(st.lists(short), short, st.data())
def test_the_ideal_cache_knows_what_else_followed_oldest_first(
    seen: list[Tokens], prompt: Tokens, data: st.DataObject
) -> None:
    ideal, index = IdealCache(), data.draw(st.integers(0, len(prompt) - 1))
    for tokens in seen:
        ideal.remember(reply(tokens))

    followed = [t[index] for t in seen if len(t) > index and t[:index] == prompt[:index]]
    expected = tuple(dict.fromkeys(each for each in followed if each != prompt[index]))
    assert expected == ideal.others(prompt, index)


def test_what_was_generated_was_computed_but_for_the_last_token() -> None:
    ideal = IdealCache()
    ideal.remember(reply((as_tokens([1, 2])), generated=as_tokens([3, 4])))

    assert 3 == ideal.common(as_tokens([1, 2, 3, 4, 5]))


def test_what_a_server_found_equal_is_due_even_where_it_computed_ahead() -> None:
    ideal = IdealCache()
    ideal.remember(reply((as_tokens([1, 2])), generated=as_tokens([3, 4])))

    assert 4 == ideal.due(reply(as_tokens([1, 2, 3, 4, 5]), equal=4))


def test_what_other_adapters_computed_is_not_due() -> None:
    ideal, plain, adapted = IdealCache(), (0.0,), (1.0,)
    prompt = as_tokens([1, 2, 3, 4])
    ideal.remember(replace(reply(prompt), strengths=plain))

    assert [4, 0] == [ideal.common(prompt, each) for each in (plain, adapted)]
    foreign = replace(reply(prompt, equal=4), strengths=adapted)
    assert 0 == ideal.due(foreign)
    assert () == ideal.others(as_tokens([1, 2, 9]), 2, adapted)

    ideal.remember(foreign)
    assert 3 == ideal.due(foreign)


def test_a_refused_request_computed_nothing() -> None:
    ideal = IdealCache()
    ideal.remember(reply(as_tokens([1, 2]), cached=None, error="exceed_context_size_error"))

    assert 0 == ideal.common(as_tokens([1, 2]))


# --- the account -----------------------------------------------------------------------------


def test_the_account_of_a_checkpoint_that_lies_far_back() -> None:
    ideal = IdealCache()
    ideal.remember(reply(as_tokens(range(204))))
    prompt = (*as_tokens(range(196)), *as_tokens(range(400, 410)))
    losses = (loss(DEPTH, 196, 0, pos_min=203, threshold=196), loss(RESTORED, 0, 96, n_tokens=96))
    parts = (Part(name="S", start=0, end=196), Part(name="u2", start=196, end=206))

    account = explain(
        reply(prompt, cached=96, equal=196, losses=losses),
        ideal,
        parts=parts,
        matched=as_tokens(range(204)),
    )

    assert account is not None
    assert Divergence(
        index=Pos(196),
        token=prompt[196],
        others=as_tokens([196]),
        there=as_tokens([196])[0],
        within="u2",
    ) == (account.parting)
    assert (196, 100) == (account.ideal, account.lost)
    assert account.sentences == (
        ("196 of 206 tokens match slot 0. Token 196 (in u2) is 400 in the prompt, 196 in slot 0."),
        "Memory starts at 203, not below 196: 196 to 0.",
        "Checkpoint 96 was restored: 0 to 96.",
    )
    assert "memory-depth" == account.as_dict()["losses"][0]["rule"]
    assert 196 == account.as_dict()["parting"]["index"]


def test_a_prompt_that_is_all_there_parts_nowhere() -> None:
    ideal = IdealCache()
    prompt = as_tokens(range(10))
    ideal.remember(reply(prompt))

    account = explain(reply(prompt, cached=9, equal=10, losses=(loss(SOME, 10, 9),)), ideal)

    assert account is not None
    assert account.parting is None
    assert 0 == account.lost
    assert "All 10 tokens match slot 0." == account.sentences[0]


def test_a_prompt_that_goes_on_where_the_slot_ended_parts_from_nothing() -> None:
    ideal = IdealCache()
    ideal.remember(reply(as_tokens(range(5))))

    account = there_is(explain(reply(as_tokens(range(8)), cached=5, equal=5), ideal))

    assert account.sentences == ("5 of 8 tokens match slot 0. Token 5 and all after it are new.",)


def test_one_token_that_matches_is_told_in_the_singular() -> None:
    ideal = IdealCache()
    ideal.remember(reply(as_tokens(range(1))))

    first = explain(reply(as_tokens(range(8)), cached=1, equal=1), ideal)
    only = explain(reply(as_tokens([0]), equal=1, losses=(loss(SOME, 1, 0),)), ideal)

    assert first is not None
    assert only is not None
    assert "1 of 8 tokens matches slot 0. Token 1 and all after it are new." == first.sentences[0]
    assert "The one token matches slot 0." == only.sentences[0]


def test_a_prompt_unlike_any_other_says_so() -> None:
    account = there_is(explain(reply(as_tokens([1, 2, 3])), IdealCache()))

    assert ("No prefix of this 3-token prompt is in memory.",) == account.sentences


def test_a_refused_request_has_no_account() -> None:
    assert explain(reply(as_tokens([1]), cached=None, error="e"), IdealCache()) is None


def test_numbers_that_do_not_add_up_are_our_bug() -> None:
    wrong = reply(as_tokens(range(9)), cached=3, equal=8, losses=(loss(SOME, 8, 4),))

    with pytest.raises(ContractError, match="5 apart, but the rules account for 4: some-cause 8"):
        explain(wrong, IdealCache())


@given(st.integers(0, 20), st.lists(st.integers(0, 20)))
def test_every_ledger_adds_up(equal: int, numbers: list[int]) -> None:
    ledger = Ledger(Count(equal), "slot 0")
    for number in numbers:
        ledger.apply(SOME, number)

    adds_up(reply(as_tokens(range(21)), cached=ledger.usable, equal=equal, losses=ledger.losses))


# --- sentences -------------------------------------------------------------------------------


def test_an_entry_of_why_says_what_happened_and_what_it_cost() -> None:
    assert "A branch decided so: 5 to 3." == sentence(loss(SOME, 5, 3))


# A run with details, and the same run without: details are the only difference.


@pytest.mark.parametrize("name", ["llama.cpp-chunk-reuse-dense", "llama.cpp-three-requests"])
def test_details_change_no_explanation(name: str) -> None:
    scenario = load(shipped_file(name))
    profile = full_profile("llama.cpp", "b11549")
    plain, detailed = (
        run(scenario, profile, arithmetic="ring", detail=each) for each in (False, True)
    )

    assert any(step.answer != "same" for step in plain.steps)
    assert [step.explanation for step in detailed.steps] == [
        step.explanation for step in plain.steps
    ]
