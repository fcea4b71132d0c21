"""What vLLM's server holds: blocks, cells and states; and whether its books agree.

The books are those of requests, queues, block tables, pool and lookups.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, product
from typing import Any

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
from cachesim.engines.vllm.block_pool import NULL, cdiv
from cachesim.engines.vllm.coordinator import Coordinator, KVCacheManager, SpecGroup
from cachesim.engines.vllm.encoder import EncoderCache
from cachesim.engines.vllm.managers import Mamba, Manager
from cachesim.engines.vllm.request import ENDED, ROOT, Chunk, Prefixes, Request
from cachesim.engines.vllm.runner import NOBODY, PLACES, Runner
from cachesim.engines.vllm.scheduler import Scheduler
from cachesim.errors import ContractError, UpstreamAbort


def snapshot(manager: KVCacheManager, scheduler: Scheduler) -> dict[str, Any]:
    """The blocks with content, and the requests."""
    pool, count = manager.pool, len(manager.groups)
    return {
        "slots": [],
        "prompt_cache": [],
        "blocks": [
            {
                "block": block,
                "kind": manager.groups[key % count].kind,
                "n_tokens": pool.key_tokens[block],
                "references": pool.ref[block],
            }
            for block, key in enumerate(pool.key)
            if key is not None
        ],
        "free": pool.num_free,
        "running": [request.id for request in scheduler.running],
        "waiting": [request.id for request in (*scheduler.holding, *scheduler.waiting)],
    }


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
                stream=sum(PLACES[spec.kind] == place for spec in manager.groups[:i]),
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
    counts, layers = Counter[str](), Counter[str]()
    for group, blocks in zip(groups, np.bincount(keys, minlength=len(groups)), strict=True):
        place = PLACES[group.kind]
        layers[place] += len(group.layers)
        size = 1 if place == "recurrent" else group.block
        counts[place] += int(blocks) * size * len(group.layers)
    shares = {place: counts[place] // max(layers[place], 1) for place in PLACES.values()}
    return Amounts(
        attention=shares["attention"], window=shares["window"], states=shares["recurrent"]
    )


def check_books(
    manager: KVCacheManager, requests: Mapping[int, Request], deferred: Iterable[Sequence[int]]
) -> None:
    """Raise ContractError at the first inconsistency; `deferred`: blocks that are freed later."""
    pool = manager.pool
    holders: Counter[int] = Counter()  # `get` is faster for blocks without any
    for single in manager.managers:
        for number, table in single.tables.items():
            if number not in requests:
                _fail(f"a block table of request {number}, which was never sent")
            holders.update(block for block in table if block != NULL)
            ids = {key % pool.groups for block in table if (key := pool.key[block]) is not None}
            if ids - {single.group}:
                _fail(f"group {single.group} holds blocks with ids of the groups {ids}")
        _is_left(requests, single.num_cached, single.partial_hits)
    for others in (*manager.pins.values(), *deferred):
        holders.update(block for block in others if block != NULL)
    _is_left(requests, manager.pins, manager.unwritten)
    # A pool is large, and most of its blocks have nothing: those are passed over as one.
    referenced = {block for block, references in enumerate(pool.ref) if references}
    for block in sorted((referenced | holders.keys()) - {NULL}):
        references, count = pool.ref[block], holders.get(block, 0)
        if references != count:
            _fail(f"block {block} has {references} references and {count} holders")
    for block in ({*range(1, pool.size)} - referenced) ^ pool.free.keys():
        held = "with" if block in referenced else "without"
        _fail(f"block {block} {held} references and the free queue disagree")
    for key, found in pool.cached.items():
        for block in (found,) if isinstance(found, int) else found:
            if key != pool.key[block] and key not in pool.more_keys.get(block, ()):
                _fail(f"block {block} is cached under an id that it does not have")
    own_keys = {block: own for block, own in enumerate(pool.key) if own is not None}
    for block in own_keys.keys() | pool.more_keys.keys():
        own = pool.key[block]
        keys = [*pool.more_keys.get(block, ()), *(() if own is None else (own,))]
        if not all(pool.holds(key, block) for key in keys) or (keys and own is None):
            _fail(f"block {block} has an id under which it is not cached")


def check_requests(
    scheduler: Scheduler,
    requests: Mapping[int, Request],
    in_flight: Sequence[Chunk],
    elsewhere: Collection[int],
) -> None:
    """Requests: each in one queue until it ends, its tokens computed but for the last one.

    `elsewhere`: those that a prefill server still has, or whose load ends by itself.
    """
    manager, chunks = scheduler.manager, Counter[int]()
    queued = (*scheduler.waiting, *scheduler.holding)
    places = Counter(request.id for request in (*queued, *scheduler.running))
    for chunk in in_flight:
        chunks[chunk.request.id] += chunk.count
    for number, request in requests.items():
        ended = request.status in ENDED
        if places[number] != (not ended) and number not in elsewhere:
            _fail(f"request {number}, {request.status}, is in {places[number]} queues")
        if ended and any(manager.tables_of(request)) and number not in elsewhere:
            _fail(f"request {number} has blocks after its end")
        if not ended and request.in_flight != chunks[number]:
            _fail(f"request {number} has {request.in_flight} tokens in flight, not its chunk's")
        if not 0 <= request.stale <= request.in_flight:
            _fail(f"request {number} has {request.stale} stale tokens of {request.in_flight}")
    limits, queue = (
        scheduler.limits,
        [request for request in scheduler.waiting if not request.preemptions],
    )
    arrived = queue if scheduler.external is None else []  # else some come from another server
    if arrived != sorted(
        arrived, key=lambda request: request.rank if limits.by_priority else request.id
    ):
        _fail(f"the requests {[request.id for request in arrived]} wait in this order")
    if len(scheduler.running) > limits.max_seqs:
        _fail(f"{len(scheduler.running)} requests run, of {limits.max_seqs}")
    for request in scheduler.waiting:
        progress = request.num_computed, request.placeholders, len(request.spec_tokens)
        if any(progress) or any(manager.tables_of(request)):
            _fail(f"request {request.id} waits with tokens {progress}, or with blocks")
    for request in scheduler.running:
        known, count = request.num_tokens, request.num_computed - request.in_flight
        partly = request.is_prefill_chunk or request.in_flight > 1 or scheduler.limits.recomputes
        if count >= known or (count < known - 1 and not partly):
            _fail(f"request {request.id} has computed {count} of {known} tokens")


def check_tables(scheduler: Scheduler, runner: Runner, in_flight: Sequence[Chunk]) -> None:
    """Block tables of running requests: as long as their tokens, and those of the runner."""
    running = {request.id: request for request in scheduler.running}
    scheduled = {chunk.request.id for chunk in in_flight}
    if not runner.held.keys() <= running.keys() | scheduled:
        _fail(f"the runner has the requests {[*runner.held]}, and {[*running]} run")
    for number, request in running.items():
        for manager in scheduler.manager.managers:
            table = manager.tables.get(number, [])
            _check_table(manager, request, table, scheduler)
            if not runner.computes or (number in scheduled and number not in runner.held):
                continue
            held = runner.held[number].tables[manager.group]
            same = (own in {NULL, other} for own, other in zip(table, held, strict=False))
            more = len(table) - len(held)  # those of a step in flight
            if more < 0 or (more and number not in scheduled) or not all(same):
                _fail(f"request {number} has the blocks {table}, and in the runner {held}")


def check_null_block(runner: Runner) -> None:
    """The null block, which no group writes; for a single group no writer is noted."""
    if (runner.pages.owner[NULL:1] != NOBODY).any():
        _fail("the null block is written to")


def _check_table(each: Manager, request: Request, table: list[int], scheduler: Scheduler) -> None:
    """Null blocks where no later token reads, and other ones up to the last computed token."""
    limits, rules, size, end = scheduler.limits, each.rules, each.block_size, request.num_computed
    if each.spec.kind == "ring":
        if len(table) != 1:
            _fail(f"request {request.id} has {len(table)} rings")
        return
    aligned = isinstance(each, Mamba) and each.aligned
    if isinstance(each, Mamba) and aligned and request.id not in each.allocated:
        return
    more, own = limits.drafts + limits.lookahead, each.spec.speculative_blocks
    highest = cdiv(min(end + more, limits.max_model_len), size) + own
    if len(table) < cdiv(end, size) + own or (len(table) > highest and not limits.recomputes):
        _fail(f"request {request.id} has {len(table)} blocks for {end} tokens")
    if rules.lookup.window_one_short:
        return
    first = max(0, each.num_skipped(end)) // size
    nulls = next((i for i, block in enumerate(table) if block != NULL), len(table))
    if aligned:
        kept = len(table) - table.count(NULL)
        # The last state; of each step the running one and an exported one; those that refused
        # drafts have passed.
        steps = 1 + limits.overlaps
        exported = bool(each.spec.checkpoint_alignment)
        most = own + 1 + steps * (1 + exported) + steps * limits.drafts // size
        if NULL in table[len(table) - own - 1 :] or (rules.state.retires_all and kept > most):
            _fail(f"request {request.id} has the states {table}")
        return
    late = 0 if rules.scheduler.caches_after_drafts else limits.drafts
    known = max(0, min(end, request.num_tokens) - late)
    if limits.overlaps:  # a token's id comes with the output of the step that computes it
        known = min(known, max(end - request.in_flight, request.num_prompt))
    _check_published(each, request, table, known, scheduler.manager)
    before = end - (1 + limits.overlaps) * limits.budget - 2 * more
    least = max(0, each.num_skipped(max(0, before))) // size
    if NULL in table[nulls:] or not least <= nulls <= first:
        _fail(f"request {request.id} has {nulls} null blocks of {first} for {end} tokens")


def _check_published(
    each: Manager, request: Request, table: list[int], known: int, manager: KVCacheManager
) -> None:
    """Blocks of attention: each has its id if its tokens are computed or about to be."""
    pool, block = manager.pool, manager.coordinator.alignment
    if each.spec.kind != "full" or not manager.enable_caching:
        return
    count = min(known, len(request.hashes) * pool.hash_block) // block * block // each.block_size
    for own, number in zip(table[:count], each.own(request.hashes), strict=False):
        if not pool.holds(number * pool.groups + each.group, own):
            _fail(f"block {own} of request {request.id} has no id, with {known} tokens computed")


def check_ids(manager: KVCacheManager, requests: Collection[Request], *, removed: bool) -> None:
    """Ids: a block without one is taken first, a block after those that continue its prefix.

    queue   | no id ... | b2 | b1 | b0 |       b0 b1 b2 are the first blocks of a prompt

    `removed`: ids may be, of blocks in the queue.
    """
    pool = manager.pool
    order = {block: place for place, block in enumerate(pool.free)}
    keyed = [pool.key[block] is not None for block in order]
    if manager.rules.pool.unhashed_first == "always" and not removed and keyed != sorted(keyed):
        _fail("a block with an id is evicted before one without")
    used = len(order)
    hashed = [single for single in manager.managers if single.spec.kind != "ring"]
    for single, request in product(hashed, requests):
        parent = used
        for index, number in enumerate(single.own(request.hashes), 1):
            key = number * pool.groups + single.group
            found = pool.cached.get(key, ())
            blocks = (found,) if isinstance(found, int) else found
            own = [block for block in blocks if pool.key[block] == key]
            if any(pool.key_tokens[block] != index * single.block_size for block in own):
                _fail(f"of the blocks {own} not each ends {index * single.block_size} tokens")
            place = max((order.get(block, used) for block in blocks), default=-1)
            late = single.spec.kind == "full" and not removed and parent < used
            if late and blocks and parent <= place:
                _fail(f"of the blocks {own} not each is evicted before the one that it continues")
            parent = place


def check_encoder(encoder: EncoderCache, requests: Mapping[int, Request]) -> None:
    """The encoder's outputs: their tokens, and those without a request that needs them."""
    counts = {image.name: image.count for request in requests.values() for image in request.images}
    held = sum(counts[name] for name in encoder.users)
    if encoder.unused < 0 or encoder.unused + held != encoder.size:
        _fail(f"{encoder.unused} tokens are unused and {held} held of {encoder.size}")
    if encoder.idle.keys() != {name for name, users in encoder.users.items() if not users}:
        _fail(f"the outputs {[*encoder.idle]} are idle, not those without requests")
    _is_left(
        requests, {number: name for name, users in encoder.users.items() for number, _ in users}
    )
    rules = encoder.rules
    late = rules.encoder_waits_for_tokens and rules.encoder_stops_ahead
    ahead = encoder.lookahead if late else 0
    for request in requests.values():
        at, names = request.num_computed, [image.name for image in request.images]
        for image in request.images if request.status == "running" else ():
            alone = names.count(image.name) == 1  # else one chunk may use an output twice
            holds = (request.id, image.start) in encoder.users.get(image.name, ())
            if alone and (
                image.end + ahead <= at - request.in_flight
                if holds
                else image.start < at < image.end
            ):
                _fail(
                    f"request {request.id} at {at} tokens has an output for {image.start}: {holds}"
                )


