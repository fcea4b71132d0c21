"""Worked examples on recurrent and hybrid models, with the counts that follow from the source."""

import pytest

from tests.engines.llamacpp.play import Play, run

B9093, OLD, NEW = "llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549"
both = pytest.mark.parametrize("profile", [OLD, NEW])
kinds = pytest.mark.parametrize("model", ["recurrent", "hybrid", "hybrid-delta"])
SMALL = {"batch_size": 256, "ubatch_size": 64}

AGAIN = [
    (4, (0, 4)), (5, (1, 4)), (10, (6, 4)), (70, (66, 4)), (516, (512, 4)), (517, (513, 4)),
    (600, (596, 4)), (3000, (2996, 4)),
]  # fmt: skip


@both
@kinds
@pytest.mark.parametrize(("n", "again"), AGAIN)
def test_the_same_prompt_again(profile: str, model: str, n: int, again: tuple[int, int]) -> None:
    play = Play(profile, model, ctx_size=4096)
    assert play.ask(run(range(n))) == (0, n)
    held = play.checkpoints()
    assert play.ask(run(range(n))) == again
    assert play.checkpoints() == held


@kinds
@pytest.mark.parametrize("n", [10, 70, 600])
def test_before_june_the_cut_fails_and_everything_is_read_again(model: str, n: int) -> None:
    play = Play(B9093, model)
    play.ask(run(range(n)))
    assert play.ask(run(range(n))) == (0, n)


@pytest.mark.parametrize(
    ("profile", "second", "third"),
    [
        (NEW, [84, 596, 607, 703], ((607, 100), [84, 596, 607, 703])),
        (OLD, [84, 596], ((596, 111), [84, 596])),
    ],
)
def test_a_conversation(
    profile: str, second: list[int], third: tuple[tuple[int, int], list[int]]
) -> None:
    play = Play(profile, "hybrid")
    assert play.ask(run(range(600)), 8) == (0, 600)
    first = play.G
    assert (play.tokens(), play.checkpoints()) == (607, [84, 596])
    assert play.ask(run(range(600), first, range(700, 800)), 8) == (607, 100)
    assert (play.tokens(), play.checkpoints()) == (714, second)
    edited = run(range(600), first, range(700, 750), range(900, 950))
    assert (play.ask(edited, 8), play.checkpoints()) == third
    assert play.ask(run(range(550), range(950, 1000))) == (84, 516)
    assert play.checkpoints() == [84, 596]
    assert play.ask(run(range(60))) == (0, 60)
    assert (play.checkpoints(), play.ram) == ([56], [(600, 2)])


@pytest.mark.parametrize(
    ("profile", "second", "third"), [(NEW, [84, 596, 646], [84, 596, 624]), (OLD, *[[84, 596]] * 2)]
)
def test_reasoning_is_stripped(profile: str, second: list[int], third: list[int]) -> None:
    play = Play(profile, "hybrid")
    play.ask(run(range(600)), 30)
    assert play.tokens() == 629
    assert play.ask(run(range(600), range(800, 850))) == (596, 54)
    assert play.checkpoints() == second
    assert play.ask(run(range(598), range(820, 850))) == (596, 32)
    assert play.checkpoints() == third


@both
def test_the_prompt_cache_keeps_checkpoints(profile: str) -> None:
    play = Play(profile, "hybrid")
    play.ask(run(range(600)))
    play.ask(run(range(1000, 1100)))
    assert (play.checkpoints(), play.ram) == ([96], [(600, 2)])
    assert play.ask(run(range(500), range(1200, 1300))) == (84, 516)
    assert (play.checkpoints(), play.ram) == ([84, 596], [(100, 1)])
    assert play.ask(run(range(1000, 1100))) == (96, 4)
    assert (play.checkpoints(), play.ram) == ([96], [(600, 2)])


@pytest.mark.parametrize(
    ("profile", "held", "again"), [(NEW, [32, 96], (96, 4)), (OLD, [32], (32, 68))]
)
def test_junes_spacing_hides_the_last_checkpoint(
    profile: str, held: list[int], again: tuple[int, int]
) -> None:
    play = Play(profile, "hybrid", **SMALL)
    assert play.ask(run(range(100))) == (0, 100)
    assert play.checkpoints() == held
    assert play.ask(run(range(100))) == again
    assert play.ask(run(range(100))) == again


