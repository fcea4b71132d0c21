"""What a search draws for SGLang's scheduler and tree, and the laws that it checks.

Evictions are compared with the tree before them; the other laws are for a request sent alone. Each
holds on every release and patch but where a rule of theirs is named here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Final

from cachesim.engines.search import ACTS, STATES, Corner, Scope, Search
from cachesim.engines.seen import Breach, Seen
from cachesim.engines.sglang import sessions, vocabulary
from cachesim.engines.sglang.hi_radix import HiRadixCache
from cachesim.engines.sglang.hicache import HostTier
from cachesim.engines.sglang.node import FULL, HOST, PART, STATE, LruList, Node
from cachesim.engines.sglang.options import SglangOptions
from cachesim.engines.sglang.pools import MOST_PRIORITY, HostAction, WindowPool
from cachesim.engines.sglang.radix import RadixCache
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.sglang.server import Sglang
from cachesim.engines.sglang.tree import STRATEGIES, Evicting, Lost, Match, OnHostAction, Tree
from cachesim.engines.sglang.unified_core import UnifiedTreeCore
from cachesim.engines.tokens import get_common_prefix
from cachesim.typed import there_is
from cachesim.units import Integers

EVICTIONS: Final = (vocabulary.NodeEvicted, vocabulary.WindowEvicted, vocabulary.StateEvicted)
"""Events of memory that the device evicts."""

RESTARTS: Final = (
    vocabulary.RequestRetracted,
    vocabulary.RequestPreempted,
    vocabulary.RequestAborted,
)
"""Events of a request that starts over or is aborted."""


@dataclass(frozen=True, slots=True)
class Before:
    """A tree before an eviction: candidates in the order of eviction, free slots by part."""

    leaves: Sequence[Node]
    windows: Sequence[Node]
    states: Sequence[Node]
    held: dict[int, tuple[int, int, int]]  # slots of each node, by part
    free: tuple[int, int, int]


class Evictions:
    """Evictions of a tree: their order, and how much is evicted."""

    def __init__(self, tree: Tree) -> None:
        self._tree, self._problems = tree, list[str]()
        self._lost = list[tuple[Lost, Node]]()
        self._notify = tree.on_lost
        tree.on_evict, tree.on_lost = self._evicting, self._record
        host = tree if isinstance(tree, HiRadixCache) else getattr(tree, "host", None)
        self._moved: OnHostAction | None = None
        if isinstance(host, HiRadixCache | HostTier):
            self._moved, host.on_action = host.on_action, self._move

    def take(self) -> list[str]:
        """The broken laws since the last call."""
        problems, self._problems = self._problems, []
        return problems

    def _record(self, what: Lost, node: Node) -> None:
        self._lost.append((what, node))
        if self._notify is not None:
            self._notify(what, node)

    def _move(self, action: HostAction, part: int, node: Node) -> None:
        if action == "dropped" and node.value is None and self._is_early(part, node):
            self._problems.append("the host evicts a node before one that is due earlier")
        if self._moved is not None:
            self._moved(action, part, node)

    def _is_early(self, part: int, node: Node) -> bool:
        """True for a leaf of the host, or a part of an inner node, that is not the first due."""
        tree, tier = self._tree, getattr(self._tree, "host", None)
        alone = not (tree.has_windows or tree.has_states)
        if part == FULL and alone:
            leaves = [
                n for n in tree.nodes() if n.value is None and not (n.children or any(n.locks))
            ]
            first = STRATEGIES[tree.shape.policy]
            return any(first(leaf) < first(node) for leaf in leaves)
        inner = part != FULL and bool(node.children) and isinstance(tier, HostTier)
        cascades = part == STATE and tree.has_windows
        return inner and not cascades and there_is(tier).lru(part).oldest() is not node

    def _evicting(self, wanted: Evicting) -> Callable[[], None]:
        tree = self._tree
        nodes = [node for node in tree.nodes() if node.value is not None]
        held = {n.id: (len(n), len(n) * n.window, int(n.state is not None)) for n in nodes}
        before = Before(self._leaves(), self._listed(PART), self._listed(STATE), held, self._free())
        self._lost = []
        return lambda: self._problems.extend(self._broken(wanted, before))

    def _leaves(self) -> list[Node]:
        """Unlocked leaves in order of eviction."""
        tree, lru = self._tree, getattr(self._tree, "full_lru", None)
        nodes = [*tree.nodes()] if lru is None else [*lru][::-1]
        leaves = [node for node in nodes if self._is_free_leaf(node)]
        if isinstance(tree, UnifiedTreeCore | RadixCache):
            leaves.sort(key=tree.first)
        return leaves

    @staticmethod
    def _is_free_leaf(node: Node) -> bool:
        below = any(child.value is not None for child in node.children.values())
        return node.value is not None and not below and not any(node.locks[:HOST])

    def _listed(self, part: int) -> list[Node]:
        lru: LruList | None = getattr(
            self._tree, "window_lru" if part == PART else "state_lru", None
        )
        return [] if lru is None else [node for node in lru if not node.locks[part]][::-1]

    def _free(self) -> tuple[int, int, int]:
        pool, states = self._tree.pool, self._tree.states
        windows = pool.windows.available if isinstance(pool, WindowPool) else 0
        return pool.available, windows, 0 if states is None else states.available

    # -- order -------------------------------------------------------------------------------------

    def _broken(self, wanted: Evicting, before: Before) -> Iterator[str]:
        tokens, windows, states = wanted
        here = {node.id for node in self._tree.nodes() if node.value is not None}
        if tokens and not (windows or states):
            gone = [node.id not in here for node in before.leaves]
            kept = [node.id in here and self._is_free_leaf(node) for node in before.leaves]
            if self._overtakes(gone, kept):
                yield "a leaf is evicted before one that the policy evicts earlier"
        inner = [node for node in before.windows if node.id in here]
        gone = [not node.window for node in inner]
        if self._overtakes(gone, [node.window and not node.locks[PART] for node in inner]):
            yield "a window is evicted before one used less recently"
        inner = [node for node in before.states if node.id in here]
        gone = [node.state is None for node in inner]
        kept = [node.state is not None and not node.locks[STATE] for node in inner]
        if not windows and self._overtakes(gone, kept):  # with a window goes the node's state
            yield "a state is evicted before one used less recently"
        if self._tree.shape.host is None:
            yield from self._amount(wanted, before)

    @staticmethod
    def _overtakes(gone: Sequence[bool], kept: Sequence[bool]) -> bool:
        """True if a kept candidate precedes an evicted one."""
        return any(one and other for one, other in zip(gone, accumulate(kept, max), strict=True))

    # -- amount ------------------------------------------------------------------------------------

    def _amount(self, wanted: Evicting, before: Before) -> Iterator[str]:
        """Eviction of more than wanted, or less while candidates remain.

        evicted    | node | node | node, the last |      without it, some part has too few
        wanted     |------------------>|
        """
        now = self._free()
        freed = [after - first for after, first in zip(now, before.free, strict=True)]
        last = self._last(before)
        needed = (count and freed[part] - last[part] < count for part, count in enumerate(wanted))
        if self._lost and not any(needed):
            yield f"{freed} slots of each part are evicted for {list(wanted)}"
        more = (bool(self._leaves()), bool(self._listed(PART)), bool(self._listed(STATE)))
        if any(freed[part] < wanted[part] and more[part] for part in (FULL, PART, STATE)):
            yield f"{freed} slots of each part are evicted for {list(wanted)}, and more could be"

    def _last(self, before: Before) -> list[int]:
        """Slots of the last evicted node, by part, with what is evicted along with it."""
        held = {number: [*slots] for number, slots in before.held.items()}
        freed = list[tuple[Node, bool, list[int]]]()
        for what, node in self._lost:
            left = held[node.id]
            part = {"node": FULL, "window": PART, "state": STATE}[what]
            slots = [count if part in {FULL, kind} else 0 for kind, count in enumerate(left)]
            held[node.id] = [count - one for count, one in zip(left, slots, strict=True)]
            freed.append((node, self._is_tombstone(left), slots))
        total, later, along = [0, 0, 0], None, False
        for node, tombstone, slots in reversed(freed):
            if later not in {None, node} and not (along and node.parent is later):
                break
            total = [one + other for one, other in zip(total, slots, strict=True)]
            later, along = node, tombstone
        return total

    def _is_tombstone(self, slots: Sequence[int]) -> bool:
        """True for a node that is evicted with the leaf below it."""
        if isinstance(self._tree, UnifiedTreeCore | RadixCache):
            return False
        return not slots[PART if self._tree.has_windows else STATE]


class SglangLaws:
    """The laws, with the evictions of the server's tree."""

    def __init__(self, engine: Sglang) -> None:
        self._engine = engine
        self._observe()

    def begin_anew(self) -> None:
        """Observe the tree, which a flush replaces."""
        if self._engine.tree is not self._tree:
            self._observe()

    def _observe(self) -> None:
        self._tree, self._problems = self._engine.tree, list[str]()
        self._room, self._room_before = self._free_on_host(), 0
        self._evictions = Evictions(self._tree)
        scheduler = self._engine.scheduler
        self._notify, self._match = scheduler.on_retract, scheduler.on_match
        scheduler.on_retract, scheduler.on_match = self._retracted, self._matched

    def _free_on_host(self) -> int:
        return self._tree.host_free().get("host_tokens", 0)

    def broken(self, seen: Seen) -> Breach | None:
        """The first law that a request breaks."""
        self.begin_anew()
        self._room_before, self._room = self._room, self._free_on_host()
        problems, self._problems = [*self._problems, *self._evictions.take()], []
        for detail in problems:
            return Breach(kind="broken invariant", detail=detail)
        ended = [
            event.task for event in seen.events if isinstance(event, vocabulary.RequestFinished)
        ]
        of_session = sessions.FIELD in seen.fields
        if seen.reply.error is not None or not seen.alone or of_session or len(ended) != 1:
            return None
        jobs = self._engine._jobs  # noqa: SLF001 - its own server
        req = next((job.req for job in jobs if job.ticket == ended[0]), None)
        if req is None:
            return None
        for detail in (*self._chunks(seen, req), *self._rounds(seen, req), *self._path(seen, req)):
            return Breach(kind="broken invariant", detail=detail)
        lost = (
            *self._missing_state(seen, req),
            *self._missing_fetches(seen, req),
            *self._lost(seen, req),
        )
        return Breach(kind="lost reuse", detail=lost[0]) if lost else None

    # -- the queue ---------------------------------------------------------------------------------

    def _matched(self, req: Req, match: Match) -> None:
        """Compare the order of the queue, as a request of it is matched, with the policy."""
        scheduler, limits = self._engine.scheduler, self._engine.scheduler.limits
        sign = (1 if limits.low_first else -1) * limits.prioritizes
        due = [(sign * req.priority, req.queued) for req in scheduler.waiting]
        if limits.policy == "lof":
            due = [(sign * req.priority, -req.max_new_tokens) for req in scheduler.waiting]
        if limits.policy in {"fcfs", "lof"} and due != sorted(due):
            self._problems.append("requests wait in another order than that of the policy")
        if len(scheduler.running.reqs) > limits.max_running:
            self._problems.append(f"{len(scheduler.running.reqs)} requests run at once")
        if self._match is not None:
            self._match(req, match)

    def _retracted(self, req: Req) -> None:
        """Compare a retracted request with the running ones: it has generated least."""
        scheduler, rules = self._engine.scheduler, self._engine.rules.scheduler
        sorts = scheduler.limits.drafts is None or rules.sorts_drafting
        if sorts and any(self._order(other) < self._order(req) for other in scheduler.running.reqs):
            self._problems.append(f"request {req.id} is retracted before another one")
        if self._notify is not None:
            self._notify(req)

    def _order(self, req: Req) -> tuple[int, int, int]:
        """Sort key of retractions; the smallest goes first."""
        limits = self._engine.scheduler.limits
        sign = (-1 if limits.low_first else 1) * limits.retracts_by_priority
        return sign * req.priority, req.num_output, -req.num_prompt

    # -- chunks ------------------------------------------------------------------------------------

    def _chunks(self, seen: Seen, req: Req) -> Iterator[str]:
        """Chunks that are not consecutive, or shorter than fits."""
        limit, pool = self._engine.scheduler.limits.chunk, self._tree.pool
        chunks = [event for event in seen.events if isinstance(event, vocabulary.ChunkScheduled)]
        if req.retractions or not chunks:
            return
        at, prompt = seen.reply.cached or 0, len(seen.reply.prompt)
        size = min(pool.size, pool.windows.size) if isinstance(pool, WindowPool) else pool.size
        ample = size > 2 * (len(req.tokens) + self._engine.scheduler.room.reserve + 4 * pool.page)
        room = limit // pool.page * pool.page if limit > 0 and ample else 0
        for chunk in chunks:
            if chunk.start != at:
                yield f"a chunk begins at {chunk.start}, after {at} computed tokens"
            at, length = chunk.end, chunk.end - chunk.start
            if 0 < limit < length:
                yield f"a chunk has {length} tokens, of at most {limit}"
            if at < prompt and length + pool.page <= room:
                yield f"a chunk has {length} tokens, and there is room for {room}"
        if at != prompt:
            yield f"the chunks of a prompt of {prompt} tokens end at {at}"

    def _rounds(self, seen: Seen, req: Req) -> Iterator[str]:
        """Rounds of drafts that are not the proposed ones in turn, as far as the reply has them."""
        if seen.forced is None or self._engine.options.drafts is None or req.retractions:
            return
        generated, due, at = seen.reply.generated, list[tuple[int, int]](), 1
        for proposed in req.drafts or ():
            accepted = int(get_common_prefix(proposed, generated[at:]))
            at += accepted + 1
            if at >= len(generated):
                break
            due += [(len(proposed), accepted)] if proposed else []
        rounds = [event for event in seen.events if isinstance(event, vocabulary.DraftsVerified)]
        drafted = [(verified.proposed, verified.accepted) for verified in rounds]
        if drafted[: len(due)] != due:
            yield f"drafts (proposed, accepted) are verified as {drafted}, not as {due}"

    # -- the path of a request ---------------------------------------------------------------------

    def _path(self, seen: Seen, req: Req) -> Iterator[str]:
        """The nodes of a finished request: most recently used, with no more states than the cap."""
        tree = self._tree
        if req.extra_key is not None or any(isinstance(event, RESTARTS) for event in seen.events):
            return
        key = tree.key_of(req.tokens[: self._due(seen)])
        path = [node for node, length in tree.walk(key) if length == len(node)]
        whole = tree.walk(tree.key_of(req.tokens[: req.num_tokens]))
        numbers = {tree.root.id, *(node.id for node, _ in whole)}
        # The lower half of a node that a match has split is used later than the upper one.
        others = [
            node.last_access
            for node in tree.nodes()
            if node.id not in numbers and there_is(node.parent).id not in numbers
        ]
        if path and others and min(node.last_access for node in path) < max(others):
            yield "the nodes of the last request are not those used last"
        if isinstance(tree, UnifiedTreeCore | RadixCache):
            yield from self._prioritized(req, path, len(key))
        yield from self._capped(seen, path)
        yield from self._missing_copies(path)

    def _prioritized(self, req: Req, path: Sequence[Node], count: int) -> Iterator[str]:
        """Nodes of another priority than their request: its prompt stays longest."""
        tree = self._tree
        prompt = len(tree.key_of(req.tokens[: req.num_prompt]))
        plain = not (tree.has_windows or tree.has_states)
        more = int(plain and tree.rules.tree.keeps_prompt_end and prompt < count)
        for node in path:
            due = min(req.priority + more * (node.depth() <= prompt), MOST_PRIORITY)
            own = node.request == req.id and not (tree.stores or req.drafts)
            if node.priority < due or (own and node.priority != due):
                yield f"a node has a priority of {node.priority}, due is {due}"

    def _missing_copies(self, path: Sequence[Node]) -> Iterator[str]:
        """Nodes that the host has room for, and no copy of."""
        tree, host = self._tree, self._tree.shape.host
        if host is None or host.policy != "write_through":
            return
        free = tree.host_free()
        for node in path:
            needed = {"host_tokens": len(node)}
            if node.window:
                needed["host_window_tokens"] = len(node)
            if node.state is not None:
                needed["host_states"] = 1
            fits = all(free.get(name, 0) >= count for name, count in needed.items())
            if node.value is not None and node.host_full is None and fits:
                yield f"{len(node)} tokens are not on the host, where {free} slots are free"

    def _capped(self, seen: Seen, path: Sequence[Node]) -> Iterator[str]:
        """States on a path beyond the cap; the request itself held one of them.

        Copies to the host lock further ones while they are under way.
        """
        tree, cap = self._tree, self._tree.shape.states_per_path
        kept = [event.tokens for event in seen.events if isinstance(event, vocabulary.StateKept)]
        gone = any(
            isinstance(event, (vocabulary.NodeEvicted, vocabulary.WindowEvicted))
            for event in seen.events
        )
        copies = tree.shape.host is not None
        if cap < 0 or not kept or gone or copies or not isinstance(tree, UnifiedTreeCore):
            return
        holders = [node for node in path if node.state is not None]
        free = [node for node in holders[:-1] if len(node.children) == 1]
        if len(holders) > cap and len(free) > 1:
            yield f"a path has {len(holders)} states, of at most {cap}"

    # -- reuse -------------------------------------------------------------------------------------

    def _lost(self, seen: Seen, req: Req) -> Iterator[str]:
        """Tokens of a finished request that a repeated prompt would not match."""
        if req.extra_key is not None or any(
            isinstance(e, EVICTIONS + RESTARTS) for e in seen.events
        ):
            return
        due = self._due(seen)
        key = self._tree.key_of(req.tokens[:due])
        found = self._found(key)
        if found < len(key):
            yield f"{found} of {len(key)} tokens would be found of the {due} computed ones"

    def _missing_fetches(self, seen: Seen, req: Req) -> Iterator[str]:
        """Stored tokens that a request waited for, and did not receive."""
        shape, host = self._tree.shape, self._tree.shape.host
        storage = None if host is None else host.storage
        if storage is None or storage.policy != "wait_complete":
            return
        if self._tree.has_windows or self._tree.has_states or req.extra_key is not None:
            return
        for loss in seen.reply.losses:
            if loss.cause is not vocabulary.NOT_FETCHED:
                continue
            missing = loss.before - loss.after
            least = max(storage.threshold, shape.page)
            if missing >= least and self._room_before >= len(seen.reply.prompt):
                yield f"{missing} tokens in the storage are not fetched"

    def _found(self, key: Integers) -> int:
        """The tokens of a key that device and host hold, up to where a match may end."""
        tree, total, usable, alive = self._tree, 0, 0, inf
        for node, length in tree.walk(key):
            if node.value is None and node.host_full is None:
                break
            total += length
            has_window = node.window or node.host_window is not None
            alive = alive + length if has_window else 0.0
            has_state = node.state is not None or node.host_state is not None
            fits = not tree.has_windows or alive >= tree.shape.window
            if fits and (not tree.has_states or (has_state and length == len(node))):
                usable = total
        return usable

    def _due(self, seen: Seen) -> int:
        """The computed tokens that a match must find: all, or those up to a saved state."""
        tree, end = self._tree, len(seen.reply.prompt) + max(len(seen.reply.generated) - 1, 0)
        branches = any(
            isinstance(event, vocabulary.PrefixMatched) and event.branch for event in seen.events
        )
        if not tree.has_states:  # what reaches a branching point is kept up to there
            return 0 if branches else end
        kept = (event.tokens for event in seen.events if isinstance(event, vocabulary.StateKept))
        return max(kept, default=0)

    def _missing_state(self, seen: Seen, req: Req) -> Iterator[str]:
        """A state that is saved nowhere though the request passed a position for it.

        extra_buffer    [ chunk ...... |64 ...... |128 .. )[ chunk .. |64 .. )  reply |256
        no_buffer       [ chunk ................................. )[ chunk ... )  reply )
        """
        tree, shape = self._tree, self._tree.shape
        gone = any(isinstance(event, EVICTIONS + RESTARTS) for event in seen.events)
        branches = any(
            isinstance(event, vocabulary.PrefixMatched) and event.branch for event in seen.events
        )
        other = req.extra_key is not None or tree.rules.tree.key_without_reply
        if not tree.has_states or gone or branches or other:
            return
        prompt, drafts = len(seen.reply.prompt), self._engine.options.drafts is not None
        end = prompt + max(len(seen.reply.generated) - 1, 0)
        chunks = [event for event in seen.events if isinstance(event, vocabulary.ChunkScheduled)]
        due = [chunk.end for chunk in chunks]
        if shape.extra_buffer:
            whole = [(e.start, (e.end - e.start) // shape.grid * shape.grid) for e in chunks]
            due = [start + length for start, length in whole if length]
            every = tree.track_interval(self._engine.options.mamba_track_interval)
            due += [] if drafts else range(-(-(prompt + 1) // every) * every, end + 1, every)
        elif not drafts:
            due.append(end)
        wanted = max(due, default=0)
        found = self._found(tree.key_of(req.tokens[:wanted]))
        if found < wanted:
            yield f"no state is found after {wanted} tokens, the last one is after {found}"


_STATES: Final = frozenset({"ssm", "delta", "conv"})

_WINDOWS: Final = frozenset({"window"})

BEYOND: Final = (66, 66, 130, 130)
"""Lengths of prompts beyond one chunk of states and beyond two."""


def _corners() -> Iterator[Corner]:
    """Options under which states and window slots change owners: short grids, small pools."""
    for strategy in ("mamba_scheduler_strategy", "mamba_radix_cache_strategy"):
        grid = {strategy: "extra_buffer"}
        many = grid | {"max_mamba_cache_size": 64}
        yield Corner(flags=many, layers=_STATES, crowd=True, edges=BEYOND, steps=10)
        often = grid | {"mamba_track_interval": 64}
        yield Corner(flags=often, layers=_STATES, replies=24, edges=BEYOND, steps=10)
        ends = {strategy: "no_buffer", "chunked_prefill_size": 64}
        yield Corner(flags=ends, layers=_STATES)
    yield Corner(layers=_WINDOWS, window=8, replies=24)
    yield Corner(flags={"page_size": 16}, layers=_WINDOWS, window=4, replies=24)
    pairs = {"speculative_algorithm": "EAGLE", "page_size": 16, "chunked_prefill_size": 64}
    yield Corner(flags=pairs, layers=_WINDOWS)
    host = {"enable_hierarchical_cache": True, "max_total_tokens": 300, "page_size": 1}
    yield Corner(flags=host, steps=14)
    few = host | {"max_total_tokens": 400, "swa_full_tokens_ratio": 0.3}
    yield Corner(flags=few, layers=_WINDOWS, steps=14)
    back = host | {"hicache_write_policy": "write_back", "hicache_ratio": 1.0}
    back |= {"max_total_tokens": 160}
    yield Corner(flags=back, steps=14)
    yield Corner(flags=back | {"max_mamba_cache_size": 6}, layers=_STATES, steps=14)
    file = {"hicache_storage_backend": "file", "prefetch_threshold": 20, "page_size": 4}
    yield Corner(flags=host | file, steps=14)
    one = {"max_mamba_cache_size": 6, "max_running_requests": 1}
    yield Corner(flags=one, layers=_STATES, steps=14)


def _late_corners() -> Iterator[Corner]:
    """Options under which requests overtake each other, have adapters, or copies lock states."""
    two: dict[str, object] = {"max_running_requests": 2}
    first = {"enable_priority_scheduling": True, "priority_scheduling_preemption_threshold": 0}
    yield Corner(flags=two | first, fields={"priority": 1})
    for policy in ("lpm", "shortest-prefill-first"):
        yield Corner(flags=two | {"schedule_policy": policy})
    adapter = {"lora": {"name": "L", "path": "A"}}
    yield Corner(flags={"lora": "A", "max_loras_per_batch": 1}, fields=adapter)
    slow = {"hicache_copy_steps": 8, "max_mamba_cache_size": 12, "chunked_prefill_size": 64}
    copies = slow | {"enable_hierarchical_cache": True}
    yield Corner(flags=copies, layers=_STATES, crowd=True, edges=BEYOND)


def _guided_corners() -> Iterator[Corner]:
    """Storage that requests wait for, queues in each order, sessions, and separate prefixes."""
    host = {"enable_hierarchical_cache": True, "max_total_tokens": 300, "hicache_ratio": 1.0}
    file = host | {"hicache_storage_backend": "file", "prefetch_threshold": 2}
    for policy in ("best_effort", "wait_complete", "timeout"):
        stored = file | {"hicache_storage_prefetch_policy": policy}
        yield Corner(flags=stored, window=8, steps=14)
        yield Corner(flags=stored | {"page_size": 4, "max_mamba_cache_size": 8}, window=8, steps=14)
    back = {"hicache_write_policy": "write_back", "hicache_storage_prefetch_policy": "timeout"}
    yield Corner(flags=file | back | {"max_mamba_cache_size": 8}, window=8, steps=14)
    small = {"max_total_tokens": 300, "max_mamba_cache_size": 16}
    for page in (1, 4):
        yield Corner(flags=small | {"page_size": page}, window=8, steps=14)
    mixed = {"enable_mixed_chunk": True, "chunked_prefill_size": 32}
    yield Corner(flags=mixed, crowd=True, replies=12)
    few = {"max_running_requests": 2, "max_total_tokens": 600, "max_mamba_cache_size": 16}
    first = few | {"enable_priority_scheduling": True}
    first |= {"priority_scheduling_preemption_threshold": 0}
    some = {"priority": (-1, 1, 2)}
    yield Corner(flags=first, fields=some, crowd=True, replies=12)
    low = first | {"schedule_low_priority_values_first": True, "schedule_policy": "lof"}
    yield Corner(flags=low, fields=some, crowd=True, replies=12)
    retracted = first | {"retraction_policy": "priority", "radix_eviction_policy": "priority"}
    yield Corner(flags=retracted, fields=some, crowd=True, replies=24)
    tight: dict[str, object] = {
        "max_total_tokens": 400,
        "max_running_requests": 4,
        "max_mamba_cache_size": 24,
    }
    for page in (1, 4):
        yield Corner(
            flags=tight | {"page_size": page}, window=8, crowd=True, replies=128, long_replies=True
        )
    tight |= {"enable_priority_scheduling": True, "retraction_policy": "priority"}
    yield Corner(flags=tight, fields=some, window=8, crowd=True, replies=128, long_replies=True)
    thinking = {"strip_thinking_cache": True}
    for flags in (small, few, tight | {"max_mamba_cache_size": 16}):
        says = {"require_reasoning": (True, True, False)}
        yield Corner(flags=flags | thinking, fields=says, window=8, replies=12, steps=14)
    short = {"schedule_policy": "shortest-prefill-first", "chunked_prefill_size": 32}
    for page in (1, 4):
        yield Corner(flags=few | short | {"page_size": page}, window=8, crowd=True, edges=BEYOND)
    for order in ("dfs-weight", "lof", "random", "hrrn", "lpm"):
        yield Corner(flags=few | {"schedule_policy": order}, crowd=True)
    keys: dict[str, object] = {"routing_key": ("a", "b")}
    yield Corner(flags=few | {"schedule_policy": "routing-key"}, fields=keys, crowd=True)
    yield Corner(fields={"extra_key": ("a", "b")})
    adapters = ({"name": "L", "path": "A"}, {"name": "M", "path": "B"})
    yield Corner(flags={"lora": "A,B", "max_loras_per_batch": 1}, fields={"lora": adapters})
    whose: list[dict[str, object]] = [{"id": "S"}]
    for part in ({}, {"offset": 5}, {"drop_previous_output": True}, {"replace": True}):
        whose += [{"id": "S", "rid": str(rid), **part} for rid in range(3)]  # of the first requests
    yield Corner(fields={"session_params": tuple(whose)})
    stream = {"id": "T", "streaming": True}
    turns = (stream, stream, stream, stream | {"close": True})
    yield Corner(flags={"enable_streaming_session": True}, fields={"session_params": turns})


TINY: Final = {"max_total_tokens": 24, "chunked_prefill_size": 8, "max_running_requests": 2}
"""A pool of 24 tokens, and chunks of eight."""

STRATEGY: Final = ("mamba_scheduler_strategy", "mamba_radix_cache_strategy")
"""The flag for the kept states, under its name of either release."""


SEARCH: Final[Search[Rules, SglangOptions]] = Search(
    finds_again=lambda flags: flags.tree_page,
    may_decline=False,
    hunted=({}, {"enable_hierarchical_cache": True, "max_total_tokens": 400}),
    corners=tuple(_corners()),
    late_corners=tuple(_late_corners()),
    guided_corners=tuple(_guided_corners()),
    draft_flag="speculative_algorithm",
    aborts_at_once=True,
    laws=SglangLaws,
    scopes=(
        Scope(
            flags={**TINY, "page_size": 4},
            lengths=(4, 5, 8),
            acts=(*ACTS, "together", "cancel"),
            without=STATES,
            window=4,
        ),
        Scope(
            flags={**TINY, **dict.fromkeys(STRATEGY, "no_buffer"), "max_mamba_cache_size": 8},
            lengths=(4, 8, 9),
            acts=(*ACTS, "together", "cancel"),
            layers=STATES,
        ),
        Scope(
            flags={
                **dict.fromkeys(STRATEGY, "extra_buffer"),
                "max_total_tokens": 200,
                "chunked_prefill_size": 64,
                "max_mamba_cache_size": 8,
                "max_running_requests": 2,
                "mamba_track_interval": 64,
            },
            lengths=(1, 64, 65),
            layers=STATES,
        ),
    ),
    incidents=("cancel", "arrival"),
    exercised={
        "node-evicted": "eviction",
        "state-evicted": "eviction",
        "prefix-kept": "save",
        "loaded-from-host": "load",
    },
)
