"""Checkpoints that are made and that go, by hand from `create_checkpoint` and #2020."""

from collections.abc import Callable

import pytest

from cachesim.engines import Engine, Request
from cachesim.engines.ik_llama.context import Cells, Checkpoint, SequenceState
from cachesim.engines.ik_llama.server import IkLlama, evicted_index
from cachesim.engines.ik_llama.speculative import StrictTailCompanion
from cachesim.errors import ContractError
from cachesim.model.presets import preset
from cachesim.units import Count, Pos, Tokens, as_tokens
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
