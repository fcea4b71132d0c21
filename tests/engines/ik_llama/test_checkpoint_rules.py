"""Checkpoints that are made and that go, by hand from `create_checkpoint` and #2020."""

from collections.abc import Callable
from typing import Any

import pytest

from cachesim.engines import Engine
from cachesim.engines.ik_llama.context import Checkpoint, SequenceState
from cachesim.engines.ik_llama.server import IkLlama, evicted_index
from cachesim.engines.ik_llama.speculative import StrictTailCompanion
from cachesim.errors import ContractError
from cachesim.model.presets import preset
from cachesim.typed import of_kind
from cachesim.units import Count, Pos, Token, as_tokens
from tests.engines.asking import answer, names
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


# -- companions ------------------------------------------------------------------------------------


def test_a_companion_of_one_position_is_moved_with_its_range() -> None:
    moved = {}
    for p0, p1 in ((0, -1), (5, -1), (6, -1), (0, 5), (0, 6), (5, 6)):
        companion = StrictTailCompanion()
        companion.tail = 5
        companion.seq_add(p0, p1, -2)
        moved[p0, p1] = companion.tail

    assert {(0, -1): 3, (5, -1): 3, (6, -1): 5, (0, 5): 5, (0, 6): 3, (5, 6): 3} == moved


def miscounts(server: IkLlama) -> None:
    server.primary.cells.used += 1


def forgets_the_owner(server: IkLlama) -> None:
    server.primary.cells.held[0] = 0


def writes_beyond_its_reach(server: IkLlama) -> None:
    cells = server.primary.cells
    cells.pos[cells.reach], cells.held[cells.reach] = 0, 1
    cells.used += 1


def loses_a_token(server: IkLlama) -> None:
    del server.slots[0].cache_tokens[-1]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (miscounts, "used=1004: 1003 cells hold a position, 1003 an owner"),
        (forgets_the_owner, "used=1003: 1003 cells hold a position, 1002 an owner"),
        (writes_beyond_its_reach, "a cell from 1003 on is held, and none was written"),
        (loses_a_token, "slot 0: 1003 cells for 1002 tokens"),
    ],
)
def test_damaged_cells_and_lists_are_told(damage: Callable[[IkLlama], None], says: str) -> None:
    play = Played("hybrid")
    play.ask(A, G[:4])
    damage(play.server)

    with pytest.raises(ContractError, match=says):
        play.server.check_integrity()


PROMPT = as_tokens(range(300, 400))


class Shelf(dict[str, bytes]):
    def put(self, name: str, data: bytes) -> None:
        self[name] = data

    def get(self, name: str, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
        return super().get(name, default)


def server(shelf: Shelf, model: str = "hybrid-delta", patch: str = "", **options: Any) -> IkLlama:
    made = Engine.create(
        f"ik_llama.cpp@d2da6da05{patch}",
        model=preset(model),
        arithmetic="ring",
        options=options,
        store=shelf,
    )
    return of_kind(IkLlama, made)


def saved(shelf: Shelf, model: str = "hybrid-delta") -> list[Token]:
    """The slot file of a server after the prompt."""
    first = server(shelf, model)
    answer(first, PROMPT, 4)
    first.slot_save(0, "a")
    return first.slots[0].cache_tokens


def test_a_saved_slot_goes_on_in_another_server() -> None:
    shelf = Shelf()
    held, second = saved(shelf), server(shelf)
    second.slot_restore(0, "a")

    assert held == second.slots[0].cache_tokens
    assert len(held) == answer(second, (*held, *PROMPT[:9]), 4).cached


@pytest.mark.parametrize("patch", ["", "+1889"])
def test_c3_a_restored_slot_beside_an_empty_companion_is_trimmed_without_refusal(
    patch: str,
) -> None:
    shelf = Shelf()
    held = saved(shelf, "hybrid-mtp")
    fresh = server(shelf, "hybrid-mtp", patch, companion="attn")
    fresh.slot_restore(0, "a")

    assert len(held) == answer(fresh, (*held, *PROMPT[:9]), 4).cached
    assert "full-reset" not in names(fresh)
