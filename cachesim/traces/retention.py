"""Policies for the states to keep in a cache of a given size, and a bound for that size.

    prompt     | a | b | c | d | e |        keys and values of each block, states at some ends
    kept         s       s       s          3 of 5 states
    next one   | a | b | c | x |            c is held and its state is, so x is computed from there
               | a | b | y |                b has no state: b and y are computed from the end of a

A policy takes the place of a profile (`keep:branch`), the bytes are `--set memory=40GB` of the
model that `--sizes` names. A prompt reuses the blocks up to the last state that it has in common
with what is held; keys and values behind the last state of all are not held. Requests come one
after the other. No server works exactly like this: engines round, pin and split memory in ways of
their own.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, Final, TypeAlias

from cachesim.engines.held import sizes_of
from cachesim.errors import InputError
from cachesim.model.presets import preset
from cachesim.traces.memory import MEMORY, memory_in
from cachesim.traces.replay import Cell, PendingRequest, Replayed, blocks_of

PREFIX: Final = "keep:"
BOUND: Final = "bound"

Path: TypeAlias = Sequence[tuple[int, int]]
"""Blocks with their tokens."""


@dataclass(slots=True, eq=False)
class Node:
    """A block that is held."""

    size: int
    depth: int  # tokens up to its end
    parent: "Node | None"
    block: int
    children: int = 0
    state: bool = False  # the state at its end is held
    used: int = 0  # when that was kept or resumed last


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of a policy."""

    memory: int
    interval: int = 8  # sparse: blocks from one state to the next
    alpha: float = 1.0  # utility: weight of the tokens saved


@dataclass(slots=True)
class Seen:
    """Information for a policy after a request."""

    rules: Rules
    now: int
    path: Path
    known: int  # leading blocks that were held
    future: "Future | None"


# -- which states are kept -------------------------------------------------------------------------


def every(seen: Seen) -> Iterator[int]:
    """The end of each block."""
    yield from range(len(seen.path))


def sparse(seen: Seen) -> Iterator[int]:
    """A block end at regular intervals, and the last."""
    yield from range(seen.rules.interval - 1, len(seen.path), seen.rules.interval)
    yield len(seen.path) - 1


def last(seen: Seen) -> Iterator[int]:
    """The end of the request."""
    yield len(seen.path) - 1


def branch(seen: Seen) -> Iterator[int]:
    """The block after which the request parts from what is held, and the end of the request."""
    yield seen.known - 1
    yield len(seen.path) - 1


def foreseen(seen: Seen) -> Iterator[int]:
    """Ends from which a later request resumes."""
    for at, (block, _) in enumerate(seen.path):
        if seen.future is not None and seen.future.next(block, seen.now) is not None:
            yield at


