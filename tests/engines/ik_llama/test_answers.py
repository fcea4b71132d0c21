"""Whether answers from cache are the cold answers, release by release and patch by patch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines import Reply, Request
from cachesim.engines.ik_llama.events import ContextShifted
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.units import Tokens, as_tokens
from cachesim.verify.oracle import cold_logits
from tests.engines.ik_llama.worked_kit import (
    BIG,
    LATER,
    SEED_ERA,
    SHORT,
    A,
    G,
    Played,
    Steps,
    Z,
    run_of,
)


def is_cold(server: Played, answer: Reply) -> bool:
    """Whether every row of logits is the one a cold run gives."""
    told = answer.prompt + answer.generated[:-1]
    cold = cold_logits(server.server.network, told)[len(answer.prompt) - 1 :]
    return bool(np.array_equal(cold, answer.logits))


REPEATED = ("the same prompt", A)
WRONG = [
    ("", REPEATED, True),
    ("+1888", REPEATED, False),
    ("+1689", REPEATED, False),
    ("", ("996 shared", A[:996] + Z[:100]), True),
    ("+1888", ("995 shared", A[:995] + Z[:100]), True),
    ("+1888", ("994 shared", A[:994] + Z[:100]), False),
    ("+1689", ("993 shared", A[:993] + Z[:100]), False),
]


@pytest.mark.parametrize(("patch", "second", "right"), WRONG, ids=lambda part: str(part)[:24])
def test_reuse_gained_by_a_patch_can_be_a_wrong_state(
    patch: str, second: tuple[str, Tokens], right: bool
) -> None:
    server = Played("hybrid-delta", SEED_ERA + patch)
    server.ask(A, G[:11])

    assert right == is_cold(server, server.full(second[1], SHORT))


@pytest.mark.parametrize(("profile", "right"), [(SEED_ERA, False), (LATER, True)])
def test_the_last_token_enters_the_state_twice_until_it_is_taken_back_first(
    profile: str, right: bool
) -> None:
    server = Played("hybrid-delta", profile)
    server.ask(A, G[:1])

    assert right == is_cold(server, server.full(A, SHORT))


def test_a_partial_restore_beside_another_slot_meets_foreign_keys() -> None:
    server = Played("hybrid-delta", parallel=2, cache_ram=0, batch_size=64, ctx_size=2048)
    first, other = A[:400], run_of(2000, 100)
    server.ask(first, G[:3])
    server.ask(other, G[3:6])
    longer = first + G[:2] + Z[:60]  # its end lies behind the other slot's cells
    server.ask(longer, G[6:9])
    answer = server.full(longer[:460] + Z[100:160], SHORT)

    assert answer.cached == 457
    assert not is_cold(server, answer)


def test_a_cut_prompt_leaves_the_memory_behind() -> None:
    server = Played("dense", ctx_size=256)
    long = run_of(300, 240)
    server.ask(long, SHORT)
    answer = server.full(long + Z[:60], SHORT)

    assert answer.truncated
    assert answer.cached == 0 or not is_cold(server, answer)


FIRST = run_of(300, 96)
SAMPLED = run_of(4000, 11)
MENU: list[Tokens] = [
    FIRST,
    FIRST + SAMPLED[:10],
    FIRST + SAMPLED[:10] + run_of(8000, 40),
    FIRST[:70],
    FIRST[:50] + run_of(9000, 60),
    run_of(2000, 80),
    as_tokens([300]),
]


@given(
    picks=st.lists(st.integers(0, len(MENU) - 1), min_size=1, max_size=5),
    model=st.sampled_from(["dense", "swa"]),
    companion=st.sampled_from(["none", "strict_tail"]),
    patch=st.sampled_from(["", "+1889"]),
)
def test_models_without_recurrent_rows_always_answer_cold(
    picks: list[int], model: str, companion: str, patch: str
) -> None:
    server = Played(model, SEED_ERA + patch, companion=companion, draft_max=3, ctx_size=1024)
    for pick in picks:
        drafts = Steps(SAMPLED).drafts if companion != "none" else None
        assert is_cold(server, server.full(MENU[pick], SAMPLED, drafts))


@given(
    picks=st.lists(st.integers(0, len(MENU) - 1), min_size=1, max_size=5),
    companion=st.sampled_from(["none", "attn", "strict_tail"]),
    patch=st.sampled_from(["+2105", "+2105+1889"]),  # without 2105 the last token enters twice
    mode=st.sampled_from(["gpu-fallback", "cpu"]),
)
def test_whatever_happens_to_the_companion_a_hybrid_answers_cold(
    picks: list[int], companion: str, patch: str, mode: str
) -> None:
    server = Played(
        "hybrid-mtp",
        SEED_ERA + patch,
        companion=companion,
        draft_max=3,
        ctx_size=1024,
        recurrent_ckpt_mode=mode,
    )
    for pick in picks:
        drafts = Steps(SAMPLED).drafts if companion != "none" else None
        assert is_cold(server, server.full(MENU[pick], SAMPLED, drafts))


def test_the_networks_hold_every_token_of_these_stories() -> None:
    assert BIG == build(preset("dense", vocabulary=BIG), "ring").spec.vocabulary


@pytest.mark.parametrize(
    ("profile", "cache_prompt", "shifts"),
    [
        (SEED_ERA, True, 1),
        (SEED_ERA, False, 32),
        (LATER, False, 32),
        (LATER + "+2459", False, 1),
    ],
)
def test_without_cache_prompt_the_shift_fires_on_every_token(
    profile: str, cache_prompt: bool, shifts: int
) -> None:
    server = Played("dense", profile, ctx_size=128)
    ticket = server.server.submit(Request(prompt=A[:100], predict=60, cache_prompt=cache_prompt))
    server.server.run()

    reply = server.server.reply(ticket)
    assert reply is not None
    assert len(reply.generated) == 60
    assert shifts == sum(isinstance(each, ContextShifted) for each in server.server.events)


def test_tokens_that_a_shift_left_in_the_list_are_reused_although_they_are_gone() -> None:
    server = Played("dense", LATER, ctx_size=128)
    server.server.submit(Request(prompt=A[:100], predict=60, cache_prompt=False))
    answer = server.full(A[:100], SHORT)

    assert answer.cached == 99
    assert not is_cold(server, answer)
