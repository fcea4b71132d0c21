"""Worked examples: matches, cached and processed counts, checkpoints."""

import pytest

from cachesim.engines.byte_tokenizer import THINK_MARKS
from cachesim.errors import OptionError, UpstreamAbort
from tests.engines.ik_llama.worked_kit import (
    LATER,
    SEED_ERA,
    SHORT,
    A,
    B,
    G,
    H,
    Played,
    U,
    X,
    Y,
    Z,
    run_of,
)


def test_a_continuation_reuses_all_but_the_new_tokens() -> None:
    server = Played("dense")
    server.ask(A, G[:11])

    assert (1010, 50) == server.ask(A + G[:10] + U, SHORT)


def test_the_same_prompt_leaves_one_token() -> None:
    server = Played("dense")
    server.ask(A, G[:11])

    assert (999, 1) == server.ask(A, SHORT)


def test_a_divergence_keeps_the_common_prefix_and_parks_nothing() -> None:
    server = Played("dense")
    server.ask(A, G[:11])

    assert (700, 100) == server.ask(A[:700] + Z[:100], SHORT)
    assert [] == server.parked


def test_a_match_of_one_token_is_lost_on_dense_models() -> None:
    server = Played("dense")
    server.ask(A, G[:11])

    assert (0, 101) == server.ask(A[:1] + Z[:100], SHORT)
    assert [1010] == server.parked


@pytest.mark.parametrize(
    ("tokens", "expected", "parked"),
    [
        ("auto", [(0, 1000), (0, 800), (1020, 30), (820, 30)], [1, 1, 1]),
        ("none", [(0, 1000), (0, 800), (0, 1050), (0, 850)], None),
    ],
)
def test_a_lookup_without_exclusion_destroys_the_token_lists(
    tokens: str, expected: list[tuple[int, int]], parked: list[int] | None
) -> None:
    server = Played("dense", reasoning_tokens=tokens)
    prompts = [A, B, A + G[:20] + U[:30], B + H[:20] + Y[:30]]
    replies = [G[:21], H[:21], SHORT, SHORT]
    found, sizes = [], []
    for prompt, reply in zip(prompts, replies, strict=True):
        found.append(server.ask(prompt, reply))
        sizes.append(len(server.parked))

    assert expected == found
    if parked is not None:
        assert parked == sizes[1:]


def test_checkpoints_at_the_tolerance_in_generation_and_at_the_end() -> None:
    server = Played("hybrid-delta")
    server.ask(A, G[:11])
    first = server.checkpoints
    answer = server.ask(A + G[:10] + U, G[20:23])

    assert [994, 1000, 1009] == first
    assert (1010, 50) == answer
    assert [994, 1000, 1009, 1054, 1060, 1061] == server.checkpoints


def test_the_same_prompt_goes_back_to_the_tolerance_point() -> None:
    server = Played("hybrid-delta")
    server.ask(A, G[:11])
    answer = server.full(A, SHORT)

    assert (995, 5) == (answer.cached, answer.processed)
    assert 1000 not in server.checkpoints[:1]


NINE = {
    996: {"d2da6da05": 995, "+1888": 995, "+1689": 996, "8337e4cd3": 995},
    995: {"d2da6da05": 0, "+1888": 995, "+1689": 995, "8337e4cd3": 0},
    994: {"d2da6da05": 0, "+1888": 994, "+1689": 994, "8337e4cd3": 0},
    993: {"d2da6da05": 0, "+1888": 0, "+1689": 993, "8337e4cd3": 0},
}


@pytest.mark.parametrize("shared", NINE)
@pytest.mark.parametrize("rule", ["d2da6da05", "+1888", "+1689", "8337e4cd3"])
def test_one_token_of_match_decides(shared: int, rule: str) -> None:
    profile = SEED_ERA + rule if rule.startswith("+") else f"ik_llama.cpp@{rule}"
    server = Played("hybrid-delta", profile)
    server.ask(A, G[:11])
    cached = NINE[shared][rule]

    assert (cached, shared + 100 - cached) == server.ask(A[:shared] + Z[:100], SHORT)


@pytest.mark.parametrize(("profile", "cached"), [(SEED_ERA, 999), (LATER, 995)])
def test_the_last_token_is_taken_back_without_a_checkpoint(profile: str, cached: int) -> None:
    server = Played("hybrid-delta", profile)
    server.ask(A, G[:1])

    assert (cached, 1000 - cached) == server.ask(A, SHORT)


@pytest.mark.parametrize(("rule", "cached"), [("", 0), ("+1888", 35), ("+1689", 39)])
def test_short_prompts_have_no_checkpoint(rule: str, cached: int) -> None:
    server = Played("hybrid-delta", SEED_ERA + rule)
    server.ask(A[:40], G[:5])

    assert (cached, 40 - cached) == server.ask(A[:40], SHORT)


def test_a_batch_wide_spacing_of_checkpoints() -> None:
    server = Played("hybrid-delta", ctx_size=16384)
    server.ask(X, G[:3])
    first = server.checkpoints
    second = server.ask(X[:3000] + Z, G[10:13])
    third = server.ask(X[:1500] + Y, G[20:23])

    assert [2047, 4095, 4994, 5000, 5001] == first
    assert (2048, 1452) == second
    assert (0, 2000) == third