class Future:
    """For each block, the requests whose last known block it is."""

    def __init__(self, requests: Sequence[tuple[Path, Path, int]]) -> None:
        self._resumed: dict[int, list[int]] = defaultdict(list)
        known: dict[int, int] = {}
        for now, (prompt, kept, length) in enumerate(requests):
            depth, resumed = 0, None
            for block, size in prompt:
                depth += size
                if known.get(block) != size or depth >= length:
                    break
                resumed = block
            if resumed is not None:
                self._resumed[resumed].append(now)
            known.update(kept)

    def next(self, block: int, now: int) -> int | None:
        """The next request that resumes there."""
        times = self._resumed.get(block, ())
        at = bisect_right(times, now)
        return times[at] if at < len(times) else None


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy: which states are kept, and which are evicted first."""

    about: str
    keeps: Callable[[Seen], Iterator[int]] = every
    evicts: str = "lru"
    own: frozenset[str] = frozenset()  # its settings beside the memory


POLICIES: Final[Mapping[str, Policy]] = {
    "every": Policy("a state for each block; the one used longest ago goes first"),
    "sparse": Policy("a state for every `interval` blocks", sparse, own=frozenset({"interval"})),
    "last": Policy("the state at the end of each request", last),
    "branch": Policy("the last block that was held already, and the end of the request", branch),
    "utility": Policy(
        "as branch; evicted by age and tokens saved per byte, as Marconi by its FLOPs",
        branch,
        "utility",
        frozenset({"alpha"}),
    ),
    "foreseen": Policy(
        "what later requests resume from; the one needed last goes first", foreseen, "furthest"
    ),
    BOUND: Policy("upper bound of all policies for this memory"),
}
"""All policies, by name."""


# -- the cache -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Cache:
    """Blocks and states in a given size."""

    policy: Policy
    rules: Rules
    token: int
    state: int
    future: Future | None = None
    nodes: dict[int, Node] = field(default_factory=dict)
    bytes: int = 0
    _queue: list[tuple[int, int, int]] = field(default_factory=list)  # priority, block, used

    def serve(self, now: int, prompt: Path, kept: Path, length: int) -> tuple[int, int]:
        """The tokens that a request reuses, and those of it that are held."""
        held = self._held(prompt)
        nodes = [node for node in held if node.state and node.depth < length]
        resumed = nodes[-1] if nodes else None
        self._keep(now, kept, resumed)
        while self.bytes > self.rules.memory and self.nodes:
            victim = self._useless(now) if self.policy.evicts == "utility" else self._first()
            if victim is None:
                break
            victim.state = False
            self.bytes -= self.state
            self._prune(victim)
        return resumed.depth if resumed else 0, held[-1].depth if held else 0

    def _held(self, path: Path) -> list[Node]:
        nodes = []
        for block, size in path:
            node = self.nodes.get(block)
            if node is None or node.size != size:
                break
            nodes.append(node)
        return nodes

    def _keep(self, now: int, path: Path, resumed: Node | None) -> None:
        """Add the states of a request that were computed in it, and the blocks up to the last."""
        held = self._held(path)
        seen = Seen(self.rules, now, path, len(held), self.future)
        wanted = {at for at in self.policy.keeps(seen) if at >= 0}
        start = resumed.depth if resumed is not None else 0
        parent: Node | None = None
        touched = [] if resumed is None else [resumed]
        for at, (block, size) in enumerate(path[: max(wanted, default=-1) + 1]):
            node = self.nodes.get(block) if at < len(held) else None
            if node is None:
                if block in self.nodes:  # another length of it: what follows hangs on that
                    break
                depth = size + (parent.depth if parent else 0)
                node = self.nodes[block] = Node(size, depth, parent, block)
                self.bytes += size * self.token
                if parent is not None:
                    parent.children += 1
            if at in wanted and node.depth > start:
                self.bytes += 0 if node.state else self.state
                node.state = True
                touched.append(node)
            parent = node
        for node in touched:
            node.used = now
            self._offer(node, now)
        if parent is not None:
            self._prune(parent)  # the loop may have ended before a state

    def _offer(self, node: Node, now: int) -> None:
        """Queue a state, first of all those to be evicted first."""
        if self.policy.evicts == "furthest" and self.future is not None:
            after = self.future.next(node.block, now)
            heappush(self._queue, (-after if after is not None else -(1 << 60), node.block, now))
        else:
            heappush(self._queue, (node.used, node.block, node.used))

    def _first(self) -> Node | None:
        """The first of the queue that still stands as it was queued, and frees memory."""
        while self._queue:
            _, block, used = heappop(self._queue)
            node = self.nodes.get(block)
            stands = node is not None and node.state and node.used == used
            if node is not None and stands and (self.state or not node.children):
                return node
        return None

    def _useless(self, now: int) -> Node | None:
        """The state with the lowest utility: recency, and tokens saved per byte that it takes.

        Follows Marconi's score: both terms are scaled to the range of the states that are held.
        """
        nodes = [node for node in self.nodes.values() if node.state]
        nodes = [node for node in nodes if self.state or not node.children]
        if not nodes:
            return None
        saved = [self._saved(node) for node in nodes]
        low, high = min(saved), max(saved)
        old = min(node.used for node in nodes)
        span, range_ = max(1, now - old), (high - low) or 1.0
        scores = [
            (node.used - old) / span + self.rules.alpha * (worth - low) / range_
            for node, worth in zip(nodes, saved, strict=True)
        ]
        return nodes[min(range(len(nodes)), key=scores.__getitem__)]

    def _saved(self, node: Node) -> float:
        """Tokens more than from the state before, per byte that its eviction frees."""
        at = node.parent
        while at is not None and not at.state:
            at = at.parent
        tokens = node.depth - (at.depth if at else 0)
        return tokens / (self.state + (0 if node.children else tokens * self.token) or 1)

    def _prune(self, node: Node) -> None:
        """Drop blocks that no state follows."""
        at: Node | None = node
        while at is not None and not at.state and not at.children:
            del self.nodes[at.block]
            self.bytes -= at.size * self.token
            parent = at.parent
            if parent is not None:
                parent.children -= 1
                if parent.state and not self.state:
                    self._offer(parent, parent.used)
            at = parent


# -- the bound -------------------------------------------------------------------------------------


class Ideal:
    """The most that can be reused if the bytes are held to on average over all requests.

    A request that reuses d blocks needs each of them since it was used last, and one state since
    its end was passed last. Of these byte-requests there are `memory` times the requests in all;
    they are spent where they save the most tokens.
    """

    def __init__(self, token: int, state: int) -> None:
        self.token, self.state = token, state
        self._passed: dict[int, tuple[int, int]] = {}  # by block: its size, the last request
        self._steps: list[tuple[int, int]] = []  # tokens more, byte-requests more

    def add(self, now: int, prompt: Path, kept: Path, length: int) -> None:
        """The choices of a request: for more reuse, more bytes for longer."""
        options = [(0, 0)]
        tokens = cost = 0
        for block, size in prompt:
            before, at = self._passed.get(block, (0, 0))
            tokens += size
            if before != size or tokens >= length:
                break
            cost += size * self.token * (now - at)
            # Add a point, and drop those that a mix of others makes cheaper.
            point = (tokens, cost + self.state * (now - at))
            while len(options) > 1:
                (v0, c0), (v1, c1) = options[-2:]
                if (c1 - c0) * (point[0] - v1) < (point[1] - c1) * (v1 - v0):
                    break
                options.pop()
            options.append(point)
        self._steps += [
            (more - tokens, dearer - cost) for (tokens, cost), (more, dearer) in pairwise(options)
        ]
        self._passed.update((block, (size, now)) for block, size in kept)

    def reused(self, memory: int, requests: int) -> int:
        """The bound, in tokens."""
        left, hits = memory * requests, 0.0
        for tokens, cost in sorted(self._steps, key=lambda step: step[1] / step[0]):
            share = min(1.0, left / cost) if cost else 1.0
            hits += share * tokens
            left -= cost
            if left <= 0:
                break
        return int(hits)


# -- a cell ----------------------------------------------------------------------------------------


def is_policy(cell: Cell) -> bool:
    """True if the profile names a policy instead of a server."""
    return cell.profile.startswith(PREFIX)


def check_policy(cell: Cell) -> None:
    """Raise for a policy that cannot be run."""
    name = cell.profile.removeprefix(PREFIX)
    if name not in POLICIES:
        names = ", ".join(f"{PREFIX}{policy}" for policy in POLICIES)
        raise InputError(f"there is no policy {cell.profile!r}; there are {names}")
    given = dict(cell.options)
    if unknown := given.keys() - {MEMORY, *POLICIES[name].own}:
        has = ", ".join(sorted({MEMORY, *POLICIES[name].own}))
        raise InputError(f"{cell.profile} has no setting {min(unknown)!r}; it has {has}")
    if memory_in(given) is None or cell.measured is None:
        raise InputError(f"{cell.profile} needs bytes: write --set memory=40GB and --sizes MODEL")
    if cell.fleet is not None or cell.source.turn:
        msg = f"{cell.profile} is a policy and no server: leave out --replicas and --turn"
        raise InputError(msg)
    if not isinstance(given.get("interval", 1), int) or given.get("interval", 1) < 1:
        raise InputError(f"interval is {given['interval']}; write a number of blocks from 1")
    if not isinstance(given.get("alpha", 1), int | float) or given.get("alpha", 1) < 0:
        raise InputError(f"alpha is {given['alpha']}; write a number from 0")
    _bytes(cell)


def _bytes(cell: Cell) -> tuple[int, int]:
    """Bytes of a token as simulated, and of a state."""
    if cell.measured is None:
        return 0, 0
    spec = cell.measured.over(preset(cell.model), cell.source.scale, "a policy")
    token, window, state = sizes_of(spec)
    if window:
        msg = f"{cell.profile}: the model has windows, whose blocks these policies do not keep"
        raise InputError(msg)
    return token, state


def paths_of(request: PendingRequest, unit: int, scale: int) -> tuple[Path, Path, int]:
    """The prompt's blocks, those that can be kept, and the length of the prompt."""
    prompt = blocks_of(request.trace, unit, scale)
    whole = prompt if request.trace.sizes is not None else prompt[:-1]
    if request.trace.sizes is None and prompt[-1][1] == unit // scale:
        whole = prompt
    return prompt, request.trace.kept or whole, len(request.prompt)