@pytest.mark.parametrize(
    ("profile", "first", "second", "third", "fourth"),
    [
        (NEW, [64, 96], [64, 96, 104, 120], ((96, 4), [64, 96]), [64, 66, 98]),
        (OLD, [64], [64], ((64, 36), [64]), [64]),
    ],
)
def test_small_batches(
    profile: str, first: list[int], second: list[int],
    third: tuple[tuple[int, int], list[int]], fourth: list[int],
) -> None:  # fmt: skip
    play = Play(profile, "recurrent", batch_size=64, ubatch_size=32)
    assert play.ask(run(range(100)), 5) == (0, 100)
    assert (play.tokens(), play.checkpoints()) == (104, first)
    assert play.ask(run(range(100), play.G, range(200, 220)), 5) == (104, 20)
    assert play.checkpoints() == second
    assert (play.ask(run(range(100))), play.checkpoints()) == third
    assert play.ask(run(range(91), range(400, 411))) == (64, 38)
    assert play.checkpoints() == fourth


@pytest.mark.parametrize(("profile", "third"), [(NEW, [84, 596, 600, 606]), (OLD, [84, 596])])
def test_without_cache_prompt(profile: str, third: list[int]) -> None:
    play = Play(profile, "hybrid")
    play.ask(run(range(600)))
    assert play.ask(run(range(600)), cache_prompt=False) == (0, 600)
    assert play.checkpoints() == [84, 596]
    assert play.ask(run(range(600), range(700, 710))) == (600, 10)
    assert play.checkpoints() == third


def test_two_checkpoints_in_october_keep_the_newest_positions() -> None:
    play = Play(NEW, "hybrid", ctx_checkpoints=2)
    long = run(range(600))
    assert (play.ask(long), play.checkpoints()) == ((0, 600), [84, 596])
    long = run(long, range(700, 800))
    assert (play.ask(long), play.checkpoints()) == ((600, 100), [600, 696])
    long = run(long, range(800, 900))
    assert (play.ask(long), play.checkpoints()) == ((700, 100), [700, 796])
    assert (play.ask(run(range(300))), play.checkpoints()) == ((0, 300), [296])


def test_two_checkpoints_in_june_keep_the_old_ones() -> None:
    play = Play(OLD, "hybrid", ctx_checkpoints=2)
    long = run(range(600))
    for more in ([], range(700, 800), range(800, 900)):
        long = run(long, list(more))
        play.ask(long)
        assert play.checkpoints() == [84, 596]
    assert (play.ask(run(range(300))), play.checkpoints()) == ((84, 216), [84])


@pytest.mark.parametrize(
    ("profile", "lists"),
    [(NEW, ([84, 596], [84, 600, 696], [84, 700, 796])), (OLD, ([84, 596],) * 3)],
)
def test_four_checkpoints_are_thinned(profile: str, lists: tuple[list[int], ...]) -> None:
    play = Play(profile, "hybrid", ctx_checkpoints=4)
    long = run(range(600))
    for more, held in zip(([], range(700, 800), range(800, 900)), lists, strict=True):
        long = run(long, list(more))
        play.ask(long)
        assert play.checkpoints() == held


@pytest.mark.parametrize(("profile", "fourth"), [(NEW, [92, 96]), (OLD, [92])])
def test_a_prompt_that_ends_on_a_checkpoint(profile: str, fourth: list[int]) -> None:
    play = Play(profile, "recurrent")
    assert (play.ask(run(range(100))), play.checkpoints()) == ((0, 100), [96])
    assert (play.ask(run(range(99))), play.checkpoints()) == ((96, 3), [96])
    assert (play.ask(run(range(96))), play.checkpoints()) == ((0, 96), [92])
    assert (play.ask(run(range(100))), play.checkpoints()) == ((96, 4), fourth)


@both
def test_the_later_form_of_24035_keeps_that_checkpoint(profile: str) -> None:
    play = Play(profile + "+24035-lcp", "recurrent")
    play.ask(run(range(100)))
    play.ask(run(range(99)))
    play.ask(run(range(96)))
    assert 96 in play.checkpoints()


