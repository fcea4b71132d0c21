"""Prefill on another server, whose blocks and states this one reads (`NixlConnector`).

    prefill server    | tokens 0 .. N - b |    held until they are read, or the lease ends
    this server          waiting    loading    | b tokens, decode

b is 1 in models with states, else 0. A proxy sends each request to the prefill server first, for
one token; both servers have the same options, and step in turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, TypeAlias

from cachesim.engines import base
from cachesim.engines.base import Ticket
from cachesim.engines.vllm.block_pool import NULL, cdiv
from cachesim.engines.vllm.connector import Connector
from cachesim.engines.vllm.coordinator import KVCacheManager
from cachesim.engines.vllm.options import RING, VllmOptions
from cachesim.engines.vllm.request import Request, Transfers
from cachesim.engines.vllm.runner import Runner
from cachesim.engines.vllm.scheduler import NOTHING_STORED, Scheduler

Tables: TypeAlias = tuple[Sequence[int], ...]
"""A request's blocks, by group."""


class PrefillServer(Protocol):
    """State of the prefill server that the decode server reads."""

    manager: KVCacheManager
    runner: Runner
    scheduler: Scheduler
    idle: int

    @property
    def in_flight(self) -> bool: ...
    def submit(self, request: base.Request) -> Ticket: ...
    def step(self) -> bool: ...
    def forget(self, ticket: Ticket) -> None: ...
    def cancel(self, ticket: Ticket) -> None: ...


@dataclass(slots=True, kw_only=True)
class Prefill:
    """A request on the prefill server, and the blocks that it holds for this one."""

    ticket: Ticket
    request: Request
    made: Request  # on the prefill server
    blocks: Tables | None = None  # remote_block_ids, of a finished request
    left: int = 0  # steps of the lease
    holds: bool = True
    asked: bool = False  # one transfer for each request


