"""An external store of blocks (a KV connector): it outlives resets, and may promise too much.

It keeps what finished requests leave, by prefix and group. A request is promised the longest prefix
beyond its own hit whose blocks are there. `store-attention` brings attention's blocks only and
promises for all groups: the defect that was reported of several connectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cachesim.engines.vllm.block_pool import NULL
from cachesim.engines.vllm.groups import GroupSpec
from cachesim.engines.vllm.manager import KVCacheManager
from cachesim.engines.vllm.options import VllmOptions
from cachesim.engines.vllm.pages import Pages
from cachesim.engines.vllm.request import Request
from cachesim.engines.vllm.runner import Runner
from cachesim.engines.vllm.step import Step
from cachesim.units import Array

LOADS: Final = {
    "store": frozenset({"full", "window", "chunked", "mamba"}),
    "store-attention": frozenset({"full"}),
}
"""The kinds of groups whose blocks a store brings back."""


@dataclass(slots=True)
class Connector:
    """The scheduler's and the worker's half in one (`KVConnectorBase_V1`)."""

    manager: KVCacheManager
    pages: Pages
    loads: frozenset[str]
    kept: dict[tuple[int, int], dict[int, tuple[Array, ...]]] = field(default_factory=dict)
    promised: dict[int, tuple[int, int]] = field(default_factory=dict)  # request -> [from, to)
    reach: dict[int, int] = field(default_factory=dict)  # request -> where its last promise ended

    @classmethod
    def open(
        cls, options: VllmOptions, manager: KVCacheManager, runner: Runner
    ) -> "Connector | None":
        """The store that the options name, or None."""
        if options.connector == "none":
            return None
        return cls(manager, runner.pages, LOADS[options.connector])

    def find(self, request: Request, local: int) -> int:
        """Return the tokens that the store promises beyond the hit, in whole scheduler blocks.

        Follows `get_num_new_matched_tokens`: one number for all groups.
        """
        size = self.manager.sizes.scheduler_block
        if local % size or not request.reads_cache:
            return 0
        most = (request.num_tokens - 1) // size * size
        end = local
        for position in range(local + size, most + 1, size):
            if not self._has_attention(request, position, size):
                break
            if self._has_all(request, local, position):
                end = position
        self.reach[request.id] = end if end > local else 0
        return end - local

    def promise(self, request: Request, local: int, tokens: int) -> None:
        """The request was given blocks for what the store will bring.

        Follows `update_state_after_alloc`.
        """
        self.promised[request.id] = (local, local + tokens)

    def _has_attention(self, request: Request, end: int, size: int) -> bool:
        unit = self.manager.sizes.hash_block
        return all(
            (request.hashes[at // unit - 1], i) in self.kept
            for i, group in enumerate(self.manager.groups)
            if group.kind == "full"
            for at in range(end - size + group.block, end + 1, group.block)
        )

    def _has_all(self, request: Request, local: int, end: int) -> bool:
        unit = self.manager.sizes.hash_block
        return all(
            (request.hashes[at // unit - 1], i) in self.kept
            for i, group in enumerate(self.manager.groups)
            if group.kind != "full" and group.kind in self.loads
            for at in _ends(group, local, end)
        )

    def load(self, step: Step) -> None:
        """Bring what was promised to the requests of a step, before it runs."""
        for chunk in step.chunks:
            span = self.promised.pop(chunk.request.id, None)
            if span is not None and chunk.fresh:
                for group, (spec, table) in enumerate(
                    zip(self.manager.groups, chunk.blocks, strict=True)
                ):
                    if spec.kind in self.loads:
                        self._fill(chunk.request, group, table, span)

    def _fill(
        self, request: Request, group: int, table: Sequence[int], span: tuple[int, int]
    ) -> None:
        size, unit = self.manager.groups[group].block, self.manager.sizes.hash_block
        for index in range(span[0] // size, span[1] // size):
            if table[index] == NULL:
                continue
            content = self.kept.get((request.hashes[(index + 1) * size // unit - 1], group))
            if content is not None:
                self.pages.reach(table[index])
                self.pages.fill(group, table[index], content)

    def save(self, request: Request) -> None:
        """Keep every block that a request has published and written."""
        pool, unit = self.manager.pool, self.manager.sizes.hash_block
        for group, spec in enumerate(self.manager.groups):
            for index in range(len(request.hashes) * unit // spec.block):
                number = request.hashes[(index + 1) * spec.block // unit - 1]
                block = pool.block_of(number * pool.groups + group)
                if block is not None and (number, group) not in self.kept:
                    self.kept[number, group] = self.pages.content(group, block)


def _ends(group: GroupSpec, local: int, end: int) -> range:
    """Ends of the blocks that a group needs from a store to resume at `end`.

    local hit |        |  window   |         a state: the block that ends there
                       ^first     ^end       a window, a chunk: all that are seen from there
    """
    if group.kind == "mamba":
        return range(end, end + 1)
    seen = end // group.chunk * group.chunk if group.kind == "chunked" else end - group.window + 1
    first = max(local, seen // group.block * group.block, 0)
    return range(first + group.block, end + 1, group.block)
