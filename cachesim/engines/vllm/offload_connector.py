"""Native offloading's worker: copies of blocks to the host and back (`OffloadingConnectorWorker`).

    step k      a load is copied, and received after `load_steps`; a store is noted
    step k + 1  begins with the store, before a block of its own is written

A store that is flushed is copied, and has ended, before its step runs. A slot keeps what it holds
when its chunk is evicted; a release that stores a part of a chunk leaves the rest of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from cachesim.engines.vllm.block_pool import cdiv
from cachesim.engines.vllm.connector import Connector, Load
from cachesim.engines.vllm.coordinator import KVCacheManager
from cachesim.engines.vllm.host import HostCache
from cachesim.engines.vllm.offloading import OffloadingScheduler
from cachesim.engines.vllm.options import VllmOptions
from cachesim.engines.vllm.request import Copied, Request, Step, TransferJob, Transfers
from cachesim.engines.vllm.rules import OffloadRules
from cachesim.engines.vllm.runner import Runner
from cachesim.errors import UpstreamAbort
from cachesim.units import Array


@dataclass(slots=True)
class Offloading(Connector):
    """Both sides of `OffloadingConnector`."""

    side: OffloadingScheduler = field(kw_only=True)
    computes: bool = field(kw_only=True)  # else the blocks have no content
    slots: dict[tuple[int, int], dict[int, tuple[Array, ...]]] = field(default_factory=dict)
    """Content of the blocks on the host, by slot and place in the chunk."""
    later: list[TransferJob] = field(default_factory=list)  # stores that the next step begins
    left: dict[int, int] = field(default_factory=dict)  # steps of a copy under way
    loads_of: dict[int, Request] = field(default_factory=dict)  # of the loads among them

    @classmethod
    def beside(
        cls, manager: KVCacheManager, runner: Runner, options: VllmOptions, rules: OffloadRules
    ) -> "Offloading":
        """The connector of a server with `kv_offloading_size`."""
        chunks = options.host_chunks(manager.groups, runner.network.spec)
        side = OffloadingScheduler(
            manager,
            HostCache(chunks, options.eviction_policy, options.store_threshold, rules),
            rules,
            factor=options.blocks_per_chunk,
            prompt_only=options.offload_prompt_only,
        )
        steps, computes = options.copy_steps, runner.computes
        return cls(manager, runner.pages, frozenset(), steps, side=side, computes=computes)

    @property
    def in_transit(self) -> bool:
        return self.side.busy

    @property
    def held(self) -> set[int]:
        return {number for (number, _), _ in self.side.host.policy.slots()}

    def promise(self, request: Request, local: int, tokens: int) -> None:
        """Note that a request waits for its load, which is a job of the step."""
        self.loading[request.id] = Load(request, (local, local + tokens), self.steps, None)

    def save(self, request: Request) -> None:
        """Do nothing: stores are jobs of steps."""

    def load(self, step: Step) -> None:
        """Begin the copies of a step, and end those that it waits for.

        Follows `handle_preemptions`, `start_kv_transfers` and `prepare_store_kv`.
        """
        flushed = step.jobs.flushed
        now = [job for job in step.jobs.stores if job.number in flushed]
        for job in (*self.later, *now):
            self._begin(job)
        for job in step.jobs.loads:
            self._begin(job)
            self.loads_of[job.number] = job.request
        for number in flushed & self.left.keys():
            self.left[number] = 1
        self.later = [job for job in step.jobs.stores if job.number not in flushed]

    def _begin(self, job: TransferJob) -> None:
        self.left[job.number] = self.steps
        for copied in job.copied if self.computes else ():
            for block, place in self._places(copied):
                self.pages.reach(block)
                if job.stores:
                    self.slots[place] = self.pages.content(copied.group, block)
                elif place in self.slots:
                    self.pages.fill(copied.group, block, self.slots[place])

    def _places(self, copied: Copied) -> Iterator[tuple[int, tuple[int, int]]]:
        """Each block with its slot and its place there.

            chunks of 3    | .  .  a | b  c  d |     the first block is the third of its chunk

        Follows `SingleDirectionOffloadingHandler.transfer_async`, which counts on from there.
        """
        factor = self.side.factor
        first = copied.first % factor
        if copied.blocks and cdiv(first + len(copied.blocks), factor) != len(copied.slots):
            where = "SingleDirectionOffloadingHandler.transfer_async"
            raise UpstreamAbort(where, "dst_offset == num_dst_blocks")
        for number, block in enumerate(copied.blocks, first):
            yield block, (copied.slots[number // factor], number % factor)

    def get_finished(self) -> Transfers:
        """The copies that end with this step."""
        for number in self.left:
            self.left[number] -= 1
        ended = [number for number, left in self.left.items() if not left]
        for number in ended:
            del self.left[number]
        self.side.update_connector_output(ended)
        received = [self.loads_of.pop(number) for number in ended if number in self.loads_of]
        for request in received:
            del self.loading[request.id]
        return Transfers(received=tuple(received))