@pytest.mark.parametrize(
    ("profile", "second", "third", "fourth"),
    [
        (NEW, [96, 100, 101], ((100, 1000), [96, 100, 101, 584, 1096]), (101, 149)),
        (OLD, [96], ((96, 1004), [96, 584, 1096]), (96, 154)),
        (NEW + "+24035", [96, 100, 101], ((100, 1000), [96, 100, 584, 1096]), (100, 150)),
        (NEW + "+erase-equal", [96, 100, 101], ((100, 1000), [96, 100, 584, 1096]), (100, 150)),
    ],
)
def test_a_stale_neighbour_survives_the_erasure(
    profile: str, second: list[int], third: tuple[tuple[int, int], list[int]],
    fourth: tuple[int, int],
) -> None:  # fmt: skip
    play = Play(profile, "recurrent", ctx_size=4096)
    assert (play.ask(run(range(100))), play.checkpoints()) == ((0, 100), [96])
    assert play.ask(run(range(100), range(200, 205))) == (100, 5)
    assert play.checkpoints() == second
    assert (play.ask(run(range(100), range(300, 1300))), play.checkpoints()) == third
    assert play.ask(run(range(100), range(300, 350), range(5000, 5100)), 12) == fourth


@pytest.mark.parametrize(("profile", "again"), [(NEW, (96, 10)), (OLD, (32, 74))])
def test_two_completions_of_one_prompt(profile: str, again: tuple[int, int]) -> None:
    play = Play(profile, "hybrid", parallel=3, **SMALL)
    assert play.ask(run(range(100)), 5, completions=2) == (0, 100)
    replies = play.engine.replies(play.ticket)
    assert [(r.slot, r.cached, r.processed) for r in replies] == [(2, 0, 100), (0, 0, 100)]
    assert [play.tokens(slot) for slot in range(3)] == [0, 0, 104]
    assert play.ask(run(range(100), range(300, 306)), 3) == again
    assert play.slot == 2


@pytest.mark.parametrize(("profile", "again"), [(NEW, (96, 4)), (OLD, (32, 68))])
def test_a_restored_slot_picks_up_a_checkpoint_of_another_prompt(
    profile: str, again: tuple[int, int]
) -> None:
    """b11434 would answer 0+100; b11549 has #26004, and its wheel answers 96+4."""
    play = Play(profile, "hybrid", cache_ram=0, **SMALL)
    play.ask(run(range(100)), 8)
    play.act("slot-save", 0, "A")
    play.ask(run(range(1000, 1100)), 8)
    play.act("slot-restore", 0, "A")
    assert play.tokens() == 107
    assert play.ask(run(range(100)), 8) == again


@pytest.mark.parametrize(
    ("profile", "shifted", "after", "parked"),
    [(NEW, [], [132, 196], [(172, 0)]), (OLD, [132], [132], [(172, 1)])],
)
def test_a_context_shift_and_the_checkpoints(
    profile: str, shifted: list[int], after: list[int], parked: list[tuple[int, int]]
) -> None:
    play = Play(profile, "hybrid", ctx_size=256, context_shift=True, ubatch_size=64)
    play.ask(run(range(200)), 100)
    assert (play.tokens(), play.checkpoints()) == (172, shifted)
    assert play.ask(run(range(200))) == (0, 200)
    assert (play.checkpoints(), play.ram) == (after, parked)


@pytest.mark.parametrize(
    ("profile", "lists", "counts", "parked"),
    [
        (NEW, ([32, 96], [32, 96, 117], [32, 46]), ((96, 4), (96, 25)), [(128, 3)]),
        (OLD, ([32], [32], [32]), ((32, 68), (32, 89)), [(128, 1)]),
    ],
)
def test_with_a_drafting_companion(
    profile: str, lists: tuple[list[int], ...], counts: tuple[tuple[int, int], ...],
    parked: list[tuple[int, int]],
) -> None:  # fmt: skip
    play = Play(profile, "hybrid-mtp", spec_type="draft-mtp", **SMALL)
    assert play.ask(run(range(100)), 20, drafts=()) == (0, 100)
    assert (play.tokens(), play.checkpoints()) == (119, lists[0])
    assert (play.ask(run(range(100)), 5, drafts=()), play.tokens()) == (counts[0], 104)
    assert play.ask(run(range(100), range(200, 221)), 8, drafts=()) == counts[1]
    assert (play.checkpoints(), play.tokens()) == (lists[1], 128)
    assert play.ask(run(range(50)), 4, drafts=()) == (32, 18)
    assert (play.checkpoints(), play.ram) == (lists[2], parked)
