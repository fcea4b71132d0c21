"""Checkpoints that are made and that go, by hand from `create_checkpoint` and #2020."""

from collections.abc import Callable

import pytest

from cachesim.engines import Engine, Request
from cachesim.engines.ik_llama.context import Cells, Checkpoint, SequenceState, Sizes
from cachesim.engines.ik_llama.server import IkLlama, evicted_index
from cachesim.engines.ik_llama.speculative import StrictTailCompanion, WindowCompanion
from cachesim.errors import ContractError
from cachesim.model.presets import preset
from cachesim.units import Count, Pos, Token, Tokens, as_tokens
from tests.engines.ik_llama.worked_kit import A, G, Played


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


# -- companions ------------------------------------------------------------------------------------


def test_a_companion_of_one_position_refuses_whatever_leaves_a_part() -> None:
    """False iff 0 < p0 <= t or 0 < p1 <= t; what reaches the start leaves nothing."""
    for tail in (-1, 0, 5):
        for p0 in range(-1, 8):
            for p1 in range(-1, 8):
                companion = StrictTailCompanion()
                assert -1 == companion.tail
                companion.tail = tail
                start = max(p0, 0)
                refused = 0 < start <= tail or 0 < p1 <= tail
                assert refused != companion.seq_rm(p0, p1)
                gone = not refused and start <= tail
                assert (-1 if gone else tail) == companion.tail


def test_a_companion_of_one_position_is_moved_with_its_range() -> None:
    moved = {}
    for p0, p1 in ((0, -1), (5, -1), (6, -1), (0, 5), (0, 6), (5, 6)):
        companion = StrictTailCompanion()
        companion.tail = 5
        companion.seq_add(p0, p1, -2)
        moved[p0, p1] = companion.tail

    assert {(0, -1): 3, (5, -1): 3, (6, -1): 5, (0, 5): 5, (0, 6): 3, (5, 6): 3} == moved


def fed(companion: WindowCompanion, first: int, count: int) -> bool:
    return companion.decode([Token(0)] * count, Pos(first), []).taken


def test_a_window_rolls_as_in_the_example_of_three_thousand_tokens() -> None:
    """Window 128, ubatches of 512: rows for 768. 2,048 tokens leave base 1408; 3,000 base 2432."""
    companion = WindowCompanion(window=128, n_ubatch=512)

    assert 768 == companion.capacity
    assert fed(companion, 0, 2048)
    assert (1408, 640, 2047) == (companion.base, companion.live, companion.tail)
    assert fed(companion, 2048, 952)
    assert (2432, 568, 2999) == (companion.base, companion.live, companion.tail)
    assert not companion.seq_rm(2048, -1)
    assert not companion.seq_rm(2559, -1)
    assert companion.seq_rm(2560, -1)
    assert (2432, 128, 2559) == (companion.base, companion.live, companion.tail)
    assert not fed(companion, 2561, 1)
    assert companion.seq_rm(2560, -1)
    assert companion.seq_rm(0, -1)
    assert (0, 0, -1) == (companion.base, companion.live, companion.tail)


@pytest.mark.parametrize(
    ("window", "n_ubatch", "capacity"),
    [(128, 512, 768), (256, 256, 512), (257, 256, 768), (10, 64, 512), (128, 128, 512)],
)
def test_rows_of_a_window_come_in_multiples_of_256(
    window: int, n_ubatch: int, capacity: int
) -> None:
    assert capacity == WindowCompanion(window=window, n_ubatch=n_ubatch).capacity


def test_a_window_rolls_when_it_is_full_and_no_token_earlier() -> None:
    companion = WindowCompanion(window=256, n_ubatch=256)
    assert fed(companion, 0, 512)
    assert (0, 512) == (companion.base, companion.live)
    assert companion.seq_rm(100, -1)
    assert (0, 100) == (companion.base, companion.live)
    assert fed(companion, 100, 412)
    assert fed(companion, 512, 1)
    assert (256, 257) == (companion.base, companion.live)
    assert not companion.seq_rm(300, 400)
    assert companion.seq_rm(0, 256)
    assert companion.seq_rm(300, 0)  # an empty range, below what is kept
    assert not companion.seq_rm(0, 257)
    assert companion.seq_rm(513, -1)
    assert (256, 257) == (companion.base, companion.live)


def miscounts(cells: Cells) -> None:
    cells.used += 1


def forgets_the_owner(cells: Cells) -> None:
    cells.held[0] = 0


def writes_beyond_its_reach(cells: Cells) -> None:
    cells.pos[cells.reach], cells.held[cells.reach] = 0, 1
    cells.used += 1


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (miscounts, "used=1004: 1003 cells hold a position, 1003 an owner"),
        (forgets_the_owner, "used=1003: 1003 cells hold a position, 1002 an owner"),
        (writes_beyond_its_reach, "a cell from 1003 on is held, and none was written"),
    ],
)
def test_damaged_cells_are_told(damage: Callable[[Cells], None], says: str) -> None:
    play = Played("hybrid")
    play.ask(A, G[:4])
    damage(play.server.primary.cells)

    with pytest.raises(ContractError, match=says):
        play.server.check_integrity()


def test_a_slot_with_more_cells_than_tokens_is_told() -> None:
    play = Played("hybrid")
    play.ask(A, G[:4])
    del play.server.slots[0].cache_tokens[-1]

    with pytest.raises(ContractError, match="slot 0: 1003 cells for 1002 tokens"):
        play.server.check_integrity()


PROMPT = as_tokens(range(300, 400))


class Shelf(dict[str, bytes]):
    """A place for bytes."""

    def put(self, name: str, data: bytes) -> None:
        self[name] = data

    def get(self, name: str, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
        return super().get(name, default)


def server(shelf: Shelf, model: str = "hybrid-delta") -> IkLlama:
    made = Engine.create(
        "ik_llama.cpp@d2da6da05", model=preset(model), arithmetic="ring", store=shelf
    )
    assert isinstance(made, IkLlama)
    return made


def ask(engine: IkLlama, prompt: Tokens) -> int | None:
    ticket = engine.submit(Request(prompt=prompt, predict=4))
    engine.run()
    reply = engine.reply(ticket)
    assert reply is not None
    return reply.cached


def test_a_saved_slot_goes_on_in_another_server() -> None:
    shelf = Shelf()
    first = server(shelf)
    ask(first, PROMPT)
    first.slot_save(0, "a")
    held = first.slots[0].cache_tokens
    second = server(shelf)
    second.slot_restore(0, "a")

    assert held == second.slots[0].cache_tokens
    assert len(held) == ask(second, (*held, *PROMPT[:9]))


@pytest.mark.parametrize("patch", ["", "+1889"])
def test_c3_a_restored_slot_beside_an_empty_companion_is_trimmed_without_refusal(
    patch: str,
) -> None:
    shelf = Shelf()
    profile = "ik_llama.cpp@d2da6da05" + patch
    first = server(shelf, "hybrid-mtp")
    ask(first, PROMPT)
    first.slot_save(0, "a")
    held = first.slots[0].cache_tokens
    fresh = Engine.create(
        profile,
        model=preset("hybrid-mtp"),
        arithmetic="ring",
        options={"companion": "attn"},
        store=shelf,
    )
    assert isinstance(fresh, IkLlama)
    fresh.slot_restore(0, "a")

    assert len(held) == ask(fresh, (*held, *PROMPT[:9]))
    assert "full-reset" not in [event.name() for event in fresh.events]
