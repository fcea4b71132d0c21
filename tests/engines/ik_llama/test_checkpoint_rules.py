"""Checkpoints that are made and that go, by hand from `create_checkpoint` and #2020."""

import pytest

from cachesim.engines.ik_llama import causes
from cachesim.engines.ik_llama.checkpointing import evicted_index
from cachesim.engines.ik_llama.state import Checkpoint, SequenceState, Sizes
from cachesim.model.presets import preset
from cachesim.units import Count, Pos
from tests.engines.ik_llama.worked_kit import LATER, SEED_ERA, SHORT, A, G, Played, Z, run_of


def checkpoint(pos: int) -> Checkpoint:
    state = SequenceState(positions=(), born=(), keys=None, values=None, rows={}, size=0)
    return Checkpoint(
        pos_min=Pos(pos),
        pos_max=Pos(pos),
        pos_min_prompt=Pos(pos),
        pos_max_prompt=Pos(pos),
        n_tokens=Count(pos + 1),
        made_by=0,
        state=state,
    )


@pytest.mark.parametrize(
    ("positions", "gone"),
    [
        ([10], 0),
        ([10, 20], 0),
        ([10, 20, 30], 1),
        ([10, 20, 30, 90], 1),  # 10 * 10 of 20, 10 * 60 of 30
        ([10, 40, 50, 60], 2),  # 30 * 10 of 40, 10 * 10 of 50
        ([10, 20, 30, 40], 1),  # equal: the first
        ([10, 60, 70, 75, 200], 2),  # 50 * 10, 10 * 5, 5 * 125
        ([0, 50, 98, 99, 100], 3),  # 50 * 48, 48 * 1, 1 * 1
    ],
)
def test_the_variance_rule_spares_the_ends(positions: list[int], gone: int) -> None:
    listed = [checkpoint(pos) for pos in positions]

    assert gone == evicted_index(listed, "variance", keeps_earliest=False)


@pytest.mark.parametrize(("count", "spared", "gone"), [(1, True, 0), (2, True, 1), (3, False, 0)])
def test_the_oldest_goes_or_the_second_oldest(count: int, spared: bool, gone: int) -> None:
    listed = [checkpoint(10 * each) for each in range(count)]

    assert gone == evicted_index(listed, "fifo", keeps_earliest=spared)


@pytest.mark.parametrize(("tokens", "made"), [(63, []), (64, [63]), (65, [64])])
def test_the_first_checkpoint_covers_64_tokens(tokens: int, made: list[int]) -> None:
    """Made at the end of the reply; the tolerance point lies below."""
    server = Played("hybrid", ctx_checkpoints_tolerance=20)
    server.ask(A[: tokens - 1], G[:2])

    assert made == server.checkpoints


def test_no_second_checkpoint_covers_as_many_tokens() -> None:
    """The last of a prompt that was sent before ends where a checkpoint is."""
    server = Played("hybrid-delta", SEED_ERA, ctx_checkpoints_tolerance=0)
    server.ask(A[:200], G[:1])

    assert [199] == server.checkpoints
    assert (199, 1) == server.ask(A[:200], G[:1])
    assert [] == [p for p in server.checkpoints if p != 199]


def test_a_prompt_whose_end_was_sampled_makes_one_at_its_first_token() -> None:
    """A tolerance of 0: when the first token is sampled, and nothing before the end."""
    server = Played("hybrid", ctx_checkpoints_tolerance=0, batch_size=64)
    server.ask(A[:300], G[:3])

    assert [299, 301] == server.checkpoints


@pytest.mark.parametrize("profile", [SEED_ERA, LATER])
def test_the_interval_is_off_at_zero(profile: str) -> None:
    server = Played("hybrid", profile, ctx_checkpoints_interval=0, batch_size=64)
    server.ask(A[:700], G[:700])

    assert [694, 1398] == server.checkpoints


def test_an_interval_of_one_is_due_after_every_batch() -> None:
    server = Played("hybrid", ctx_checkpoints_interval=1, batch_size=64)
    server.ask(A[:150], G[:3])

    assert [63, 127, 144, 150, 151] == server.checkpoints


def test_a_restore_is_explained_by_those_that_were_refused() -> None:
    server = Played("hybrid-delta")
    server.ask(A, G[:11])
    answer = server.full(A, SHORT)
    loss = next(each for each in answer.losses if each.cause is causes.MEMORY_DEPTH)

    refused = [{"pos_min": pos, "pos_max": pos} for pos in (1009, 1000)]
    assert refused == loss.detail["checkpoints"]


def test_a_restore_moves_the_interval_of_the_later_commit() -> None:
    """Restored at 127: due again at 191; of the seed era, which starts at 0, at the next batch."""
    made = {}
    for profile in (SEED_ERA, LATER):
        server = Played("hybrid", profile, ctx_checkpoints_interval=64, batch_size=32)
        server.ask(A[:200], G[:2])
        server.ask(A[:150] + Z[:50], SHORT)
        made[profile] = server.checkpoints

    assert {SEED_ERA: [63, 127, 159, 194, 200], LATER: [63, 127, 191, 194, 200]} == made


@pytest.mark.parametrize("model", ["dense", "hybrid", "recurrent"])
def test_bytes_of_a_saved_state(model: str) -> None:
    """Counts and positions, a head for each layer; rows of 4 bytes, keys and values of 2."""
    spec = preset(model)
    sizes = Sizes.of(spec)
    cells = 10
    head = 4 + 8 * cells + 8 + 24 * len(spec.layers) + 4
    rows = 16 * len(spec.layers) + sizes.row if sizes.row else 0

    assert head + rows == sizes.state(cells, partial=True)
    assert head + rows + cells * sizes.cell == sizes.state(cells, partial=False)
    assert (sizes.row == 0) == (model == "dense")
    assert (sizes.cell == 0) == (model == "recurrent")


def test_three_checkpoints_are_the_most_where_the_flag_says_so() -> None:
    server = Played("hybrid", LATER, ctx_checkpoints=3, batch_size=64, ctx_checkpoints_interval=64)
    server.ask(run_of(300, 500), G[:3])

    assert 3 == len(server.checkpoints)
    assert [63, 501] == [server.checkpoints[0], server.checkpoints[-1]]
