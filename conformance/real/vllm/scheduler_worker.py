"""With an unpacked wheel: workloads on vLLM's own scheduler, without a model.

One line of JSON in, one line out: a workload goes in (configuration, groups of requests with the
reply tokens), its results come out, in the form of the vector files. Configuration, scheduler,
cache manager, coordinators, managers, block pool, requests and hashing are the release's own; the
model samples what the workload names. `{"settings": [...]}` with configurations brings what each
configuration differs in from the one that a server would start with.
"""

import importlib
import inspect
import itertools
import logging
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from cachesim.prove.rows import read_row, spell
from cachesim.prove.vllm.release_worker import install
from cachesim.prove.worker_side import (
    Json,
    Real,
    Stub,
    answer_lines,
    fitting,
    own_output,
    play_groups,
)
from conformance.real.vllm.caches_worker import Caches
from conformance.real.vllm.groups import Groups, Spans
from conformance.real.vllm.worker_settings import (
    ConfigFactory,
    connector,
    size_host,
    worker_metadata,
)

LOOKUPS = ("get_computed_blocks", "get_computed_blocks_for_connector")
PATCH = 1_000_000
"""The token of every image."""


DIGEST = 32
"""Bytes of a SHA-256."""


class Release:
    """The modules of one release."""

    def __init__(self, root: str) -> None:
        install(Path(root))
        self.store = connector()
        self.start = ConfigFactory()
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
        self.ended = requests.RequestStatus.FINISHED_LENGTH_CAPPED
        self.outputs = importlib.import_module("vllm.v1.outputs")
        self.sha256 = importlib.import_module("vllm.utils.hashing").sha256
        self.images: Real = importlib.import_module("vllm.multimodal.inputs")
        self.encoders = importlib.import_module("vllm.v1.core.encoder_cache_manager")
        self.params = importlib.import_module("vllm.sampling_params").SamplingParams
        self.adapter: Real = importlib.import_module("vllm.lora.request").LoRARequest
        self.offloaded = worker_metadata()
        self.environment: dict[str, Real] = vars(importlib.import_module("vllm.envs"))

    def lora(self, name: str, path: str, number: int) -> Real:
        """The adapter of a request, as its load by the server makes it."""
        return self.adapter(lora_name=name, lora_path=path, lora_int_id=number)