def play_policy(cell: Cell, progress: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
    """Replay a cell on a policy."""
    unit, _ = cell.source.open()
    scale, (token, state) = cell.source.scale, _bytes(cell)
    memory = memory_in(dict(cell.options)) or 0
    policy = POLICIES[cell.profile.removeprefix(PREFIX)]
    rules = Rules(memory, **{name: value for name, value in cell.options if name in policy.own})
    ahead = policy.evicts == "furthest"
    future = (
        Future([paths_of(pending_request, unit, scale) for pending_request in cell.requests()])
        if ahead
        else None
    )
    cache, ideal, found = (
        Cache(policy, rules, token, state, future),
        Ideal(token, state),
        Replayed(),
    )
    for now, request in enumerate(cell.requests()):
        prompt, kept, length = paths_of(request, unit, scale)
        found.add_trace(request.trace)
        found.prompt_tokens += length
        if cell.profile == PREFIX + BOUND:
            ideal.add(now, prompt, kept, length)
            found.lost["not-held"] += min(request.known, length - 1)
        else:
            cached, held = cache.serve(now, prompt, kept, length)
            found.cached += cached
            known = max(cached, min(request.known, length - 1))
            found.lost["state-missing"] += min(known, held) - cached if held > cached else 0
            found.lost["not-held"] += known - max(cached, min(known, held))
        progress(found.requests)
    if cell.profile == PREFIX + BOUND:
        found.cached = ideal.reused(memory, found.requests)
        found.lost["not-held"] -= found.cached
    by = cell.measured.by if cell.measured else ""
    return {
        "scale": scale,
        **found.as_dict(),
        "held": {"requests": []},
        "bytes": None,
        "notes": [
            *found.notes(cell.source, cell.profile),
            f"{cell.profile}: {policy.about}",
            f"a token of the trace takes {token // scale:,} bytes and a state {state:,}, by {by}",
        ],
    }
