"""An external store of blocks (a KV connector): it survives resets, may report too many tokens.

`store-async` loads in later steps: the scheduler allocates the blocks, and the request waits.

    step        n: promised, blocks allocated   ...   n + steps: filled, given ids   computed
    request     loading                               waiting                        running

It stores the blocks of finished requests, by prefix and group. A request is promised the longest
prefix beyond its own hit whose blocks are stored. `store-attention` loads attention's blocks only
but promises those of all groups: the defect reported for several connectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from cachesim.engines.vllm.block_pool import NULL, GroupSpec, cdiv
from cachesim.engines.vllm.coordinator import KVCacheManager
from cachesim.engines.vllm.options import VllmOptions
from cachesim.engines.vllm.request import Request, Step, Transfers
from cachesim.engines.vllm.runner import Pages, Runner
from cachesim.units import Array

LOADS: Final[dict[str, frozenset[str]]] = {
    "store": frozenset({"full", "window", "chunked", "mamba"}),
    "store-async": frozenset({"full", "window", "chunked", "mamba"}),
    "store-attention": frozenset({"full"}),
}
"""The kinds of groups whose blocks a store loads."""


@dataclass(slots=True)
class Load:
    """A pending load: its remaining steps, and its failing block, if any."""

    request: Request
    span: tuple[int, int]
    steps: int
    fails: int | None


@dataclass(slots=True)
class Connector:
    """The scheduler's and the worker's side in one (`KVConnectorBase_V1`)."""

    fails_whole: ClassVar[bool] = False
    """True if a failed load is reported by its request (`failed_recving`) in every model."""

    manager: KVCacheManager
    pages: Pages
    loads: frozenset[str]
    steps: int = 0  # of a load; 0: before the step of its promise runs
    steps_ahead: int = 0  # steps in flight, whose outputs come before that of a promise's step
    failing: dict[int, int] = field(default_factory=dict)  # request -> block of its first load
    loading: dict[int, Load] = field(default_factory=dict)
    kept: dict[tuple[int, int], dict[int, tuple[Array, ...]]] = field(default_factory=dict)
    promised: dict[int, tuple[int, int]] = field(default_factory=dict)  # request -> [from, to)
    reach: dict[int, list[int]] = field(default_factory=dict)
    """End of each promise to a request, 0 for none."""

    @classmethod
    def open(
        cls, options: VllmOptions, manager: KVCacheManager, runner: Runner
    ) -> "Connector | None":
        """The store of the options, or None."""
        if options.connector == "none":
            return None
        steps = options.load_steps if options.connector == "store-async" else 0
        return cls(manager, runner.pages, LOADS[options.connector], steps)

    @property
    def in_transit(self) -> bool:
        """True while a transfer has not ended, so that steps go on."""
        return bool(self.loading)

    @property
    def held(self) -> set[int]:
        """The prefixes whose blocks are stored."""
        return {number for number, _ in self.kept}

    def find(self, request: Request, local: int) -> tuple[int, bool]:
        """Number of stored tokens beyond the hit, in whole scheduler blocks.

        True if they are loaded in later steps. Follows `get_num_new_matched_tokens`: one number for
        all groups.
        """
        size, unit = self.manager.sizes.scheduler_block, self.manager.sizes.hash_block
        holds = any(group.kind in self.loads for group in self.manager.groups)
        reach = self.reach.setdefault(request.id, [])
        reach.append(0)
        # Inside a block the store has no prefix to begin from.
        if local % size or not request.reads_cache or not holds:
            return 0, False
        # The last token is computed in any case.
        most = (request.num_tokens - 1) // size * size
        end = local
        for position in range(local + size, most + 1, size):
            if not all(
                (request.hashes[at // unit - 1], i) in self.kept
                for i, group in enumerate(self.manager.groups)
                if group.kind == "full"
                # Attention needs every block, so the first gap ends the search.
                for at in range(position - size + group.block, position + 1, group.block)
            ):
                break
            if all(
                (request.hashes[at // unit - 1], i) in self.kept
                for i, group in enumerate(self.manager.groups)
                if group.kind != "full" and group.kind in self.loads
                # A window or a state needs only the blocks before the end, so a later position may
                # still do.
                for at in _ends(group, local, position)
            ):
                end = position
        reach[-1] = end if end > local else 0
        return end - local, end > local and self.steps > 0

    def promise(self, request: Request, local: int, tokens: int) -> None:
        """Record a promise after its blocks are allocated.

        Follows `update_state_after_alloc`.
        """
        span = (local, local + tokens)
        if not self.steps:
            self.promised[request.id] = span
            return
        # Asynchronous: the promise holds the blocks, and the scheduler passes the request over.
        fails = self.failing.pop(request.id, None)
        self.loading[request.id] = Load(request, span, self.steps + self.steps_ahead, fails)

    def load(self, step: Step) -> None:
        """Load the promised blocks of a step's requests, before it runs."""
        for chunk in step.chunks:
            span = self.promised.pop(chunk.request.id, None)
            if span is not None and chunk.fresh:
                self._load_span(chunk.request, span, chunk.blocks)

    def _load_span(
        self, request: Request, span: tuple[int, int], tables: Sequence[Sequence[int]]
    ) -> None:
        unit = self.manager.sizes.hash_block
        for group, (spec, table) in enumerate(zip(self.manager.groups, tables, strict=True)):
            # Trap: the promise counts these tokens all the same; recurrent layers then resume from
            # an unwritten block (see `store-attention`).
            if spec.kind not in self.loads:
                continue
            for index in range(span[0] // spec.block, span[1] // spec.block):
                key = (request.hashes[(index + 1) * spec.block // unit - 1], group)
                content = self.kept.get(key)
                # Null: out of the window, or no state is kept at this end.
                if table[index] != NULL and content is not None:
                    self.pages.reach(table[index])
                    self.pages.fill(group, table[index], content)

    def get_finished(self) -> Transfers:
        """The loads that end with this step. A failed one loads nothing from its failed block on;
        nothing at all beside groups that do not keep every block, whose tables have null ones.
        """
        for load in self.loading.values():
            load.steps -= 1
        ended = [load for load in self.loading.values() if not load.steps]
        failed, invalid = [], set[int]()
        whole = self.fails_whole or {group.kind for group in self.manager.groups} != {"full"}
        for load in ended:
            del self.loading[load.request.id]
            tables = self.manager.tables_of(load.request)
            first, end = load.span
            # With null blocks in a table upstream cannot name the failed ones, so it names the
            # request.
            if load.fails is not None and whole:
                failed.append(load.request)
                continue
            if load.fails is not None:
                block = self.manager.groups[0].block
                blocks = range(first // block, cdiv(end, block))
                at = blocks[min(load.fails, len(blocks) - 1)]
                invalid.add(tables[0][at])
                end = at * block
            self._load_span(load.request, (first, end), tables)
        return Transfers(
            received=tuple(load.request for load in ended),
            failed=tuple(failed),
            invalid=frozenset(invalid),
        )

    def save(self, request: Request) -> None:
        """Store the cached blocks of a finished request's prefix, but for those that a step in
        flight will write to.
        """
        pool, unit = self.manager.pool, self.manager.sizes.hash_block
        # Ids are set before the chunk runs: these blocks may hold another request's content.
        unwritten = {
            (group, block)
            for published in self.manager.unwritten.values()
            for group, blocks in published
            for block in blocks
        }
        for group, spec in enumerate(self.manager.groups):
            for index in range(len(request.hashes) * unit // spec.block):
                number = request.hashes[(index + 1) * spec.block // unit - 1]
                block = pool.block_of(number * pool.groups + group)
                state = spec.kind == "mamba" and spec.mode == "align"
                # Trap: the null block is stored under a boundary's id, and loaded as its state
                # (#53084).
                if block is None and state and self.manager.rules.state.stores_null_block:
                    block = NULL
                if (group, block) in unwritten:
                    continue
                if block is not None and (number, group) not in self.kept:
                    self.kept[number, group] = self.pages.content(group, block)


def _ends(group: GroupSpec, local: int, end: int) -> range:
    """Ends of the blocks that a group needs from a store to resume at `end`.

    local hit |        |  window   |         a state: the block that ends there
                       ^first     ^end       a window, a chunk: all blocks attended to from there
    """
    if group.kind == "mamba":
        return range(end, end + 1)
    seen = end // group.chunk * group.chunk if group.kind == "chunked" else end - group.window + 1
    first = max(local, seen // group.block * group.block, 0)
    return range(first + group.block, end + 1, group.block)
