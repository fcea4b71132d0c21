"""Slots saved to files, restored and erased; requests cancelled; several in the queue."""

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.errors import OptionError
from cachesim.model.presets import preset
from cachesim.units import as_tokens
from tests.engines.llamacpp.play import Play, run

MAY, JUNE, OCTOBER = "llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549"
every = pytest.mark.parametrize("profile", [MAY, JUNE, OCTOBER])


@every
@pytest.mark.parametrize("model", ["dense", "hybrid", "recurrent"])
def test_a_restored_slot_goes_on_where_it_was_saved(profile: str, model: str) -> None:
    play = Play(profile, model, cache_ram=0)
    play.ask(run(range(100)), 8)
    whole = run(range(100), play.G)
    play.act("slot-save", 0, "a")
    play.ask(run(range(1000, 1040)))
    play.act("slot-restore", 0, "a")
    assert play.tokens() == 107
    assert play.ask(run(whole, range(500, 510))) == (107, 10)


@pytest.mark.parametrize(("profile", "cached"), [(MAY, 107), (JUNE, 35), (OCTOBER, 95)])
def test_a_restored_window_is_one_position_too_short(profile: str, cached: int) -> None:
    """A blob holds the window of its last position: pos_min 75 is not below 107 - 32.

    June then finds a checkpoint of the prompt in between, October one from the file.
    """
    play = Play(profile, "swa", cache_ram=0)
    play.ask(run(range(100)), 8)
    whole = run(range(100), play.G)
    play.act("slot-save", 0, "a")
    play.ask(run(range(1000, 1040)))
    play.act("slot-restore", 0, "a")
    assert play.ask(run(whole, range(500, 510)))[0] == cached


@every
def test_a_file_that_does_not_exist_is_an_error_of_the_request(profile: str) -> None:
    play = Play(profile, "dense")
    play.ask(run(range(50)))
    reply = play.act("slot-restore", 0, "nowhere")
    assert reply.error == "invalid_request_error"
    assert "nowhere" in reply.message


@pytest.mark.parametrize("cut", [0, 3, 10, 200, -1])
def test_a_damaged_file_is_refused(cut: int) -> None:
    play = Play(OCTOBER, "dense")
    play.ask(run(range(50)))
    play.act("slot-save", 0, "a")
    data = play.store.files["a"]
    play.store.put("a", data[:cut] if cut >= 0 else data[:-1] + bytes([data[-1] ^ 1]))
    reply = play.act("slot-restore", 0, "a")
    assert reply.error == "invalid_request_error"
    assert play.tokens() == 0


@every
@pytest.mark.parametrize("model", ["dense", "hybrid"])
@pytest.mark.parametrize("file", ["missing", "damaged"])
def test_a_refused_file_takes_what_the_slot_held(profile: str, model: str, file: str) -> None:
    """As the real servers of b8929, b9093, b9538, b10809 and b11549 answer: cached 0 of 50."""
    play = Play(profile, model)
    play.ask(run(range(100, 160)), 2)
    play.act("slot-save", 0, "damaged")
    play.ask(run(range(200, 250)), 2)
    play.store.put("damaged", b"x" + play.store.files["damaged"][1:])

    assert play.act("slot-restore", 0, file).error == "invalid_request_error"
    assert play.ask(run(range(200, 250)), 2) == (0, 50)


def test_a_file_of_another_model_is_refused() -> None:
    play, other = Play(OCTOBER, "dense"), Play(OCTOBER, "hybrid")
    play.ask(run(range(50)))
    play.act("slot-save", 0, "a")
    other.store.put("a", play.store.files["a"])
    assert other.act("slot-restore", 0, "a").error == "invalid_request_error"
    assert other.tokens() == 0


@every
def test_an_erased_slot_is_empty(profile: str) -> None:
    play = Play(profile, "hybrid")
    play.ask(run(range(100)))
    play.act("slot-erase", 0)
    assert play.tokens() == 0
    assert play.checkpoints() == ([] if profile == OCTOBER else [96])
    assert play.ask(run(range(100))) == (0, 100)


@every
def test_an_action_on_a_busy_slot_waits_for_its_end(profile: str) -> None:
    play = Play(profile, "dense")
    play.engine.submit(Request(prompt=as_tokens(range(20)), predict=3))
    play.engine.step()
    ticket = play.engine.slot_erase(0)
    play.engine.step()
    assert play.engine.reply(ticket) is None
    play.engine.run()
    assert play.engine.reply(ticket) is not None
    assert play.tokens() == 0


def test_saving_needs_a_place_for_bytes() -> None:
    engine = Engine.create(OCTOBER, model=preset("dense"), options={}, arithmetic="ring")
    engine.slot_save(0, "a")  # type: ignore[attr-defined]
    with pytest.raises(OptionError, match="store"):
        engine.run()


