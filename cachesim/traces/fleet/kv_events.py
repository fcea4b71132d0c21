"""A simulated server as a replica: the KV events that a router receives of it.

    engine's event      BlocksPublished  BlockEvicted  PrefixKept  NodeEvicted  chunk of a prompt
    router receives     blocks stored    removed       stored      removed      prefill is done

A stored block is reported under the key of its prefix, which does not depend on the replica.
"""

from collections import Counter
from collections.abc import Callable
from functools import cached_property

from cachesim.engines.base import Engine, Ticket
from cachesim.engines.events import ChunkEvent, Event
from cachesim.engines.sglang import vocabulary as sglang_events
from cachesim.engines.sglang.server import Sglang
from cachesim.engines.vllm import vocabulary as vllm_events
from cachesim.engines.vllm.server import Vllm
from cachesim.play.loop import Loop
from cachesim.traces.fleet.router import Arrival, Dispatcher, Replica, RouterError, prefix_keys


class Absent(Replica):
    """A replica that another process simulates: here it is always idle."""

    unit, blocks, most, evictions = 1, 0, 0, 0

    def __init__(self, number: int) -> None:
        self.number = number
        self.inside: dict[Ticket, Arrival] = {}

    def start(self) -> None:
        """Begin anew."""

    def listen(self, dispatcher: Dispatcher) -> None:
        """Report no events."""

    def usage(self) -> float | None:
        return None

    def peek(self, arrival: Arrival) -> int | None:
        return None


