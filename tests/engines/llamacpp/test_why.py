"""The reasons of a miss: each rule that lowers what is usable, with the values it compared."""

import pytest

from cachesim.engines.base import Reply
from cachesim.engines.causes import Cause
from cachesim.engines.ledger import Holdings
from cachesim.units import Count
from tests.engines.llamacpp.play import Play, run

MAY, JUNE, OCTOBER = "llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549"
both = pytest.mark.parametrize("profile", [JUNE, OCTOBER])


def named(name: str) -> Cause:
    return Cause(id=name, sentence="words", about="About.")


def why(reply: Reply) -> list[tuple[str, int, int]]:
    return [(loss.rule, loss.before, loss.after) for loss in reply.losses]


@both
def test_a_whole_prompt_again_reads_its_last_token(profile: str) -> None:
    play = Play(profile)
    play.ask(run(range(100)))
    reply = play.reply(run(range(100)))
    assert (reply.equal, reply.equal_with) == (100, "slot 0")
    assert why(reply) == [("last-token", 100, 99)]


@both
def test_a_kept_half_hides_the_perfect_entry(profile: str) -> None:
    play = Play(profile)
    play.ask(run(range(1000)))
    play.ask(run(range(5000, 5100)))
    play.ask(run(range(240), 7000))
    reply = play.reply(run(range(1000)))
    assert (reply.equal, reply.equal_with) == (1000, "prompt cache entry 0")
    assert why(reply) == [("f-keep", 1000, 240)]
    assert reply.losses[0].detail["slot"] == 0
    assert reply.losses[0].detail["f_keep"] == pytest.approx(240 / 241, abs=1e-6)


@both
def test_an_entry_below_a_quarter_stays_parked(profile: str) -> None:
    play = Play(profile, slot_prompt_similarity=0.0)
    play.ask(run(range(1000)))
    play.ask(run(range(8000, 8100)))
    reply = play.reply(run(range(249)))
    assert why(reply) == [("cache-keep", 249, 0)]
    assert reply.losses[0].detail["below"] == 0.25


@both
def test_an_older_entry_blocks_a_better_one(profile: str) -> None:
    play = Play(profile)
    play.ask(run(range(100), range(5000, 5005)))
    play.ask(run(range(900), range(6000, 6200)))
    play.ask(run(range(8000, 8100)))
    reply = play.reply(run(range(1000)))
    assert why(reply) == [("cache-not-better", 900, 100)]
    detail = reply.losses[0].detail
    assert detail["f_keep"] < detail["best_keep"]
    assert detail["f_sim"] > detail["best_sim"]


def test_making_room_drops_the_needed_entry() -> None:
    play = Play(OCTOBER, cache_ram=1)
    for start in (0, 1000, 2000):
        play.ask(run(range(start, start + 900)))
    assert why(play.reply(run(range(900)))) == [("cache-making-room", 900, 0)]


def test_june_does_not_look_into_the_cache_for_a_pinned_slot() -> None:
    play = Play(JUNE)
    play.ask(run(range(100)))
    play.ask(run(range(1000, 1100)))
    assert why(play.reply(run(range(100)), slot=0)) == [("cache-unseen", 100, 0)]


@both
def test_a_pinned_request_leaves_a_better_slot(profile: str) -> None:
    play = Play(profile, parallel=2, cache_idle_slots=False)
    play.ask(run(range(100)), slot=0)
    reply = play.reply(run(range(100)), slot=1)
    assert (reply.equal_with, why(reply)) == ("slot 0", [("slot-pinned", 100, 0)])


@both
def test_a_slot_that_shares_too_little_is_not_chosen(profile: str) -> None:
    play = Play(profile, parallel=2, cache_idle_slots=False, slot_prompt_similarity=0.5)
    play.ask(run(range(100)))
    reply = play.reply(run(range(50), range(1000, 1050)))
    assert why(reply) == [("slot-similarity", 50, 0)]
    assert reply.losses[0].detail == {"slot": 1, "threshold": 0.5}