@every
def test_a_cancelled_request_leaves_what_was_decoded(profile: str) -> None:
    play = Play(profile, "dense")
    ticket = play.engine.submit(Request(prompt=as_tokens(range(30)), predict=50))
    for _ in range(5):
        play.engine.step()
    play.engine.cancel(ticket)
    play.engine.run()
    play.engine.check_integrity()
    reply = play.engine.reply(ticket)
    assert reply is not None
    assert (reply.error, reply.cached, len(reply.generated)) == ("cancelled", 0, 5)
    assert play.tokens() == 34
    assert play.ask(run(range(30), range(300, 310))) == (30, 10)


@every
def test_a_request_cancelled_before_its_turn_never_ran(profile: str) -> None:
    play = Play(profile, "dense")
    first = play.engine.submit(Request(prompt=as_tokens(range(30)), predict=3))
    second = play.engine.submit(Request(prompt=as_tokens(range(40)), predict=3))
    play.engine.step()
    play.engine.cancel(second)
    play.engine.run()
    replies = [play.engine.reply(first), play.engine.reply(second)]
    assert [reply.error if reply else "" for reply in replies] == [None, "cancelled"]
    assert play.tokens() == 32


@every
def test_deferred_requests_are_taken_oldest_first_and_pinned_ones_by_their_slot(
    profile: str,
) -> None:
    play = Play(profile, "dense", parallel=2, cache_idle_slots=False)
    engine = play.engine
    long, short = as_tokens(range(30)), as_tokens(range(1000, 1030))
    busy = [
        engine.submit(Request(prompt=long, predict=9, slot=0)),
        engine.submit(Request(prompt=short, predict=3, slot=1)),
    ]
    pinned = engine.submit(Request(prompt=as_tokens(range(2000, 2010)), predict=1, slot=0))
    free = engine.submit(Request(prompt=as_tokens(range(3000, 3010)), predict=1))
    engine.run()
    slots = [reply.slot for t in (*busy, pinned, free) if (reply := engine.reply(t)) is not None]
    assert slots == [0, 1, 0, 1]


@every
def test_requests_in_the_queue_get_their_slots_before_any_is_decoded(profile: str) -> None:
    """Two prompts share batches, the lower id first."""
    play = Play(profile, "hybrid", parallel=2, batch_size=256, ubatch_size=64)
    for prompt in (range(300), range(1000, 1200)):
        play.engine.submit(Request(prompt=as_tokens(prompt), predict=4))
    play.engine.run()
    decoded = [e.as_dict() for e in play.engine.events if e.name() == "batch-decoded"]
    assert [each["n_tokens"] for each in decoded[:4]] == [256, 172, 68, 5]
    expected = {
        OCTOBER: ([132, 196], [232, 296]), JUNE: ([132], [232]), MAY: ([132], [232]),
    }  # fmt: skip
    assert (play.checkpoints(0), play.checkpoints(1)) == expected[profile]


@pytest.mark.parametrize("arithmetic", ["float", "ring"])
def test_what_a_drafter_carried_keeps_its_type_in_a_file(arithmetic: str) -> None:
    play = Play(OCTOBER, "hybrid-mtp", arithmetic=arithmetic, spec_type="draft-mtp", cache_ram=0)
    play.ask(run(range(100)), 8)
    before = list(play.engine._server.slots[0].prompt.checkpoints)
    play.act("slot-save", 0, "a")
    play.ask(run(range(1000, 1040)), 4)
    play.act("slot-restore", 0, "a")
    after = play.engine._server.slots[0].prompt.checkpoints

    assert [each.drafter.dtype for each in before if each.drafter is not None]
    for old, new in zip(before, after, strict=True):
        assert old.drafter is not None
        assert new.drafter is not None
        assert old.drafter.dtype == new.drafter.dtype
        assert old.drafter.tolist() == new.drafter.tolist()
    assert play.ask(run(range(90), range(500, 520)), 4)[0] is not None


@pytest.mark.parametrize(
    ("profile", "answered"),
    [
        ("llama.cpp@b9093", (None, None, "server_error")),
        ("llama.cpp@b9538", (None, None, "server_error")),
        (OCTOBER, (12, 113, None)),
    ],
)
def test_an_empty_file_leaves_cells_that_only_october_frees(
    profile: str, answered: tuple[int | None, int | None, str | None]
) -> None:
    """As on the three wheels; found by random workloads with empty prompts."""
    play = Play(profile, "dense", parallel=3, ctx_size=256, kv_unified=True)
    play.act("slot-save", 0, "empty")
    play.ask(run(range(14)), slot=2)
    play.ask(run(range(9), range(300, 450)), slot=0)
    play.act("slot-restore", 0, "empty")
    assert play.tokens(0) == 0

    reply = play.reply(run(range(12), range(500, 613)))
    assert answered == (reply.cached, reply.processed, reply.error)