class Server(Groups):
    """The real scheduler of one configuration, and its recorded results."""

    NAME, PROMPT, OUTPUT = "request_id", "num_prompt_tokens", "num_output_tokens"
    PREEMPTIONS = "num_preemptions"

    def __init__(self, release: Release, config: Json) -> None:
        super().__init__(config)
        self.release, self.config = release, config
        release.environment["VLLM_PREFIX_CACHE_RETENTION_INTERVAL"] = config.get("retention")
        release.utils.init_none_hash(release.sha256)
        release.store.server = self
        self.settings = release.start.used(config)
        overlaps = self.settings.scheduler_config.async_scheduling
        self.most_under_way = 2 if overlaps else 1
        self.caches, self.sizes = release.caches.of(self.settings, config)
        if config.get("offload"):
            size_host(self.settings, self.caches, config["offload"])
        self.unit = self.sizes[1]
        block, unit = self.sizes
        self.scheduler = fitting(
            self.release.overlapping if overlaps else self.release.scheduler,
            vllm_config=self.settings,
            kv_cache_config=self.caches,
            structured_output_manager=Stub(
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
        size = config.get("budget", 8192)  # of an encoder, which the toy configuration lacks
        self.scheduler.max_num_encoder_input_tokens = size
        manager = self.release.encoders.EncoderCacheManager(cache_size=size)
        self.scheduler.encoder_cache_manager = manager
        self.hasher = fitting(
            release.utils.get_request_block_hasher,
            hash_block_size=self.unit,
            block_size=self.unit,  # its name until 0.23
            caching_hash_fn=release.sha256,
            num_hash_lookahead_tokens=getattr(self.settings, "num_hash_lookahead_tokens", 0),
        )
        self.manager = self.scheduler.kv_cache_manager
        self.reset = self.manager.reset_prefix_cache
        self.busy = self.scheduler.has_unfinished_requests
        if self.copies is not None:
            self.busy = self.scheduler.has_requests
            self._watch_host()
        self.blocks = self.manager.block_pool
        self.groups_apart = self._has_lookup_per_group(config)
        self.labels: dict[bytes, tuple[int, int]] = {}
        self._in_lookup = False
        self._watch_evictions()

    # -- configuration -----------------------------------------------------------------------------

    def _has_lookup_per_group(self, config: Json) -> bool:
        """True if this release has a lookup for each group beside a store (#44243)."""
        manager = self.manager
        since = hasattr(manager.coordinator, "find_longest_cache_hit_per_group")
        until = not hasattr(manager, "get_computed_blocks_for_connector")
        kinds = {group["kind"] for group in config["groups"]}
        return since and until and "mamba" in kinds and len(config["groups"]) > 1

    # -- what is written down ----------------------------------------------------------------------

    def _watch_evictions(self) -> None:
        inner = self.blocks._maybe_evict_cached_block

        def watched(block: Real) -> bool:
            before = block.block_hash
            done = bool(inner(block))
            if done and before is not None:
                self.evicted.append([block.block_id, *self._label(before)])
            return done

        self.blocks._maybe_evict_cached_block = watched

    def _watched(self, inner: Real) -> Real:
        """A recorded lookup; nested ones are not recorded."""

        def lookup(request: Real, *given: Real, **named: Real) -> Real:
            within, self._in_lookup = self._in_lookup, True
            found = inner(request, *given, **named)
            self._in_lookup = within
            if not within:
                self.results[request.request_id]["lookups"].append([found[1], *found[2:3]])
            return found

        return lookup

    def _label(self, keyed: Real) -> list[int]:
        value = self.release.utils.get_block_hash(keyed)
        group = self.release.utils.get_group_id(keyed)
        last = bytes(value)[-DIGEST:]  # until 0.23 a larger block's id is all of its units'
        return [int(group), *self.labels.get(last, (-1, -1))]

    def learn(self, request: Real) -> None:
        for index, value in enumerate(request.block_hashes):
            self.labels.setdefault(bytes(value), (int(request.request_id), (index + 1) * self.unit))

    # -- running -----------------------------------------------------------------------------------

    def request(self, number: int, wanted: Json) -> Real:
        most = max(1, wanted["generate"])
        prompt = read_row(wanted["prompt"])
        for _, start, count in wanted.get("images", ()):
            manager = self.scheduler.encoder_cache_manager  # grown to an image, as a model's limit
            more = max(count - manager.cache_size, 0)
            self.scheduler.max_num_encoder_input_tokens += more
            manager.cache_size += more
            manager.num_free_slots += more
            manager.num_freeable_slots += more
            prompt[start : start + count] = [PATCH] * count
        return fitting(
            self.release.request,
            request_id=str(number),
            prompt_token_ids=prompt,
            mm_features=[self._feature(*image) for image in wanted.get("images", ())] or None,
            sampling_params=self.release.params(
                max_tokens=most,
                ignore_eos=True,
                temperature=0,
                skip_reading_prefix_cache=wanted.get("skips_cache"),
            ),
            pooling_params=None,
            cache_salt=wanted.get("salt"),
            lora_request=self.release.lora(*wanted["lora"]) if "lora" in wanted else None,
            block_hasher=self.hasher,
            priority=wanted.get("priority", 0),
            arrival_time=float(number),
        )

    def _feature(self, name: str, start: int, count: int) -> Real:
        place = self.release.images.PlaceholderRange(offset=start, length=count)
        return fitting(
            self.release.images.MultiModalFeatureSpec,
            data=None,
            modality="image",
            identifier=name,
            mm_position=place,
            mm_hash=name,
        )

    def abort(self, request: Real) -> None:
        self.scheduler.finish_requests(request.request_id, self.release.aborted)

    def until_done(self, requests: dict[str, Real], group: Json) -> str:
        watched = [lookup for lookup in LOOKUPS if hasattr(self.manager, lookup)]
        for name in watched:
            setattr(self.manager, name, self._watched(getattr(self.manager, name)))
        problem = super().until_done(requests, group)
        for name in watched:
            delattr(self.manager, name)
        return problem

    def schedule(self, requests: Mapping[str, Real]) -> tuple[Real, Spans]:
        output = self.scheduler.schedule()
        ends = {name: requests[name].num_computed_tokens for name in output.num_scheduled_tokens}
        counts = output.num_scheduled_tokens
        return output, {name: (end - counts[name], end) for name, end in ends.items()}

    def drafted(self, step: Real, name: str) -> int:
        return len(step.scheduled_spec_decode_tokens.get(name, []))

    def proposes(self, step: Real) -> int:
        return int(getattr(step, "num_spec_tokens_to_schedule", self.drafts))  # since 0.24

    def hand_over(self, step: Real, sampled: Mapping[str, list[int]]) -> None:
        runner = fitting(
            self.release.outputs.ModelRunnerOutput,
            req_ids=list(sampled),
            req_id_to_index={name: number for number, name in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=self._transfers(),
        )
        self.scheduler.update_from_output(step, runner)

    def _transfers(self) -> Real:
        """Transfers that the worker's half of the store reports, as `KVConnectorOutput`.

        Lists, since the order of a set of names differs between processes.
        """
        if self.copies is not None:
            ended, received = self.copies.next()
            done = self.release.offloaded(completed_jobs=dict.fromkeys(ended, 1))
            return fitting(
                self.release.outputs.KVConnectorOutput,
                finished_recving=received,
                kv_connector_worker_meta=done,
            )
        received, sent, failed, invalid = self.loads.next()
        if not (received or sent or invalid):
            return None
        return fitting(
            self.release.outputs.KVConnectorOutput,
            finished_recving=received,
            finished_sending=sent,
            failed_recving=failed,
            invalid_block_ids=invalid,
        )

    def _watch_host(self) -> None:
        """Record what the host evicts. Requests that end between two steps come in their order of
        arrival, and the keys of a job in that of its chunks: upstream has sets of names and of
        bytes, whose order differs between processes.
        """
        side = self.scheduler.connector.connector_scheduler
        manager, build = side.manager, side.build_connector_meta
        store, load = manager.prepare_store, manager.prepare_load
        order, count = dict[Real, int](), itertools.count()

        def prepare_store(keys: Real, *rest: Real) -> Real:
            answer = store(keys, *rest)
            if answer is not None:
                self.host_evicted += [self._host_label(key) for key in answer.evicted_keys]
                order.update(zip(answer.keys_to_store, count, strict=False))
            return answer

        def prepare_load(keys: Real, *rest: Real) -> Real:
            order.update(zip(keys, count, strict=False))
            return load(keys, *rest)

        def in_order(complete: Real) -> Real:
            return lambda keys, *rest: complete(sorted(keys, key=order.__getitem__), *rest)

        def build_connector_meta(output: Real) -> Real:
            ended = output.finished_req_ids
            output.finished_req_ids = sorted(ended, key=int)
            meta = build(output)
            output.finished_req_ids = ended
            return meta

        manager.prepare_store, manager.prepare_load = prepare_store, prepare_load
        manager.complete_store = in_order(manager.complete_store)
        manager.complete_load = in_order(manager.complete_load)
        side.build_connector_meta = build_connector_meta

    def _host_label(self, key: bytes) -> list[int]:
        group, value = int.from_bytes(key[-4:], "big"), bytes(key[:-4])
        return [group, *self.labels.get(value[-DIGEST:], (-1, -1))]

    def begin_copies(self, step: Real) -> None:
        meta = step.kv_connector_metadata
        for number, job in (meta.load_jobs | meta.store_jobs).items():
            stores = number in meta.store_jobs
            gpu, host = (job.src_spec, job.dst_spec) if stores else (job.dst_spec, job.src_spec)
            groups = zip(gpu.block_indices, gpu.group_sizes, strict=True)
            spans = [[i, int(first), int(size)] for i, (first, size) in enumerate(groups) if size]
            blocks, slots = [*map(int, gpu.block_ids)], [*map(int, host.block_ids)]
            flushed = number in (meta.jobs_to_flush or ())
            name = int(job.req_id)
            self.jobs.append([number, stores, name, blocks, spans, slots, flushed])
        if self.copies is not None:
            loads = {number: job.req_id for number, job in meta.load_jobs.items()}
            self.copies.begin(loads, [*meta.store_jobs], set(meta.jobs_to_flush or ()))

    def host(self) -> Json:
        policy = self.scheduler.connector.connector_scheduler.manager._policy
        held = policy.chunks if hasattr(policy, "chunks") else {**policy.t1, **policy.t2}
        slots = [
            [slot.chunk_id, slot.ref_cnt, *self._host_label(key)] for key, slot in held.items()
        ]
        return {"host": sorted(slots), "host_evicted": self.host_evicted}

    def propose(self, requests: Mapping[str, Real], proposals: Mapping[str, list[int]]) -> None:
        alive = [name for name in proposals if not requests[name].is_finished()]
        if alive:
            drafts = self.release.outputs.DraftTokenIds(alive, [proposals[name] for name in alive])
            self.scheduler.update_draft_token_ids(drafts)

    def pool(self) -> Json:
        free = self.blocks.free_block_queue.get_all_free_blocks()
        cache = [
            [block.block_id, *self._label(block.block_hash)]
            for block in self.blocks.blocks
            if block.block_hash is not None and not block.is_null
        ]
        return {"cache": cache, "queue": spell([block.block_id for block in free])}

    def seconds(self, prompts: list[str]) -> float:
        """Look up, allocate, cache and free each prompt in turn, ids included; no scheduler."""
        texts = [read_row(prompt) for prompt in prompts]
        params = self.release.params(max_tokens=1, ignore_eos=True, temperature=0)
        make, hasher, manager = self.release.request, self.hasher, self.manager
        fixed = {"sampling_params": params, "pooling_params": None, "block_hasher": hasher}
        started = time.process_time()
        for number, text in enumerate(texts):
            request = make(request_id=str(number), prompt_token_ids=text, **fixed)
            blocks, count, *_ = manager.get_computed_blocks(request)
            manager.allocate_slots(request, len(text) - count, count, blocks)
            manager.free(request)
            manager.new_step_starts()
        return time.process_time() - started


def results_of(release: Release, wanted: Json) -> list[Json]:
    """Seconds for prompts, or all groups of a workload up to the first that ends in an error."""
    if "settings" in wanted:
        return [release.start.differences(config) for config in wanted["settings"]]
    server = Server(release, wanted["config"])
    if "prompts" in wanted:
        return [{"seconds": server.seconds(wanted["prompts"])}]
    return play_groups(wanted["steps"], server.play)


def main() -> None:
    """Run workloads until the input ends."""
    answers = own_output()
    logging.disable(logging.WARNING)
    answer_lines(answers, partial(results_of, Release(sys.argv[1])))
