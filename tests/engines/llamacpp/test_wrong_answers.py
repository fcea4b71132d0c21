"""Answers from cache that differ from a cold run: the traps that change what a user reads.

Float arithmetic; the logits of every generated token are compared with the oracle's.
"""

import pytest

from cachesim.engines.base import Reply
from cachesim.verify.oracle import cold_logits
from tests.engines.llamacpp.play import Play, run

JUNE, OCTOBER = "llama.cpp@b9538", "llama.cpp@b11549"
SMALL = {"batch_size": 256, "ubatch_size": 64}
DIVERGED = 1e-3
"""Far beyond rounding, which is 0 here: equal states give equal bits."""


def difference(play: Play, reply: Reply) -> float:
    """How far the reply's logits lie from a cold run over the same tokens."""
    first = len(reply.prompt) - 1
    tokens = reply.prompt + reply.generated[:-1]
    rows = range(first, first + len(reply.generated))
    cold = cold_logits(play.engine.network, tokens, rows=rows)
    return play.engine.network.difference(reply.logits, cold)


def three_requests(profile: str, model: str) -> tuple[Play, Reply]:
    """5 tokens; 40 unrelated ones; 20 of those and 20 new. One slot, else default flags."""
    play = Play(profile, model, arithmetic="float", drop=("ctx_size", "cache_ram"))
    play.reply(run(range(1000, 1005)), 4)
    play.reply(run(range(2000, 2040)), 4)
    return play, play.reply(run(range(2000, 2020), range(3000, 3020)), 4)


@pytest.mark.parametrize("profile", [JUNE, OCTOBER])
@pytest.mark.parametrize("model", ["recurrent", "hybrid", "hybrid-delta", "swa"])
def test_a_checkpoint_of_one_token_belongs_to_the_first_of_three_requests(
    profile: str, model: str
) -> None:
    play, reply = three_requests(profile, model)
    assert reply.cached == 1
    assert difference(play, reply) > DIVERGED


@pytest.mark.parametrize("profile", [JUNE, OCTOBER])
def test_full_attention_answers_the_third_request_right(profile: str) -> None:
    play, reply = three_requests(profile, "dense")
    assert reply.cached == 20
    assert difference(play, reply) == 0.0


@pytest.mark.parametrize(
    ("profile", "model"),
    [(JUNE, model) for model in ("recurrent", "hybrid", "hybrid-delta")]
    + [(OCTOBER, model) for model in ("recurrent", "hybrid", "hybrid-delta", "swa")]
    + [(JUNE + "+24411", "swa")],
)
def test_erasing_at_the_next_position_too_mends_the_third_request(profile: str, model: str) -> None:
    play, reply = three_requests(profile + "+erase-equal", model)
    assert difference(play, reply) == 0.0


def test_a_window_in_june_needs_24411_as_well() -> None:
    """Erasing mends the state of one token; one that ends beyond the prefix is another hole."""
    play, reply = three_requests(JUNE + "+erase-equal", "swa")
    assert reply.cached == 20
    assert difference(play, reply) > DIVERGED


def stale_neighbour(profile: str, model: str) -> tuple[Play, Reply]:
    """A checkpoint one token beyond the common prefix survives, and is restored later."""
    play = Play(profile, model, arithmetic="float", ubatch_size=64)
    play.reply(run(range(100)))
    play.reply(run(range(100), range(200, 205)))
    play.reply(run(range(100), range(300, 500)))
    return play, play.reply(run(range(100), range(300, 350), range(5000, 5010)), 4)


@pytest.mark.parametrize("model", ["recurrent", "hybrid"])
def test_october_answers_from_a_state_that_saw_another_token(model: str) -> None:
    play, reply = stale_neighbour(OCTOBER, model)
    assert reply.cached == 101
    assert difference(play, reply) > DIVERGED


@pytest.mark.parametrize("patch", ["24035", "24035-lcp", "25592", "erase-equal"])
def test_is_mended_by_erasing_what_reaches_beyond_the_prefix(patch: str) -> None:
    play, reply = stale_neighbour(f"{OCTOBER}+{patch}", "hybrid")
    assert reply.cached == 100
    assert difference(play, reply) == 0.0


def test_does_not_happen_in_june_which_makes_fewer_checkpoints() -> None:
    play, reply = stale_neighbour(JUNE, "recurrent")
    assert reply.cached == 32
    assert difference(play, reply) == 0.0


def beyond_the_prefix(profile: str) -> tuple[Play, Reply]:
    """A window checkpoint that ends after the divergence leaves the window empty."""
    play = Play(profile, "swa", window=32, arithmetic="float", **SMALL)
    play.reply(run(range(150)))
    play.reply(run(range(100), range(600, 700)))
    return play, play.reply(run(range(20), range(800, 850)), 4)


def test_june_answers_with_an_empty_window() -> None:
    play, reply = beyond_the_prefix(JUNE)
    assert reply.cached == 20
    assert difference(play, reply) > DIVERGED


@pytest.mark.parametrize("profile", [JUNE + "+24411", OCTOBER])
def test_is_mended_by_24411(profile: str) -> None:
    play, reply = beyond_the_prefix(profile)
    assert reply.cached == 0
    assert difference(play, reply) == 0.0


def one_beyond(profile: str, model: str = "swa") -> tuple[Play, Reply]:
    """A parked conversation comes back, and a checkpoint that ends where it is to go on."""
    play = Play(profile, model, arithmetic="float")
    play.reply(run(range(105)))
    play.reply(run(range(600, 640)))
    return play, play.reply(run(range(100)), 4)


