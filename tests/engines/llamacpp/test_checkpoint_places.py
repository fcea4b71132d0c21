"""Where checkpoints are made, position by position, and how full lists shrink."""

from typing import Any

import pytest

from tests.engines.llamacpp.play import Play, run

B9093, JUNE, OCTOBER = "llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549"

Worked = tuple[int, list[int], list[int], list[int], "list[int] | None"]

WORKED: list[Worked] = [
    # prompt, user starts, October, June, May
    (4, [], [], [], []),
    (5, [], [1], [1], []),
    (10, [], [6], [6], []),
    (70, [], [66], [66], [66]),
    (516, [], [512], [512], [512]),
    (517, [], [1, 513], [1, 513], [1, 513]),
    (600, [], [84, 596], [84, 596], [84, 596]),
    (3000, [], [2484, 2996], [2484, 2996], [2484, 2996]),
    (10, [3], [3, 6], [3], None),
    (70, [5, 40], [5, 40, 66], [40], None),
    (70, [67], [66, 67], [67], None),
    (600, [20, 300, 500], [20, 84, 500, 596], [500], None),
    (600, [598], [84, 596, 598], [598], None),
    (3000, [50, 1000, 2900], [50, 2484, 2900, 2996], [2900], None),
    (3000, [50, 1000, 2200], [50, 2200, 2484, 2996], [2200, 2484, 2996], None),
]


def places(profile: str, n: int, users: list[int], options: dict[str, int]) -> list[int]:
    play = Play(profile, "hybrid", ctx_size=4096, **options)
    fields: dict[str, Any] = {}
    if users:
        spans = [{"role": "user", "start": at} for at in users]
        fields = {"options": {"message_spans": spans}}
    play.ask(run(range(n)), **fields)
    for tokens, pos_min, pos_max in play.ranges():
        assert (pos_min, pos_max) == (tokens - 1, tokens - 1)
    return play.checkpoints()


@pytest.mark.parametrize("worked", WORKED, ids=lambda worked: f"{worked[0]}-{worked[1]}")
def test_worked_positions_of_a_fresh_slot(worked: Worked) -> None:
    n, users, october, june, may = worked
    assert places(OCTOBER, n, users, {}) == october
    assert places(JUNE, n, users, {}) == june
    if may is not None:
        assert places(B9093, n, users, {}) == may


def test_worked_positions_with_a_smaller_step() -> None:
    users, step = [50, 400, 1000, 2200], {"checkpoint_min_step": 300}
    assert places(OCTOBER, 3000, users, step) == [50, 400, 1000, 2200, 2484, 2996]
    assert places(JUNE, 3000, users, step) == [2200, 2996]


@pytest.mark.parametrize(("profile", "held"), [(OCTOBER, [32, 96]), (JUNE, [32])])
def test_junes_spacing_suppresses_the_second_of_two_close_end_positions(
    profile: str, held: list[int]
) -> None:
    assert places(profile, 100, [], {"ubatch_size": 64}) == held


def test_in_may_every_so_many_tokens_within_a_prompt() -> None:
    held = places(B9093, 3000, [], {"checkpoint_every_nt": 500, "batch_size": 512})
    assert held == [512, 1024, 1536, 2048, 2488, 2996]


def test_full_attention_makes_no_checkpoints() -> None:
    play = Play(OCTOBER, "dense")
    play.ask(run(range(600)))
    assert play.checkpoints() == []


def test_zero_checkpoints_leave_the_batches_uncut() -> None:
    play = Play(OCTOBER, "hybrid", ctx_checkpoints=0)
    play.ask(run(range(600)))
    assert play.checkpoints() == []
    decoded = [event for event in play.engine.events if event.name() == "batch-decoded"]
    assert len(decoded) == 1


def test_delimiters_are_scanned_and_the_first_in_the_list_wins() -> None:
    play = Play(OCTOBER, "hybrid")
    prompt = run(range(300, 320), [7, 8], range(400, 420), [7, 9], range(440, 460))
    delimiters = [
        {"role": "user", "delimiter": [7, 8]},
        {"role": "assistant", "delimiter": [7]},
        {"role": "user", "delimiter": [7, 9]},
    ]
    play.ask(prompt, options={"message_delimiters": delimiters})
    assert play.checkpoints() == [20, 60]


def test_an_empty_delimiter_marks_every_position() -> None:
    play = Play(OCTOBER, "hybrid", checkpoint_min_step=0)
    delimiters = [{"role": "user", "delimiter": []}]
    play.ask(run(range(10)), options={"message_delimiters": delimiters})
    assert play.checkpoints() == list(range(1, 10))


def test_a_delimiter_may_be_text() -> None:
    play = Play(OCTOBER, "hybrid")
    prompt = run(range(300, 320), [259, 262], range(400, 420))
    delimiters = [{"role": "user", "delimiter": "<|im_start|>user"}]
    play.ask(prompt, options={"message_delimiters": delimiters})
    assert play.checkpoints() == [20, 38]


def test_october_cuts_by_the_list_before_the_current_batch_is_in_it() -> None:
    """At 1000 a batch ends, for the list was empty when it was filled; nothing is stored there."""
    play = Play(OCTOBER, "hybrid", ctx_size=4096)
    spans = [{"role": "user", "start": at} for at in (50, 1000, 2900)]
    play.ask(run(range(3000)), options={"message_spans": spans})
    sizes = [e.as_dict()["n_tokens"] for e in play.engine.events if e.name() == "batch-decoded"]
    assert sizes[:5] == [50, 950, 1484, 416, 96]
    assert 1000 not in play.checkpoints()


def test_a_full_list_may_drop_the_oldest_although_the_new_one_only_replaces() -> None:
    play = Play(OCTOBER, "hybrid", ctx_checkpoints=2, checkpoint_min_step=0)
    play.ask(run(range(600)))
    assert play.checkpoints() == [84, 596]
    play.ask(run(range(600)))
    dropped = [e.as_dict() for e in play.engine.events if e.name() == "checkpoint-dropped"]
    assert [(each["reason"], each["n_tokens"]) for each in dropped] == [
        ("full", 84),
        ("superseded", 596),
    ]
    assert play.checkpoints() == [596]


@pytest.mark.parametrize("profile", [JUNE, OCTOBER])
def test_25592_drops_the_checkpoint_closest_behind_another(profile: str) -> None:
    play = Play(profile + "+25592", "hybrid", ctx_checkpoints=3)
    prompt = run(range(600))
    for more in ([], range(700, 710), range(900, 1400)):
        prompt = run(prompt, list(more))
        play.ask(prompt)
    assert 84 in play.checkpoints()


def test_24035_in_its_later_form_saves_the_state_at_the_common_prefix() -> None:
    play = Play(OCTOBER + "+24035-lcp", "hybrid")
    play.ask(run(range(600)))
    assert play.ask(run(range(300), range(700, 900))) == (84, 416)
    assert 300 in play.checkpoints()
    assert play.ask(run(range(300), range(950, 1000))) == (300, 50)