def ring_rows(runner: Runner) -> int:
    """The whole rows of a ring that a read loads. Follows `register_kv_caches`.

    layers at one address | ring 32,768 bytes | attention 19,008, the last |    4 rows of 8

    Trap: the rest of the block is what it was. A group of layers is one page here.
    """
    spec, pages = runner.network.spec, dict[str, int]()
    for group in runner.groups:
        token = sum(spec.key_bytes(layer) + spec.value_bytes(layer) for layer in group.layers)
        pages["ring" if group.kind == "ring" else "attention"] = group.block * token
    if runner.rules.ring_regions == "whole-row" or len(pages) < 2 or not pages["ring"]:
        return RING
    return min(RING, pages["attention"] * RING // pages["ring"])


@dataclass(slots=True)
class Nixl(Connector):
    """Both servers' sides (`NixlPullConnectorScheduler`, `NixlPullConnectorWorker`)."""

    fails_whole: ClassVar[bool] = True

    ahead: PrefillServer = field(kw_only=True)
    lease: int = field(kw_only=True)  # steps; 0: heartbeats renew it
    rows: int = field(kw_only=True)  # of a ring, which a read brings
    prefills: dict[int, Prefill] = field(default_factory=dict)
    delays: dict[int, int] = field(default_factory=dict)
    """Turns between a request's arrival at the prefill server and here."""

    @classmethod
    def of(
        cls, manager: KVCacheManager, runner: Runner, ahead: PrefillServer, options: VllmOptions
    ) -> "Nixl":
        lease, steps = options.kv_lease_steps, options.load_steps
        rows = ring_rows(runner)
        return cls(manager, runner.pages, frozenset(), steps, ahead=ahead, lease=lease, rows=rows)

    def __post_init__(self) -> None:
        self.ahead.scheduler.external = lambda *_: NOTHING_STORED
        self.ahead.scheduler.requires_delivery = True
        # The prefill server keeps the blocks of a finished request until they are read.
        self.ahead.scheduler.delays_free = lambda request: request.status == "finished"

    @property
    def busy(self) -> bool:
        """True if a request, or a step without one, is still on the prefill server."""
        waits = any(prefill.blocks is None for prefill in self.prefills.values())
        return waits or self.ahead.in_flight

    @property
    def leaves(self) -> int:
        """Tokens at the end of a prompt that are computed here. Follows `_prefill_backoff`."""
        return int(any(group.kind == "mamba" for group in self.manager.groups))

    def begin(self, request: Request, asked: base.Request) -> None:
        """Send a request to the prefill server. Follows `_truncate_request_for_prefill`."""
        given = dict(asked.options or {})
        given.pop("failed_block", None)
        # A recurrent layer has one state, at the end: it stops one token early, so that this server
        # has one to compute.
        prompt = asked.prompt[: self._to_load(request)] if request.reads_cache else asked.prompt
        ticket = self.ahead.submit(
            replace(asked, prompt=prompt, predict=1, reply=None, drafts=None, options=given)
        )
        made = next(
            waiting for waiting in self.ahead.scheduler.waiting if waiting.id == int(ticket)
        )
        self.prefills[request.id] = Prefill(ticket=ticket, request=request, made=made)
        self.delays[request.id] = -1  # may come with the first turn

    def advance(self) -> tuple[list[Prefill], list[Prefill]]:
        """Step the prefill server; return its finished requests and expired leases."""
        busy, done, ended = self.busy, [], []
        for prefill in self.prefills.values():
            self.delays[prefill.request.id] += prefill.blocks is None
            prefill.left -= prefill.blocks is not None and prefill.holds
            # The lease is over: the blocks are freed though nobody has read them.
            if prefill.blocks is not None and prefill.holds and not prefill.left:
                self._free(prefill)
                ended.append(prefill)
        if busy:
            if any(
                prefill.holds for prefill in self.prefills.values() if prefill.blocks is not None
            ):
                self.ahead.idle = 0  # reads will free blocks
            self.ahead.step()
        for prefill in self.prefills.values():
            if prefill.blocks is None and prefill.made.status == "finished":
                tables = self.ahead.manager.tables_of(prefill.made)
                prefill.blocks, prefill.left = self._clipped(tables), self.lease
                self.ahead.forget(prefill.ticket)
                done.append(prefill)
        return done, ended

    def withdraw(self, request: Request) -> bool:
        """Cancel a request; True if it was still on the prefill server."""
        held = self.prefills.get(request.id)
        if held is None or held.asked:  # a read under way ends by itself
            return False
        del self.prefills[request.id]
        if held.blocks is None:
            del self.delays[request.id]
            self.ahead.cancel(held.ticket)
            return True
        self._free(held)
        return False

    def find(self, request: Request, local: int) -> tuple[int, bool]:
        """The prefilled tokens beyond the hit. Follows `get_num_new_matched_tokens`."""
        held = self.prefills.get(request.id)
        # One transfer for each request: after a preemption it computes its prompt here.
        if held is None or held.asked or not request.reads_cache:
            return 0, False
        count = self._to_load(request) - local
        # The usual case; else a hit covers all, and nothing is read.
        if count > 0:
            self.reach[request.id] = [local + count]
            return count, True
        held.asked = True  # a full hit: the prefill server is notified at once
        self._free(held)
        return 0, False

    def promise(self, request: Request, local: int, tokens: int) -> None:
        Connector.promise(self, request, local, tokens)
        self.prefills[request.id].asked = True

    def get_finished(self) -> Transfers:
        """The reads that end with this step; a failed one loads nothing."""
        transfers = Connector.get_finished(self)
        for request in transfers.received:
            self._free(self.prefills.pop(request.id))
        return transfers

    def save(self, request: Request) -> None:
        """Forget a finished request."""
        held = self.prefills.pop(request.id, None)
        if held is not None:
            self._free(held)

    def _to_load(self, request: Request) -> int:
        """Prompt tokens of the prefill server. Follows `_get_remote_prefill_token_count`."""
        # A prompt of one token has none to leave out.
        return request.num_prompt - (self.leaves if request.num_prompt > 1 else 0)

    def _load_span(
        self, request: Request, span: tuple[int, int], tables: Sequence[Sequence[int]]
    ) -> None:
        """Read into the blocks without ids; of the other server's, the last ones.

        Follows `update_state_after_alloc` and `_read_blocks`.
        """
        if span[0] == span[1]:
            return
        theirs = self.prefills[request.id].blocks or ()
        pool, pages = self.manager.pool, self.ahead.runner.pages
        new = [
            # Blocks with ids are a hit, whose content is here already.
            [block for block in table if block != NULL and pool.key[block] is None]
            for table in tables
        ]
        for group, (mine, read) in enumerate(zip(self._clipped(new), theirs, strict=True)):
            # From the end: a hit here makes this side's list shorter, and its first blocks are the
            # ones that are there.
            for block, source in zip(reversed(mine), reversed(read), strict=False):
                self.pages.reach(block)
                pages.reach(source)
                content = pages.content(group, source)
                if self.manager.groups[group].kind == "ring":
                    content = {
                        layer: tuple(part[: self.rows] for part in parts)
                        for layer, parts in content.items()
                    }
                self.pages.fill(group, block, content)

    def _clipped(self, tables: Sequence[Sequence[int]]) -> Tables:
        """The blocks that are exchanged. Follows `get_exchange_clipped_blocks`."""
        kept = []
        for group, table in zip(self.manager.groups, tables, strict=True):
            most = cdiv(group.window, group.block) + 1 if group.kind == "window" else len(table)
            kept.append(tuple(table)[-1:] if group.kind == "mamba" else tuple(table)[-most:])
        return tuple(kept)

    def _free(self, held: Prefill) -> None:
        if held.holds and held.blocks is not None:
            self.ahead.manager.free(held.made)
        held.holds = False