@pytest.mark.parametrize("options", [{"batch_size": 4096}, {"ctx_checkpoints_interval": 4096}])
def test_wider_spacing_loses_all(options: dict[str, int]) -> None:
    server = Played("hybrid-delta", ctx_size=16384, **options)
    server.ask(X, G[:3])

    assert (0, 3500) == server.ask(X[:3000] + Z, G[10:13])


@pytest.mark.parametrize(
    ("profile", "kept", "answer"),
    [(SEED_ERA, [4994, 5000, 5001], (0, 2200)), (LATER, [2047, 5000, 5001], (2048, 152))],
)
def test_what_a_small_list_keeps(profile: str, kept: list[int], answer: tuple[int, int]) -> None:
    server = Played("hybrid-delta", profile, ctx_size=16384, ctx_checkpoints=3)
    server.ask(X, G[:3])
    checkpoints = server.checkpoints

    assert kept == checkpoints
    assert answer == server.ask(X[:2100] + Z[:100], SHORT)


S = run_of(18000, 600)
a = run_of(19000, 1400)
b = run_of(21000, 200)
x = run_of(22000, 480)


def test_a_load_overwrites_a_slot_that_was_not_saved() -> None:
    server = Played("hybrid-delta")
    server.ask(S + a, G[:21])
    second = server.ask(S + b, H[:21])
    third = server.ask(S + a + G[:20] + U[:30], SHORT)

    assert (0, 800) == second
    assert (2020, 30) == third
    assert [] == server.parked


@pytest.mark.parametrize(
    ("model", "profile", "third", "fourth"),
    [
        ("dense", SEED_ERA, (600, 200), (600, 1450)),
        ("hybrid-delta", SEED_ERA, (0, 800), (0, 2050)),
        ("dense", LATER, (0, 800), (2020, 30)),
        ("hybrid-delta", LATER, (0, 800), (2020, 30)),
        ("dense", SEED_ERA + "+1877", (0, 800), (2020, 30)),
        ("hybrid-delta", SEED_ERA + "+1877", (0, 800), (2020, 30)),
    ],
)
def test_a_load_consumes_what_the_next_step_throws_away(
    model: str, profile: str, third: tuple[int, int], fourth: tuple[int, int]
) -> None:
    server = Played(model, profile)
    server.ask(S + a, G[:21])
    server.ask(x, H[:21])

    assert third == server.ask(S + b, H[30:51])
    assert fourth == server.ask(S + a + G[:20] + U[:30], SHORT)


def test_a_recurrent_model_resets_by_checkpoint_or_by_a_refused_trim() -> None:
    options = {"cache_ram": 0, "ctx_checkpoints": 0}
    diverging = Played("recurrent", **options)
    diverging.ask(A, G[:11])
    repeating = Played("recurrent", **options)
    repeating.ask(A, G[:1])

    assert (0, 1000) == diverging.ask(A, SHORT)
    assert (0, 1000) == repeating.ask(A, SHORT)
    assert "full-reset" in [event.name() for event in repeating.server.events]


def test_restoring_a_recurrent_checkpoint_ends_the_process() -> None:
    server = Played("recurrent", cache_ram=0)
    server.ask(A, G[:11])

    with pytest.raises(UpstreamAbort, match="sequence id"):
        server.ask(A, SHORT)


@pytest.mark.parametrize(
    ("model", "tags", "answer"),
    [
        ("hybrid-delta", "auto", (995, 45)),
        ("dense", "auto", (1000, 40)),
        ("hybrid-delta", "none", (0, 1040)),
    ],
)
def test_reasoning_is_left_out_of_the_choice_not_of_the_count(
    model: str, tags: str, answer: tuple[int, int]
) -> None:
    thought = (THINK_MARKS[0], *run_of(12_000, 1500), THINK_MARKS[1])
    said = run_of(14_000, 10)
    prompt = run_of(600, 1000)
    server = Played(model, reasoning_tokens=tags, chat_template="strip-reasoning")
    server.ask(prompt, thought + said)
    made = server.checkpoints

    assert answer == server.ask(prompt + said + U[:30], SHORT)
    assert ([994, 1000, 1511, 2022, 2510] if model == "hybrid-delta" else []) == made
    assert ([2511] if tags == "none" else []) == server.parked[:1]


def test_two_empty_tags_are_refused() -> None:
    with pytest.raises(OptionError, match="two empty tags"):
        Played("dense", reasoning_tokens=",")


def test_a_slot_too_small_to_shift_is_refused() -> None:
    """A shift would keep -2 of 2 tokens: the token list grew by half with each token."""
    with pytest.raises(OptionError, match="4 keeps a negative number of tokens"):
        Played("dense", ctx_size=7, parallel=2)
    slots = Played("dense", ctx_size=8, parallel=2).server.slots

    assert [4, 4] == [slot.n_ctx for slot in slots]
