"""Content of the pool, in the form that pages are drawn from."""

from collections import Counter

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
        layer = marks.layers.get(place)
        if layer is not None and pages.group_of[layer] != i:  # the marks are in another group
            layer = None
        blocks = [block for block in by_group[i] if block < pages.blocks]
        if place == "recurrent":
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
        births = marks.births(pages.keys, place, at) if len(at) and layer is not None else None
        cells.append(
            CellsHeld(
                part=place,
                stream=sum(PLACES[each.kind] == place for each in manager.groups[:i]),
                size=pool.size * size,
                window=group.window or None,
                runs=runs_of(at, np.array(positions, np.int64), np.ones_like(at), births),
            )
        )
    return Held(cells=tuple(cells), rows=tuple(rows))


def amounts(manager: KVCacheManager) -> Amounts:
    """The same in numbers: blocks that are cached, in whole blocks of their group.

    A group counts as much as its layers are of all layers of its kind.
    """
    pool, groups = manager.pool, manager.groups
    keys = np.fromiter(pool.cached, np.int64, len(pool.cached)) % pool.groups
    found, layers = Counter[str](), Counter[str]()
    for group, blocks in zip(groups, np.bincount(keys, minlength=len(groups)), strict=True):
        place = PLACES[group.kind]
        layers[place] += len(group.layers)
        size = 1 if place == "recurrent" else group.block
        found[place] += int(blocks) * size * len(group.layers)
    shares = {place: found[place] // max(layers[place], 1) for place in PLACES.values()}
    return Amounts(
        attention=shares["attention"], window=shares["window"], states=shares["recurrent"]
    )
