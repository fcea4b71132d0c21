"""Groups of requests on the simulated scheduler, in the form of the real one's vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cachesim.engines.adapters import LoRARequest
from cachesim.engines.vllm.block_pool import GroupSpec
from cachesim.engines.vllm.coordinator import Hit, KVCacheManager
from cachesim.engines.vllm.host import HostCache
from cachesim.engines.vllm.offloading import OffloadingScheduler
from cachesim.engines.vllm.options import MOST, VllmOptions
from cachesim.engines.vllm.request import (
    Prefixes,
    Request,
    Step,
    Transfers,
    adapter_keys,
)
from cachesim.engines.vllm.rules import Rules
from cachesim.engines.vllm.scheduler import Scheduler, Stored
from cachesim.errors import UpstreamAbort
from cachesim.prove.rows import read_row, spell
from cachesim.prove.worker_side import until_error
from conformance.real.schedules import images_of
from conformance.real.vllm.groups import Groups, Spans, Wanted


class Player(Groups):
    """The simulated scheduler."""

    NAME, PROMPT, OUTPUT, PREEMPTIONS = "id", "num_prompt", "num_output", "preemptions"

    def __init__(self, config: Mapping[str, Any], rules: Rules) -> None:
        super().__init__(config)
        eagle = bool(config.get("eagle"))
        budget = config.get("budget", 8192)
        overlaps = bool(config.get("overlaps"))
        batches = 1 + (overlaps and rules.scheduler.cap_counts_batches)
        method = "eagle" if eagle else "ngram" if self.drafts else "none"
        drafting: dict[str, Any] = {
            "speculative_method": method,
            "num_speculative_tokens": self.drafts or 1,
        }
        options = VllmOptions(**drafting, **config.get("further", {}))
        legacy = config.get("store") or config.get("offload") or not config.get("lookahead_hashes")
        legacy = legacy or options.disable_eagle_block_drop
        ahead = int(eagle and rules.lookup.lookahead_hashes and not legacy)
        drops = eagle and not ahead and not options.disable_eagle_block_drop
        max_model_len = config.get("max_len", 1 << 16)
        self.manager = KVCacheManager(
            [GroupSpec(**each) for each in config["groups"]],
            rules,
            num_blocks=config["blocks"],
            unit=config.get("hash_block"),
            retention=config.get("retention") if rules.retention.interval else None,
            enable_caching=config.get("caching", True),
            use_eagle=drops,
            hash_lookahead=ahead,
            shared_prefix_checkpoint=options.enable_mamba_shared_prefix_checkpoint,
            most_in_flight=batches * budget,
            max_model_len=max_model_len,
        )
        self.scheduler = Scheduler(
            self.manager,
            replace(
                options.limits(rules),
                budget=config.get("scheduled") or budget,
                batched=budget,
                max_seqs=min(options.max_num_active_seqs or MOST, config.get("max_seqs", 16)),
                max_model_len=max_model_len,
                reserve_full=config.get("reserve_full", True),
                drafts=self.drafts,
                lookahead=self.drafts if eagle else 0,
                use_eagle=drops,
                by_priority=config.get("policy") == "priority",
                overlaps=overlaps,
                recomputes=bool(config.get("recomputes")),
                loras=config.get("loras", 0),
            ),
        )
        apart = config.get("store") and rules.scheduler.store_hit == "longest-group"
        several = bool(self.manager.coordinator.mamba) and len(self.manager.groups) > 1
        self.junctions = rules.retention.keeps_junction and not (apart and several)
        self.prefixes = Prefixes(self.manager.sizes.hash_block, ahead)
        self.scheduler.on_lookup = self._looked_up
        self.scheduler.requires_delivery = bool(config.get("delivers"))
        self.offloading: OffloadingScheduler | None = None
        if offload := config.get("offload"):
            self.offloading = OffloadingScheduler(
                self.manager,
                HostCache(
                    offload["chunks"], offload["policy"], offload["threshold"], rules.offload
                ),
                rules.offload,
                factor=offload["factor"],
                prompt_only=offload["prompt_only"],
            )
            self.scheduler.offload_to(self.offloading)
            self.scheduler.passes_block_tables = True
        if config.get("store"):
            self.scheduler.external = self._stored
            self.scheduler.on_external = self._load
            self.scheduler.delays_free = self._sends
        self.manager.pool.on_evict = lambda block, key: self.evicted.append(
            [block, *self._label(key)]
        )
        self.labels: dict[int, tuple[int, int]] = {}
        self.known: dict[int, Request] = {}
        self.reset, self.abort = self.manager.reset_prefix_cache, self.scheduler.abort

    def _looked_up(self, request: Request, hit: Hit) -> None:
        entry = [hit.length]
        if self.junctions:
            entry.append(hit.length + hit.uncached if hit.uncached else 0)
        self.results[request.id]["lookups"].append(entry)

    def _stored(self, request: Request, local: int) -> Stored:
        size, wanted = self.manager.sizes.scheduler_block, self.wanted[request.id]
        self.queries[request.id] += 1
        most: int = min(self.stored(request.id), request.num_tokens - wanted.get("leaves", 1))
        found = max(0, (most if "leaves" in wanted else most // size * size) - local)
        if request.id in self.loads.asked:
            return 0, False
        if "leaves" in wanted and not found:
            self.loads.asked.add(request.id)
        return found, bool(found) and "loads" in wanted

    def _load(self, request: Request, local: int, tokens: int) -> None:
        group = self.manager.groups[0]
        tables, wanted = self.manager.tables_of(request), self.wanted[request.id]
        span = range(local // group.block, (local + tokens) // group.block)
        self.loads.begin(request.id, wanted, tables, span, group.kind)

    def _sends(self, request: Request) -> bool:
        wanted = self.wanted[request.id]
        if request.status != "finished" or "sends" not in wanted:
            return False
        self.loads.sending[request.id] = wanted["sends"]
        return True

    def _label(self, key: int) -> list[int]:
        number, group = divmod(key, len(self.manager.groups))
        return [group, *self.labels.get(number, (-1, -1))]

    def learn(self, request: Request) -> None:
        unit, labels = self.prefixes.unit, self.labels
        for index in range(len(request.hashes) - 1, -1, -1):
            number = request.hashes[index]
            if number in labels:
                break
            labels[number] = (request.id, (index + 1) * unit)

    def request(self, number: int, wanted: Wanted) -> Request:
        name, path, load = wanted.get("lora", ("", "", 0))
        lora = LoRARequest(name, path, load=load)
        made = self.known[number] = Request.make(
            number,
            self.prefixes,
            read_row(wanted["prompt"]),
            max_tokens=max(1, wanted["generate"]),
            salt=wanted.get("salt"),
            lora=lora,
            adapter=adapter_keys(lora, path=self.manager.rules.lookup.adapter_path),
            priority=wanted.get("priority", 0),
            reads_cache="skips_cache" not in wanted,
            images=images_of(wanted),
        )
        return made

    def busy(self) -> bool:
        side = self.offloading
        return self.scheduler.busy or (side is not None and side.busy)

    def begin_copies(self, step: Step) -> None:
        for job in (*step.jobs.loads, *step.jobs.stores):
            blocks = [block for each in job.copied for block in each.blocks]
            slots = [slot for each in job.copied for slot in each.slots]
            spans = [
                [each.group, each.first, len(each.blocks)] for each in job.copied if each.blocks
            ]
            flushed = job.number in step.jobs.flushed
            entry = [job.number, job.stores, job.request.id, blocks, spans, slots, flushed]
            self.jobs.append(entry)
        if self.copies is not None:
            self.copies.begin(
                {job.number: job.request.id for job in step.jobs.loads},
                [job.number for job in step.jobs.stores],
                {*step.jobs.flushed},
            )

    def host(self) -> dict[str, Any]:
        side = self.offloading
        if side is None:
            return {}
        evicted = [[group, *self.labels[number]] for number, group in side.evicted]
        side.evicted.clear()
        slots = side.host.policy.slots()
        held = [[slot.number, slot.readers, key[1], *self.labels[key[0]]] for key, slot in slots]
        return {"host": sorted(held), "host_evicted": evicted}

    def schedule(self, requests: Mapping[int, Request]) -> tuple[Step, Spans]:
        step = self.scheduler.schedule()
        return step, {each.request.id: (each.start, each.end) for each in step.chunks}

    def drafted(self, step: Step, name: int) -> int:
        return next(len(each.drafts) for each in step.chunks if each.request.id == name)

    def proposes(self, step: Step) -> int:
        return step.proposes

    def hand_over(self, step: Step, sampled: Mapping[int, list[int]]) -> None:
        *names, invalid = self.loads.next()
        if self.offloading is not None and self.copies is not None:
            ended, names[0] = self.copies.next()
            self.offloading.update_connector_output(ended)
        received, sent, failed = (tuple(self.known[n] for n in each) for each in names)
        transfers = Transfers(
            received=received, sent=sent, failed=failed, invalid=frozenset(invalid)
        )
        self.scheduler.update_from_output(step, list(sampled.values()), transfers)

    def propose(self, requests: Mapping[int, Request], proposals: Mapping[int, list[int]]) -> None:
        for name, each in requests.items():
            if name in proposals:
                self.scheduler.update_draft_token_ids(each, proposals[name])

    def pool(self) -> dict[str, Any]:
        keys, free = self.manager.pool.key, self.manager.pool.free
        cache = [[block, *self._label(key)] for block, key in enumerate(keys) if key is not None]
        return {"cache": cache, "queue": spell(list(free))}


def play(
    workload: Mapping[str, Any], rules: Rules, kind: type[Player] = Player
) -> list[dict[str, Any]]:
    """All groups of a workload, up to the first that ends in an error."""
    player = kind(workload["config"], rules)

    def result(group: Sequence[Wanted]) -> dict[str, Any]:
        try:
            return player.play(group)
        except UpstreamAbort as error:
            return {"error": str(error)}

    return until_error(map(result, workload["steps"]))