class Server(Replica):
    """A replica with its engine, and the requests inside."""

    def __init__(self, number: int, create: Callable[[], Engine]) -> None:
        self.number = number
        self.create = create
        self.dispatcher: Dispatcher | None = None
        self.now = 0.0
        self.most = 0  # requests at once
        self.evictions = 0  # for a limit in bytes
        self.silent = False  # what it holds for a prompt is not known
        self.start()

    def start(self) -> None:
        """Begin with an empty server."""
        self.engine = self.create()
        self.loop = Loop(self.engine)
        self.inside: dict[Ticket, Arrival] = {}
        self._unstarted: set[int] = set()
        self._keys: dict[int, list[int]] = {}  # of the requests inside, prompt and reply
        self._kept: dict[int, dict[int, int]] = {}  # SGLang: by request, keys by their last token
        self._blocks: dict[int, int] = {}  # vLLM: key of each block
        self._copies: Counter[int] = Counter()  # blocks or nodes with a key
        self.load = self.waiting = 0
        self.alive = True

    def listen(self, dispatcher: Dispatcher) -> None:
        """Send events to a router."""
        self.dispatcher = dispatcher
        if dispatcher.needs_events and not isinstance(self.engine, Vllm | Sglang):
            raise RouterError(
                f"this router needs KV events, which {self.engine.profile.engine} does not give "
                "here; vllm and sglang do"
            )
        self.engine.after_each_event(self._report)

    # -- what a router sees ------------------------------------------------------------------------

    @cached_property
    def unit(self) -> int:
        engine = self.engine
        if isinstance(engine, Vllm):
            return engine.manager.groups[self._group].block
        return engine.tree.shape.page if isinstance(engine, Sglang) else 1

    @cached_property
    def blocks(self) -> int:
        engine = self.engine
        if isinstance(engine, Vllm):
            return engine.manager.pool.size
        return engine.tree.pool.size // self.unit if isinstance(engine, Sglang) else 0

    @cached_property
    def _group(self) -> int:
        """vLLM: the group whose blocks are reported; attention if there is any."""
        groups = self.engine.manager.groups if isinstance(self.engine, Vllm) else ()
        kinds = [group.kind for group in groups]
        return kinds.index("full") if "full" in kinds else 0

    def usage(self) -> float | None:
        engine = self.engine
        if isinstance(engine, Vllm):
            pool = engine.manager.pool
            return 1 - pool.num_free / (pool.size - 1)
        if isinstance(engine, Sglang):
            pool_, free = engine.tree.pool, engine.tree.evictable[0]
            return 1 - (pool_.available + free) / pool_.size
        return None

    def peek(self, arrival: Arrival) -> int | None:
        known = self.engine.peek(arrival.tokens)
        self.silent |= known is None
        return None if known is None else int(known)

    # -- requests ----------------------------------------------------------------------------------

    def enter(self, ticket: Ticket, arrival: Arrival) -> None:
        """A request was submitted."""
        self.inside[ticket] = arrival
        self.load += 1
        self.most = max(self.most, self.load)
        self.waiting += 1
        self._unstarted.add(int(ticket))

    def leave(self, ticket: Ticket) -> Arrival:
        """A request has ended."""
        arrival = self.inside.pop(ticket)
        self._start(int(ticket))
        self.load -= 1
        self._keys.pop(int(ticket), None)
        if self.dispatcher is not None:
            self.dispatcher.finished(arrival, self.number)
        return arrival

    def _start(self, task: int) -> None:
        if task in self._unstarted:
            self._unstarted.discard(task)
            self.waiting -= 1

    # -- events ------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Translate the engine's last event."""
        event: Event = self.engine.events[-1]
        dispatcher = self.dispatcher
        if dispatcher is None:
            return
        self.evictions += event.for_bytes
        if isinstance(event, ChunkEvent):
            self._start(event.task)
            arrival = self.inside.get(Ticket(event.task))
            if arrival is not None and event.start < len(arrival.prompt) <= event.end:
                dispatcher.prefilled(arrival, self.number)
        elif dispatcher.needs_events:
            self._tell(event, dispatcher)

    def _tell(self, event: Event, dispatcher: Dispatcher) -> None:
        match event:
            case vllm_events.BlocksPublished() if event.group == self._group:
                keys, unit = self._keys_of(event.task), self.unit
                new = []
                for block, end in zip(event.blocks, event.ends, strict=True):
                    if end % unit == 0 and end // unit <= len(keys):
                        self._blocks[block] = key = keys[end // unit - 1]
                        self._copies[key] += 1
                        new += [key] if self._copies[key] == 1 else []
                dispatcher.stored(self.number, new, self.now)
            case vllm_events.BlockEvicted() if event.group == self._group:
                self._gone([self._blocks.pop(event.block, None)], dispatcher)
            case sglang_events.PrefixKept() if event.fresh:
                keys, unit = self._keys_of(event.task), self.unit
                ends = range((event.tokens - event.fresh) // unit + 1, event.tokens // unit + 1)
                fresh = {end * unit: keys[end - 1] for end in ends if end <= len(keys)}
                self._kept.setdefault(event.task, {}).update(fresh)
                self._copies.update(fresh.values())
                once = [key for key in fresh.values() if self._copies[key] == 1]
                dispatcher.stored(self.number, once, self.now)
            case sglang_events.NodeEvicted():
                kept = self._kept.get(event.request, {})
                ends = range(event.start + self.unit, event.end + 1, self.unit)
                self._gone([kept.pop(end, None) for end in ends], dispatcher)
                if not kept:
                    self._kept.pop(event.request, None)

    def _gone(self, keys: list[int | None], dispatcher: Dispatcher) -> None:
        lost = []
        for key in keys:
            if key is None:
                continue
            self._copies[key] -= 1
            if not self._copies[key]:
                del self._copies[key]
                lost.append(key)
        dispatcher.removed(self.number, lost, self.now)

    def _keys_of(self, task: int) -> list[int]:
        """Keys of a running request's prompt and reply."""
        if task not in self._keys:
            arrival = self.inside[Ticket(task)]
            text = arrival.prompt.copy()
            text += arrival.reply
            self._keys[task] = prefix_keys(text, self.unit)
        return self._keys[task]