@both
def test_a_state_that_cannot_be_cut_goes_back_to_a_checkpoint(profile: str) -> None:
    play = Play(profile, "recurrent")
    play.ask(run(range(100)), 8)
    reply = play.reply(run(range(100), range(500, 510)))
    assert why(reply) == [("memory-depth", 100, 0), ("checkpoint-restored", 0, 96)]
    assert reply.losses[0].detail == {
        "pos_min": 106, "threshold": 100, "n_swa": 0, "checkpoints": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "refused", "numbers"),
    [(JUNE, "pos_min >= pos_min_thold", "95 >= 50"), (OCTOBER, "pos_max > pos_next", "95 > 50")],
)
def test_without_a_usable_checkpoint_everything_is_read_and_each_refusal_is_told(
    profile: str, refused: str, numbers: str
) -> None:
    """The checkpoint fails both tests of b11549, which asks first where a checkpoint ends."""
    play = Play(profile, "recurrent")
    play.ask(run(range(100)))
    reply = play.reply(run(range(50), range(500, 510)))
    assert why(reply) == [("full-reprocessing", 50, 0)]
    assert reply.losses[0].detail["checkpoints"] == [
        {"n_tokens": 96, "pos_min": 95, "pos_max": 95, "refused": refused, "numbers": numbers}
    ]


def test_october_tells_which_checkpoint_ends_beyond() -> None:
    play = Play(OCTOBER, "swa", window=512)
    play.ask(run(range(100)))
    reply = play.reply(run(range(50), range(500, 510)))
    assert [each["refused"] for each in reply.losses[0].detail["checkpoints"]] == [
        "pos_max > pos_next"
    ]


def test_in_may_a_refused_cut_clears_everything() -> None:
    play = Play(MAY, "recurrent")
    play.ask(run(range(10)))
    reply = play.reply(run(range(10)))
    assert why(reply) == [("last-token", 10, 9), ("seq-rm-refused", 9, 0)]


@both
def test_a_request_without_reuse_says_so(profile: str) -> None:
    play = Play(profile)
    play.ask(run(range(100)))
    assert why(play.reply(run(range(100)), cache_prompt=False)) == [("cache-prompt-off", 100, 0)]


@both
def test_a_server_that_reuses_nothing_is_named_and_not_the_request(profile: str) -> None:
    play = Play(profile, cache_prompt=False)
    play.ask(run(range(100)))
    assert why(play.reply(run(range(100)))) == [("server-reuses-nothing", 100, 0)]


def test_a_prompt_to_be_ranked_reuses_nothing_in_october() -> None:
    play = Play(OCTOBER, embedding=True, pooling="rank")
    ranked = {"endpoint": "rerank"}
    play.ask(run(range(100)), 0, options=ranked)
    reply = play.reply(run(range(100)), 0, options=ranked)
    assert why(reply) == [("embedding-reuses-nothing", 100, 0)]


@both
def test_a_moved_chunk_wins_tokens_back(profile: str) -> None:
    play = Play(profile, cache_reuse=16)
    play.ask(run(range(100)))
    reply = play.reply(run(range(30), range(50, 100), range(300, 305)))
    assert why(reply) == [("chunk-reuse", 30, 80)]


def test_a_race_ends_with_the_losses_of_those_that_were_best() -> None:
    one, other, third = object(), object(), object()
    holdings = Holdings(
        {one: ("one", Count(5)), other: ("other", Count(9)), third: ("third", Count(2))}
    )
    assert (holdings.ledger.equal, holdings.ledger.equal_with) == (9, "other")
    holdings.rule_out(third, named("never the best"))
    holdings.rule_out(other, named("too old"))
    holdings.settle_on(one, named("unseen"))
    assert [(loss.rule, loss.before, loss.after) for loss in holdings.ledger.losses] == [
        ("too old", 9, 5)
    ]
