"""Sequences of requests on the simulated scheduler, in the form of the real one's vectors.

The steps are those that drive the real scheduler: requests of a group are added in order, then it
runs until all are done; tokens are forced, and drafts are the true continuation.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cachesim.engines.vllm.block_pool import GroupSpec
from cachesim.engines.vllm.coordinator import Hit, KVCacheManager
from cachesim.engines.vllm.request import Chunk, Limits, Prefixes, Request, Step
from cachesim.engines.vllm.rules import Rules
from cachesim.engines.vllm.scheduler import Scheduler
from cachesim.errors import UpstreamAbort
from cachesim.lab.real.prompts import read_row, spell

WRONG_DRAFT: Final = 9_999_999
"""Proposed where the true continuation ends."""

MOST_STEPS: Final = 20_000


def group_of(given: Mapping[str, Any]) -> GroupSpec:
    """Group of a configuration."""
    return GroupSpec(
        kind=given["kind"],
        block=given["block"],
        window=given.get("window", 0),
        chunk=given.get("chunk", 0),
        mode=given.get("mode", "align"),
        speculative_blocks=given.get("speculative_blocks", 0),
        eagle=bool(given.get("eagle")),
    )


class Player:
    """A fresh scheduler, and what it does with one group of requests after another."""

    def __init__(self, config: Mapping[str, Any], rules: Rules) -> None:
        self.drafts: int = config.get("drafts", 0)
        eagle = bool(config.get("eagle"))
        budget = config.get("budget", 8192)
        overlaps = bool(config.get("overlaps"))
        batches = 1 + (overlaps and rules.scheduler.cap_counts_batches)
        legacy = config.get("store") or not config.get("lookahead_hashes")
        ahead = int(eagle and rules.lookup.lookahead_hashes and not legacy)
        max_model_len = config.get("max_len", 1 << 16)
        self.manager = KVCacheManager(
            [group_of(each) for each in config["groups"]],
            rules,
            num_blocks=config["blocks"],
            unit=config.get("hash_block"),
            retention=config.get("retention") if rules.retention.interval else None,
            enable_caching=config.get("caching", True),
            use_eagle=eagle and not ahead,
            hash_lookahead=ahead,
            most_in_flight=batches * budget,
            max_model_len=max_model_len,
        )
        self.scheduler = Scheduler(
            self.manager,
            Limits(
                budget=budget,
                max_seqs=config.get("max_seqs", 16),
                max_model_len=max_model_len,
                reserve_full=config.get("reserve_full", True),
                drafts=self.drafts,
                lookahead=self.drafts if eagle else 0,
                use_eagle=eagle and not ahead,
                by_priority=config.get("policy") == "priority",
                overlaps=overlaps,
            ),
        )
        apart = config.get("store") and rules.scheduler.store_hit == "longest-group"
        several = bool(self.manager.coordinator.mamba) and len(self.manager.groups) > 1
        self.junctions = rules.retention.keeps_junction and not (apart and several)
        self.prefixes = Prefixes(self.manager.sizes.hash_block, ahead)
        self.scheduler.on_lookup = self._looked_up
        if config.get("store"):
            self.scheduler.external = self._stored
        self.manager.pool.on_evict = self._evicted
        self.labels: dict[int, tuple[int, int]] = {}
        self.count = 0
        self.most_under_way = 2 if overlaps else 1
        self.under_way: list[Step] = []  # scheduled, and not yet come back
        self.evicted: list[list[int]] = []
        self.told: dict[int, dict[str, Any]] = {}
        self.wanted: dict[int, Mapping[str, Any]] = {}

    def _looked_up(self, request: Request, hit: Hit) -> None:
        entry = [hit.length]
        if self.junctions:
            entry.append(hit.length + hit.uncached if hit.uncached else 0)
        self.told[request.id]["lookups"].append(entry)

    def _stored(self, request: Request, local: int) -> int:
        size = self.manager.sizes.scheduler_block
        most: int = min(self.wanted[request.id].get("stored", 0), request.num_tokens - 1)
        return max(0, most // size * size - local)

    def _evicted(self, block: int, key: int) -> None:
        self.evicted.append([block, *self._label(key)])

    def _label(self, key: int) -> list[int]:
        number, group = divmod(key, len(self.manager.groups))
        return [group, *self.labels.get(number, (-1, -1))]

    def _learn(self, request: Request) -> None:
        unit, labels = self.prefixes.unit, self.labels
        for index in range(len(request.hashes) - 1, -1, -1):
            number = request.hashes[index]
            if number in labels:
                break
            labels[number] = (request.id, (index + 1) * unit)

    def _add(self, wanted: Mapping[str, Any]) -> Request:
        request = Request.make(
            self.count,
            self.prefixes,
            read_row(wanted["prompt"]),
            max_tokens=max(1, wanted["generate"]),
            extra=wanted.get("salt"),
            priority=wanted.get("priority", 0),
        )
        self.count += 1
        self.told[request.id] = {"lookups": [], "chunks": [], "turn": 0}
        self.wanted[request.id] = wanted
        self._learn(request)
        self.scheduler.add_request(request)
        return request

    def _arrive(
        self, requests: list[Request], group: Sequence[Mapping[str, Any]], turn: int
    ) -> None:
        """Those that come now are added; those whose client has had enough are aborted."""
        while len(requests) < len(group) and group[len(requests)].get("after", 0) <= turn:
            requests.append(self._add(group[len(requests)]))
        for each in requests:
            if self.wanted[each.id].get("abort") == turn:
                self.scheduler.abort(each)

    def play(self, group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Requests that arrive together; until all are done."""
        if "reset" in group[0]:
            return {"reset": self.manager.reset_prefix_cache()}
        self.evicted, self.told, self.wanted = [], {}, {}
        requests: list[Request] = []
        problem = self._until_done(requests, group)
        if problem:
            return {"error": problem}
        self.scheduler.schedule()  # flushes what the last step left
        return {
            "requests": [self._entry(each) for each in requests],
            "evicted": self.evicted,
            "cache": self._cache(),
            "queue": spell(list(self.manager.pool.free)),
        }

    def _until_done(self, requests: list[Request], group: Sequence[Mapping[str, Any]]) -> str:
        stuck = 0
        for turn in range(MOST_STEPS):
            self._arrive(requests, group, turn)
            if not self.scheduler.busy and not self.under_way:
                if len(requests) == len(group):
                    return ""
                continue
            if self.scheduler.busy:
                step = self.scheduler.schedule()
                stuck = 0 if step.chunks or self.under_way else stuck + 1
                if stuck > 3:
                    return "stuck"
                for chunk in step.chunks:
                    self.told[chunk.request.id]["chunks"].append([chunk.start, chunk.end])
                if step.chunks:
                    self.under_way.append(step)
                    if len(self.under_way) < self.most_under_way:
                        continue
            if self.under_way:
                self._come_back(self.under_way.pop(0), requests)
        return "too many steps"

    def _come_back(self, step: Step, requests: Sequence[Request]) -> None:
        """A step has run: what it says is taken, and what is proposed next."""
        sampled, proposals = [], {}
        for chunk in step.chunks:
            tokens, proposal = self._answer(chunk)
            sampled.append(tokens)
            if tokens:
                proposals[chunk.request.id] = proposal
        self.scheduler.update_from_output(step, sampled)
        if self.drafts and self.most_under_way == 1:
            for each in requests:
                if each.id in proposals:
                    self.scheduler.update_draft_token_ids(each, proposals[each.id])
        for each in requests:
            self._learn(each)

    def _answer(self, chunk: Chunk) -> tuple[list[int], list[int]]:
        request = chunk.request
        if chunk.end < request.num_tokens:
            return [], []
        wanted, told = self.wanted[request.id], self.told[request.id]
        reply, accepts = read_row(wanted.get("reply", "")), wanted.get("accept", [])
        done, accept = request.num_output, 0
        if chunk.drafts:
            accept = accepts[told["turn"] % len(accepts)] if accepts else 0
            accept = min(accept, len(chunk.drafts))
            told["turn"] += 1
        tokens = reply[done : done + accept + 1]
        done += len(tokens)
        counts = wanted.get("propose") or [self.drafts]
        proposal = reply[done : done + self.drafts] + [WRONG_DRAFT] * self.drafts
        return tokens, proposal[: counts[done % len(counts)]]

    def _entry(self, request: Request) -> dict[str, Any]:
        told = self.told[request.id]
        chunks = told["chunks"]
        return {
            "cached": chunks[0][0] if chunks else None,
            "lookups": told["lookups"],
            "chunks": [
                each for each in chunks if each[0] < request.num_prompt or each[1] - each[0] > 1
            ],
            "preempted": request.preemptions,
        }

    def _cache(self) -> list[list[int]]:
        return [
            [block, *self._label(key)]
            for block, key in enumerate(self.manager.pool.key)
            if key is not None
        ]


def play(workload: Mapping[str, Any], rules: Rules) -> list[dict[str, Any]]:
    """All groups of a workload, up to the first that ends in an error."""
    player = Player(workload["config"], rules)
    results: list[dict[str, Any]] = []
    for group in workload["steps"]:
        try:
            results.append(player.play(group))
        except UpstreamAbort as error:
            results.append({"error": str(error)})
        if "error" in results[-1]:
            break
    return results
