"""What the server's blocks hold: cells of attention, and states."""

from collections import Counter

import numpy as np

from cachesim.engines.held import (
    UNKNOWN,
    Amounts,
    BlockHeld,
    CellsHeld,
    Held,
    Marks,
    RowHeld,
    runs_of,
)
from cachesim.engines.vllm.coordinator import KVCacheManager
from cachesim.engines.vllm.request import ROOT, Prefixes
from cachesim.engines.vllm.runner import PLACES, Runner


def held(manager: KVCacheManager, runner: Runner, prefixes: Prefixes) -> Held:
    """Every cached block: cells of attention, and states with the mark of their last token.

    The id of a block gives its prefix. The owner of a state is 1 if the block is referenced.
    """
    pool, pages = manager.pool, runner.pages
    marks, parents = Marks.of(runner.network), prefixes.parents()
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
        numbers: list[int] = []
        positions: list[int] = []
        chain = []
        for block in blocks:
            first = (pool.key_tokens[block] - 1) // size * size
            count = pool.key_tokens[block] - first
            numbers += range(block * size, block * size + count)
            positions += range(first, first + count)
            number = (pool.key[block] or 0) // pool.groups
            parent = number
            for _ in range(-(-count // prefixes.unit)):
                parent = parents.get(parent, ROOT)
            chain.append(BlockHeld(block, block * size, first, count, number, parent))
        at = np.array(numbers, np.int64)
        births = marks.births(pages.keys, place, at) if len(at) and layer is not None else None
        cells.append(
            CellsHeld(
                part=place,
                stream=sum(PLACES[each.kind] == place for each in manager.groups[:i]),
                size=pool.size * size,
                window=group.window if group.kind == "window" else None,
                runs=runs_of(at, np.array(positions, np.int64), np.ones_like(at), births),
                blocks=tuple(chain),
            )
        )
    return Held(cells=tuple(cells), rows=tuple(rows))


def amounts(manager: KVCacheManager) -> Amounts:
    """Cached blocks in tokens, and states.

    A group is weighted by its share of the layers of its kind.
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
