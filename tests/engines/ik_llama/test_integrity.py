"""Damaged books of the cells are told, each for what is wrong with it."""

from collections.abc import Callable

import pytest

from cachesim.engines.ik_llama.context import Cells
from cachesim.errors import ContractError
from tests.engines.ik_llama.worked_kit import A, G, Played


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