@pytest.mark.parametrize("profile", [JUNE, JUNE + "+24411", OCTOBER])
def test_a_window_is_one_key_short_where_the_last_token_is_read_again(profile: str) -> None:
    """Position 99 sees from 68 on, and the checkpoint of 101 tokens holds 69 to 100."""
    play, reply = one_beyond(profile)
    assert reply.cached == 99
    assert difference(play, reply) > 0.0


@pytest.mark.parametrize("release", [JUNE, OCTOBER])
def test_no_checkpoint_ends_behind_a_token_that_is_read_again(release: str) -> None:
    play, reply = one_beyond(release + "+search-read-again")
    assert reply.cached == 0
    assert difference(play, reply) == 0.0


def test_a_checkpoint_that_ends_where_new_tokens_go_on_is_still_restored() -> None:
    play = Play(OCTOBER + "+search-read-again", "swa", arithmetic="float")
    play.reply(run(range(105)))
    play.reply(run(range(600, 640)))
    reply = play.reply(run(range(100), range(700, 720)), 4)
    assert reply.cached == 100
    assert difference(play, reply) == 0.0


def restored_slot(profile: str) -> tuple[Play, Reply]:
    """A slot restored from a file still has the checkpoints of what it held before."""
    play = Play(profile, "hybrid", arithmetic="float", cache_ram=0, **SMALL)
    play.reply(run(range(100)), 8)
    play.act("slot-save", 0, "A")
    play.reply(run(range(1000, 1100)), 8)
    play.act("slot-restore", 0, "A")
    return play, play.reply(run(range(100)), 8)


def test_june_answers_from_another_prompts_checkpoint() -> None:
    play, reply = restored_slot(JUNE)
    assert reply.cached == 32
    assert difference(play, reply) > DIVERGED


def test_october_restores_the_checkpoints_of_the_file() -> None:
    """#26004: the list is emptied, then filled with what was saved (a wheel answers 96)."""
    play, reply = restored_slot(OCTOBER)
    assert reply.cached == 96
    assert difference(play, reply) == 0.0


def test_24891_keeps_checkpoints_that_hold_other_tokens() -> None:
    """Erasing only what lies beyond the whole prompt leaves states of the abandoned branch."""
    play = Play(OCTOBER + "+24891", "recurrent", arithmetic="float")
    play.reply(run(range(100)))
    play.reply(run(range(50), range(200, 300)))
    reply = play.reply(run(range(50), range(200, 300), range(400, 405)), 4)
    assert difference(play, reply) == 0.0
    reply = play.reply(run(range(50), range(200, 260), range(500, 510)), 4)
    assert reply.cached == 96
    assert difference(play, reply) > DIVERGED


@pytest.mark.parametrize("model", ["dense", "hybrid"])
def test_a_context_shift_is_an_approximation_and_says_so(model: str) -> None:
    play = Play(OCTOBER, model, arithmetic="float", ctx_size=256, context_shift=True)
    reply = play.reply(run(range(200)), 80)
    assert reply.truncated
    assert reply.approximated == "context-shift"
    assert difference(play, reply) > DIVERGED


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("llama.cpp@b9873", (32, "right")),
        ("llama.cpp@b10068", (31, "wrong")),
        (OCTOBER + "+erase-equal+search-read-again", (31, "wrong")),
        (OCTOBER + "+resume-behind", (33, "right")),
    ],
)
def test_a_window_loses_a_key_at_each_trip(profile: str, expected: tuple[int, str]) -> None:
    """A checkpoint that is saved where another one was resumed begins where that one did."""
    play = Play(profile, "swa", window=8, arithmetic="float", drop=("ctx_size", "cache_ram"))
    whole, other = run(range(1000, 1037)), run(range(2000, 2040))
    for prompt in (whole, other, whole[:34], other):
        play.reply(prompt)
    reply = play.reply(whole, 4)
    answer = "right" if difference(play, reply) == 0.0 else "wrong"
    assert expected == (reply.cached, answer)


def test_a_moved_chunk_is_an_approximation_and_says_so() -> None:
    play = Play(OCTOBER, "dense", arithmetic="float", cache_reuse=16)
    play.reply(run(range(100)))
    reply = play.reply(run(range(30), range(50, 100), range(300, 305)), 4)
    assert (reply.cached, reply.approximated) == (80, "chunk-reuse")
    assert difference(play, reply) > DIVERGED
    again = play.reply(run(range(30), range(50, 60), range(600, 605)), 4)
    assert again.approximated == "chunk-reuse"
    clean = play.reply(run(range(30), range(700, 705)), 4)
    assert clean.approximated is None
    assert difference(play, clean) == 0.0


def test_08_june_restores_a_state_from_before_a_context_shift() -> None:
    """The checkpoint list outlives the shift: after it, 132 tokens are other tokens."""
    options = {"ctx_size": 256, "context_shift": True, "ubatch_size": 64}
    play = Play(JUNE, "recurrent", arithmetic="float", **options)
    play.reply(run(range(300, 500)), 100)
    assert play.checkpoints() == [132]
    held = play.snapshot["slots"][0]["tokens"]
    reply = play.reply(run(held[:140], range(600, 610)), 4)
    assert (reply.cached, reply.approximated) == (132, None)
    assert difference(play, reply) > DIVERGED
