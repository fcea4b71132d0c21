"""Runs with an unpacked wheel at hand: plays workloads on vLLM's own scheduler, without a model.

One line of JSON in, one line out: a workload goes in (configuration, groups of requests with the
tokens to say), what the scheduler did comes out, in the form of the vector files. Configuration,
scheduler, cache manager, coordinators, managers, block pool, requests and hashing are the release's
own; the model samples what the workload names. `{"settings": [...]}` with configurations brings
what each configuration differs in from the one that a server would start with.
"""

import importlib
import inspect
import logging
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from cachesim.lab.real.prompts import read_row, spell
from cachesim.lab.real.vllm.caches_worker import Caches
from cachesim.lab.real.vllm.release_worker import install
from cachesim.lab.real.vllm.worker_settings import Start
from cachesim.lab.real.vllm.worker_store import connector
from cachesim.lab.real.worker_side import Bag, answer_lines, fitting, own_output, play_groups

Json = Any
Real = Any  # modules, classes and objects of the release: known only when it runs

WRONG_DRAFT = 9_999_999
LOOKUPS = ("get_computed_blocks", "get_computed_blocks_for_connector")
MOST_STEPS = 20_000
DIGEST = 32
"""Bytes of a SHA-256."""


class Release:
    """The modules of one release."""

    def __init__(self, root: str) -> None:
        install(Path(root))
        self.store = connector()
        self.start = Start()
        self.caches = Caches()
        self.utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        self.scheduling: Real = importlib.import_module("vllm.v1.core.sched.scheduler")
        self.scheduler = self.scheduling.Scheduler
        overlapping: Real = importlib.import_module("vllm.v1.core.sched.async_scheduler")
        self.overlapping = overlapping.AsyncScheduler
        self.overlapping.__signature__ = inspect.signature(self.scheduler)  # it hands all on
        requests = importlib.import_module("vllm.v1.request")
        self.request = requests.Request
        self.aborted = requests.RequestStatus.FINISHED_ABORTED
        self.outputs = importlib.import_module("vllm.v1.outputs")
        self.sha256 = importlib.import_module("vllm.utils.hashing").sha256
        self.params = importlib.import_module("vllm.sampling_params").SamplingParams
        self.environment: dict[str, Real] = vars(importlib.import_module("vllm.envs"))


