"""Worked examples on sliding windows, with the counts that follow from the source."""

import pytest

from tests.engines.llamacpp.play import Play, run

B9093, OLD, NEW = "llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549"
SMALL = {"batch_size": 256, "ubatch_size": 64}
both = pytest.mark.parametrize("profile", [OLD, NEW])


@pytest.mark.parametrize(
    ("profile", "second", "third", "fourth"),
    [
        (NEW, ((95, 22), [96, 95, 113]), ((94, 6), [95, 94, 96]), ((0, 100), [96])),
        (OLD, ((95, 22), [96]), ((95, 5), [96]), ((50, 50), [50])),
    ],
)
def test_prompts_shorter_than_the_window(
    profile: str, second: tuple[tuple[int, int], list[int]],
    third: tuple[tuple[int, int], list[int]], fourth: tuple[tuple[int, int], list[int]],
) -> None:  # fmt: skip
    play = Play(profile, "swa", window=512)
    assert play.ask(run(range(100)), 8) == (0, 100)
    assert (play.tokens(), play.ranges()) == (107, [(96, 0, 95)])
    got = play.ask(run(range(100), play.G, range(200, 210)), 8)
    assert (got, play.checkpoints()) == second
    assert all(pos_min == 0 for _, pos_min, _ in play.ranges())
    assert (play.ask(run(range(100))), play.checkpoints()) == third
    assert (play.ask(run(range(50), range(300, 350))), play.checkpoints()) == fourth


def test_before_june_an_extension_skips_the_depth_test() -> None:
    play = Play(B9093, "swa", window=512)
    play.ask(run(range(100)), 8)
    assert play.ask(run(range(100), play.G, range(200, 210)), 8) == (107, 10)


def test_24411_refuses_checkpoints_beyond_the_prefix_in_june() -> None:
    play = Play(OLD + "+24411", "swa", window=512)
    play.ask(run(range(100)), 8)
    play.ask(run(range(100), play.G, range(200, 210)), 8)
    play.ask(run(range(100)))
    assert play.ask(run(range(50), range(300, 350))) == (0, 100)


@pytest.mark.parametrize(("profile", "third"), [(NEW, [10, 9, 20]), (OLD, [10])])
def test_a_prompt_of_four_tokens_leaves_no_checkpoint(profile: str, third: list[int]) -> None:
    play = Play(profile, "swa", window=512)
    assert (play.ask(run(range(4))), play.checkpoints()) == ((0, 4), [])
    assert (play.ask(run(range(4), range(10, 20))), play.checkpoints()) == ((0, 14), [10])
    assert (play.ask(run(range(4), range(10, 30))), play.checkpoints()) == ((9, 15), third)


@pytest.mark.parametrize(
    ("profile", "first", "second", "parked", "third"),
    [
        (
            NEW, [(432, 176, 431), (496, 240, 495)], [(232, 0, 231), (296, 40, 295)], [(500, 2)],
            [(300, 44, 299), (306, 50, 305)],
        ),
        (OLD, [(432, 176, 431)], [(232, 0, 231)], [(500, 1)], []),
    ],
)  # fmt: skip
def test_window_cells_are_reclaimed_in_steps(
    profile: str, first: list[tuple[int, int, int]], second: list[tuple[int, int, int]],
    parked: list[tuple[int, int]], third: list[tuple[int, int, int]],
) -> None:  # fmt: skip
    play = Play(profile, "swa", window=32, **SMALL)
    assert play.ask(run(range(500))) == (0, 500)
    assert play.ranges() == first
    branch = run(range(200), range(600, 700))
    assert play.ask(branch) == (0, 300)
    assert (play.ranges(), play.ram) == (second, parked)
    assert play.ask(run(branch, range(700, 710))) == (300, 10)
    assert play.ranges() == second + third


@pytest.mark.parametrize(
    ("profile", "first", "second", "third", "last"),
    [
        (
            NEW, [(82, 0, 81), (146, 0, 145)], [82, 132, 196], (0, 70),
            [(2, 0, 1), (66, 0, 65)],
        ),
        (OLD, [(82, 0, 81)], [82], (20, 50), [(66, 20, 65)]),
    ],
)  # fmt: skip
def test_a_checkpoint_beyond_the_prefix_empties_the_window(
    profile: str, first: list[tuple[int, int, int]], second: list[int], third: tuple[int, int],
    last: list[tuple[int, int, int]],
) -> None:  # fmt: skip
    play = Play(profile, "swa", window=32, **SMALL)
    play.ask(run(range(150)))
    assert play.ranges() == first
    assert play.ask(run(range(100), range(600, 700))) == (100, 100)
    assert play.checkpoints() == second
    assert play.ask(run(range(20), range(800, 850))) == third
    assert play.ranges() == last


def test_before_june_the_blob_has_all_cells() -> None:
    play = Play(B9093, "swa", window=32, **SMALL)
    play.ask(run(range(150)))
    play.ask(run(range(100), range(600, 700)))
    assert play.ask(run(range(20), range(800, 850))) == (20, 50)


@both
def test_swa_full_makes_no_checkpoints(profile: str) -> None:
    play = Play(profile, "swa", window=32, swa_full=True, **SMALL)
    assert (play.ask(run(range(500))), play.checkpoints()) == ((0, 500), [])
    assert play.ask(run(range(200), range(600, 700))) == (200, 100)


@both
def test_a_trip_through_the_prompt_cache_shrinks_a_full_window(profile: str) -> None:
    play = Play(profile, "swa", window=32, swa_full=True, **SMALL)
    play.ask(run(range(500)))
    play.ask(run(range(1000, 1100)))
    assert play.ask(run(range(200), range(600, 700))) == (0, 300)


@pytest.mark.parametrize(
    ("profile", "parked", "third", "fourth"),
    [
        (NEW, [(150, 2)], [(82, 50, 81), (146, 50, 145)], [82, 100, 146]),
        (OLD, [(150, 1)], [(82, 0, 81)], [82]),
    ],
)
def test_a_trip_through_the_prompt_cache(
    profile: str, parked: list[tuple[int, int]], third: list[tuple[int, int, int]],
    fourth: list[int],
) -> None:  # fmt: skip
    play = Play(profile, "swa", window=32, **SMALL)
    play.ask(run(range(150)))
    play.ask(run(range(1000, 1100)))
    assert play.ram == parked
    assert play.ask(run(range(100), range(600, 650))) == (81, 69)
    assert play.ranges() == third
    assert play.ask(run(range(150))) == (100, 50)
    assert play.checkpoints() == fourth