def check_lookups(coordinator: Coordinator, requests: Sequence[Request]) -> None:
    """Hits: the longest prefix from which every group can resume. A drafter's drop is not one."""
    rules = coordinator.rules.lookup
    if coordinator.eagle_ids or rules.forgives_missing_state or rules.window_one_short:
        return
    for request in requests:
        most = request.num_tokens - 1
        try:
            length = coordinator.find_longest_cache_hit(request.hashes, most).length
        except UpstreamAbort:  # of a request that did not look up
            return
        unit = coordinator.alignment
        if len(coordinator.managers) == 1:
            unit = coordinator.spec_groups[0].spec.block
        longest = next(
            (
                end
                for end in range(most // unit * unit, 0, -unit)
                if all(
                    _resumes(coordinator, group, request.hashes, end, most)
                    for group in reversed(coordinator.spec_groups)
                )
            ),
            0,
        )
        if length != longest:
            _fail(f"a hit of {length} tokens, where the groups can resume at {longest}")


def _resumes(
    coordinator: Coordinator, group: SpecGroup, hashes: Sequence[int], end: int, most: int
) -> bool:
    """True if a group can resume at a position: what the next token reads is cached."""
    pool, unit, spec, size = coordinator.pool, coordinator.hash_block, group.spec, group.spec.block
    ends: Sequence[int] = [end]
    if spec.kind == "full":
        ends = range(size, end + 1, size)
        inside = range(end, min(cdiv(end, size) * size, most) + 1, unit) if end % size else ()
    elif spec.kind == "window":
        ends = range(end, max(0, min(end - size, (end - spec.window + 1) // size * size)), -size)
    elif spec.kind == "chunked":
        ends = range(end, end // spec.chunk * spec.chunk, -size)

    def has(at: int) -> bool:
        index = at // unit - 1
        return index < len(hashes) and all(
            hashes[index] * pool.groups + i in pool.cached for i in group.ids
        )

    if spec.kind == "full" and inside and not any(map(has, inside)):
        return False
    return all(map(has, ends))


def _is_left(requests: Mapping[int, Request], *books: Mapping[int, object]) -> None:
    for number in chain.from_iterable(books):
        if number not in requests or requests[number].status == "finished":
            _fail(f"something is kept of request {number}, which is gone")


def _fail(what: str) -> None:
    raise ContractError(f"vllm: {what}")