class Server:
    """The real scheduler of one configuration, and what is written down of it."""

    def __init__(self, release: Release, config: Json) -> None:
        self.release = release
        self.drafts = config.get("drafts", 0)
        release.environment["VLLM_PREFIX_CACHE_RETENTION_INTERVAL"] = config.get("retention")
        release.utils.init_none_hash(release.sha256)
        self.wanted: dict[str, Json] = {}
        release.store.server = self
        self.settings = release.start.used(config)
        self.caches, self.sizes = release.caches.of(self.settings, config)
        self.unit = self.sizes[1]
        self.scheduler = self._scheduler(config)
        self.hasher = fitting(
            release.utils.get_request_block_hasher,
            hash_block_size=self.unit,
            block_size=self.unit,  # its name until 0.23
            caching_hash_fn=release.sha256,
            num_hash_lookahead_tokens=getattr(self.settings, "num_hash_lookahead_tokens", 0),
        )
        self.manager = self.scheduler.kv_cache_manager
        self.pool = self.manager.block_pool
        self.groups_apart = self._looks_groups_up_apart(config)
        self.labels: dict[bytes, tuple[int, int]] = {}
        self.evicted: Json = []
        self.told: dict[str, Json] = {}
        self.count = 0
        self.most_under_way = 2 if config.get("overlaps") else 1
        self.looking = False
        self.under_way: list[Real] = []  # scheduled, and not yet come back
        self._watch_evictions()

    # -- configuration -----------------------------------------------------------------------------

    def _scheduler(self, config: Json) -> Real:
        block, unit = self.sizes
        return fitting(
            self.release.overlapping if config.get("overlaps") else self.release.scheduler,
            vllm_config=self.settings,
            kv_cache_config=self.caches,
            structured_output_manager=Bag(
                should_fill_bitmask=lambda *_, **__: False,
                should_advance=lambda *_, **__: False,
                accept_tokens=lambda *_, **__: True,
                validate_tokens=lambda _, tokens, *__: tokens,
                grammar_bitmask=lambda *_, **__: None,
            ),
            block_size=block,
            hash_block_size=unit,
            log_stats=False,
        )

    def _looks_groups_up_apart(self, config: Json) -> bool:
        """True if this release looks each group up alone beside a store (#44243)."""
        manager = self.manager
        since = hasattr(manager.coordinator, "find_longest_cache_hit_per_group")
        until = not hasattr(manager, "get_computed_blocks_for_connector")
        kinds = {group["kind"] for group in config["groups"]}
        return since and until and "mamba" in kinds and len(config["groups"]) > 1

    # -- what is written down ----------------------------------------------------------------------

    def _watch_evictions(self) -> None:
        inner = self.pool._maybe_evict_cached_block

        def watched(block: Real) -> bool:
            before = block.block_hash
            done = bool(inner(block))
            if done and before is not None:
                self.evicted.append([block.block_id, *self._label(before)])
            return done

        self.pool._maybe_evict_cached_block = watched

    def _watched(self, inner: Real) -> Real:
        """A look-up that is written down, if it is none within another one."""

        def lookup(request: Real, *given: Real, **named: Real) -> Real:
            within, self.looking = self.looking, True
            found = inner(request, *given, **named)
            self.looking = within
            if not within:
                self.told[request.request_id]["lookups"].append([found[1], *found[2:3]])
            return found

        return lookup

    def _label(self, keyed: Real) -> list[int]:
        if isinstance(keyed, tuple):
            value, group = keyed[0], keyed[1]
        else:
            value = self.release.utils.get_block_hash(keyed)
            group = self.release.utils.get_group_id(keyed)
        last = bytes(value)[-DIGEST:]  # until 0.23 a larger block's id is all of its units'
        return [int(group), *self.labels.get(last, (-1, -1))]

    def _learn(self, request: Real) -> None:
        for index, value in enumerate(request.block_hashes):
            self.labels.setdefault(bytes(value), (int(request.request_id), (index + 1) * self.unit))

    # -- playing -----------------------------------------------------------------------------------

    def _add(self, wanted: Json) -> Real:
        most = max(1, wanted["generate"])
        request = fitting(
            self.release.request,
            request_id=str(self.count),
            prompt_token_ids=read_row(wanted["prompt"]),
            sampling_params=self.release.params(max_tokens=most, ignore_eos=True, temperature=0),
            pooling_params=None,
            eos_token_id=None,
            cache_salt=wanted.get("salt"),
            block_hasher=self.hasher,
            priority=wanted.get("priority", 0),
            arrival_time=float(self.count),
        )
        self.count += 1
        self.told[request.request_id] = {"lookups": [], "chunks": [], "turn": 0}
        self.wanted[request.request_id] = wanted
        self._learn(request)
        self.scheduler.add_request(request)
        return request

    def _arrive(self, requests: dict[str, Real], group: Json, turn: int) -> None:
        """Those that come now are added; those whose client has had enough are aborted."""
        while len(requests) < len(group) and group[len(requests)].get("after", 0) <= turn:
            request = self._add(group[len(requests)])
            requests[request.request_id] = request
        for name, wanted in self.wanted.items():
            if wanted.get("abort") == turn:
                self.scheduler.finish_requests(name, self.release.aborted)

    def play(self, group: Json) -> Json:
        """Requests that arrive together; until all are done."""
        if "reset" in group[0]:
            return {"reset": bool(self.manager.reset_prefix_cache())}
        self.evicted = []
        self.told, self.wanted = {}, {}
        requests: dict[str, Real] = {}
        watched = [each for each in LOOKUPS if hasattr(self.manager, each)]
        for name in watched:
            setattr(self.manager, name, self._watched(getattr(self.manager, name)))
        problem = self._until_done(requests, group)
        for name in watched:
            delattr(self.manager, name)
        if problem:
            return {"error": problem}
        self.scheduler.schedule()  # flushes what the last step left
        free = self.pool.free_block_queue.get_all_free_blocks()
        return {
            "requests": [self._entry(each) for each in requests.values()],
            "evicted": self.evicted,
            "cache": [
                [block.block_id, *self._label(block.block_hash)]
                for block in self.pool.blocks
                if block.block_hash is not None and not block.is_null
            ],
            "queue": spell([block.block_id for block in free]),
        }

    def seconds(self, prompts: list[str]) -> float:
        """Look up, allocate, cache and free each prompt in turn, ids included; no scheduler."""
        texts = [read_row(prompt) for prompt in prompts]
        params = self.release.params(max_tokens=1, ignore_eos=True, temperature=0)
        make, hasher, manager = self.release.request, self.hasher, self.manager
        fixed = {"sampling_params": params, "pooling_params": None, "block_hasher": hasher}
        begun = time.process_time()
        for number, text in enumerate(texts):
            request = make(request_id=str(number), prompt_token_ids=text, **fixed)
            blocks, count, *_ = manager.get_computed_blocks(request)
            manager.allocate_slots(request, len(text) - count, count, blocks)
            manager.free(request)
            manager.new_step_starts()
        return time.process_time() - begun

    def _until_done(self, requests: dict[str, Real], group: Json) -> str:
        stuck = 0
        for turn in range(MOST_STEPS):
            self._arrive(requests, group, turn)
            busy = self.scheduler.has_unfinished_requests()
            if not busy and not self.under_way:
                if len(requests) == len(group):
                    return ""
                continue
            if busy:
                output = self.scheduler.schedule()
                counts = dict(output.num_scheduled_tokens)
                stuck = 0 if counts or self.under_way else stuck + 1
                if stuck > 3:
                    return "stuck"
                ends = {name: requests[name].num_computed_tokens for name in counts}
                for name, count in counts.items():
                    self.told[name]["chunks"].append([ends[name] - count, ends[name]])
                if counts:
                    self.under_way.append((output, ends))
                    if len(self.under_way) < self.most_under_way:
                        continue
            if self.under_way:
                came, ends = self.under_way.pop(0)
                self._come_back(came, ends, requests)
        return "too many steps"

    def _come_back(self, output: Real, ends: dict[str, int], requests: dict[str, Real]) -> None:
        """A step has run: what it says is handed over, and what is proposed next."""
        sampled, proposals = [], {}
        for name, end in ends.items():
            drafted = output.scheduled_spec_decode_tokens.get(name, [])
            reply = read_row(self.wanted[name].get("reply", ""))
            tokens = self._answer(requests[name], end, drafted, reply)
            sampled.append(tokens)
            if tokens:
                done = requests[name].num_output_tokens + len(tokens)
                proposals[name] = self._proposal(name, reply, done)
        self._hand_over(output, list(ends), sampled)
        if self.drafts and self.most_under_way == 1:
            self._propose(requests, proposals)
        for each in requests.values():
            self._learn(each)

    def _answer(self, request: Real, end: int, drafted: Json, reply: list[int]) -> list[int]:
        if end < request.num_tokens:
            return []
        done, accept = request.num_output_tokens, 0
        if drafted:
            told = self.told[request.request_id]
            accepts = self.wanted[request.request_id].get("accept", [])
            accept = min(accepts[told["turn"] % len(accepts)] if accepts else 0, len(drafted))
            told["turn"] += 1
        return reply[done : done + accept + 1]

    def _hand_over(self, output: Real, names: list[str], sampled: list[list[int]]) -> None:
        runner = fitting(
            self.release.outputs.ModelRunnerOutput,
            req_ids=names,
            req_id_to_index={name: number for number, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self.scheduler.update_from_output(output, runner)

    def _proposal(self, name: str, reply: list[int], done: int) -> list[int]:
        """The true continuation, as long as the workload has it; all drafts if it says nothing."""
        counts = self.wanted[name].get("propose") or [self.drafts]
        rest = reply[done : done + self.drafts] + [WRONG_DRAFT] * self.drafts
        return rest[: counts[done % len(counts)]]

    def _propose(self, requests: dict[str, Real], proposals: dict[str, list[int]]) -> None:
        alive = [name for name in proposals if not requests[name].is_finished()]
        drafts = [proposals[name] for name in alive]
        if alive:
            self.scheduler.update_draft_token_ids(self.release.outputs.DraftTokenIds(alive, drafts))

    def _entry(self, request: Real) -> Json:
        told = self.told[request.request_id]
        chunks = told["chunks"]
        prompt = request.num_prompt_tokens
        return {
            "cached": chunks[0][0] if chunks else None,
            "lookups": told["lookups"],
            "chunks": [each for each in chunks if each[0] < prompt or each[1] - each[0] > 1],
            "preempted": request.num_preemptions,
        }


def told(release: Release, wanted: Json) -> list[Json]:
    """Seconds for prompts, or all groups of a workload up to the first that ends in an error."""
    if "settings" in wanted:
        return [release.start.differences(config) for config in wanted["settings"]]
    server = Server(release, wanted["config"])
    if "prompts" in wanted:
        return [{"seconds": server.seconds(wanted["prompts"])}]
    return play_groups(wanted["steps"], server.play)


def main() -> None:
    """Play workloads until the input ends."""
    answers = own_output()
    logging.disable(logging.WARNING)
    answer_lines(answers, partial(told, Release(sys.argv[1])))


if __name__ == "__main__":
    main()
