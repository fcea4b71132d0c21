"""What the pool holds at one moment, in the form that pages are drawn from."""

import numpy as np

from cachesim.engines.held import UNKNOWN, Amounts, CellsHeld, Held, Marks, RowHeld, runs_of
from cachesim.engines.vllm.manager import KVCacheManager
from cachesim.engines.vllm.pages import PLACES
from cachesim.engines.vllm.runner import Runner


def held(manager: KVCacheManager, runner: Runner) -> Held:
    """Every cached block: cells of attention, and states with what they have folded in.

    A cached block's place in its prefix is known from its id; who uses it now is nobody's or a
    running request's business, so owners are the references.
    """
    pool, pages = manager.pool, runner.pages
    marks = Marks.of(runner.network)
    by_group: dict[int, list[int]] = {i: [] for i in range(len(manager.groups))}
    for block, key in enumerate(pool.key):
        if key is not None:
            by_group[key % pool.groups].append(block)
    cells, rows = [], []
    for i, group in enumerate(manager.groups):
        place = PLACES[group.kind]
        blocks = [block for block in by_group[i] if block < pages.blocks]
        if place == "recurrent":
            layer = marks.layers.get(place)
            rows += [
                RowHeld(
                    row=block,
                    position=pool.key_tokens[block] - 1,
                    owners=1 if pool.ref[block] else 0,
                    node=UNKNOWN if layer is None else int(pages.state(layer, block)[0]),
                )
                for block in blocks
            ]
            continue
        size = group.block
        numbers, positions = [], []
        for block in blocks:
            first = (pool.key_tokens[block] - 1) // size * size
            for offset in range(pool.key_tokens[block] - first):
                numbers.append(block * size + offset)
                positions.append(first + offset)
        at = np.array(numbers, np.int64)
        births = marks.births(pages.keys, place, at) if len(at) else None
        cells.append(
            CellsHeld(
                part=place,
                stream=0,
                size=pool.size * size,
                window=group.window or None,
                runs=runs_of(at, np.array(positions, np.int64), np.ones_like(at), births),
            )
        )
    return Held(cells=tuple(cells), rows=tuple(rows))


def amounts(manager: KVCacheManager) -> Amounts:
    """The same in numbers: blocks that are cached, in whole blocks of their group."""
    pool, groups = manager.pool, manager.groups
    keys = np.fromiter(pool.cached, np.int64, len(pool.cached)) % pool.groups
    found = {"attention": 0, "window": 0, "recurrent": 0}
    for group, blocks in zip(groups, np.bincount(keys, minlength=len(groups)), strict=True):
        place = PLACES[group.kind]
        found[place] += int(blocks) * (1 if place == "recurrent" else group.block)
    return Amounts(attention=found["attention"], window=found["window"], states=found["recurrent"])
