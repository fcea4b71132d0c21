"""The release's own scheduler, pools and tree of one configuration, release by release.

Runs in the worker, and is imported after the stand-ins: its imports are the unpacked release's.
"""

import hashlib
import importlib
import itertools
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from cachesim.prove.rows import read_row
from cachesim.prove.worker_side import Json, NoOp, Real, Stub, fitting
from conformance.real.sglang import drafts_worker, hicache_worker
from conformance.real.sglang.parts_worker import FULL, MAMBA, SWA, RustNodes, Sessions

CHUNK: Final = 64
"""Chunk size of a linear-attention kernel."""


THINK_END: Final = 999_998
"""The token that ends a model's reasoning; no text has it."""

PATCH: Final = 999_999
"""The token of any image's piece; no text has it."""

RANKS: Final = tuple(
    f"{name}_rank"
    for name in (
        "tp", "pp", "dp", "attn_tp", "attn_dp", "attn_cp", "moe_ep", "moe_dp", "moe_tp", "dcp",
        "attn_dcp",
    )
)  # fmt: skip


ENTRIES: Final = itertools.count()
"""Times at which requests are queued, all different."""


class InOrder(dict[Real, None]):
    """A set that keeps the order of its members, not that of their addresses."""

    def __init__(self, members: Iterable[Real] = ()) -> None:
        super().__init__(dict.fromkeys(members))

    def add(self, member: Real) -> None:
        self[member] = None


RUNNER: Final = {"attn_backend": object(), "prefill_aware_swa": False}
"""Attributes of the model's runner that a scheduler reads."""

SCHEDULING: Final = (
    "schedule_policy",
    "enable_priority_scheduling",
    "schedule_low_priority_values_first",
    "priority_scheduling_preemption_threshold",
)


def set_all(owner: Real, values: Json) -> None:
    """Set attributes."""
    for name, value in values.items():
        setattr(owner, name, value)


def find(name: str, *modules: str) -> Real:
    """A name, in the first of some modules that has it."""
    for module in modules:
        try:
            return getattr(importlib.import_module(f"sglang.srt.{module}"), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(name)


Scheduler: Real = find("Scheduler", "managers.scheduler")


class Attributes(Stub, Scheduler):  # type: ignore[misc] # the release's class: any
    """The real scheduler's methods on attributes that are set here; others are None.

    Its own `__init__` opens sockets and loads a model.
    """

    def stream_output(self, *_: Real, **__: Real) -> None:
        """Print nothing."""

    maybe_collect_routed_experts = maybe_collect_customized_info = stream_output
    report_prefill_stats = log_prefill_stats = log_decode_stats = stream_output
    log_decode_stats_every_iteration = send_abort_output = update_spec_metrics = stream_output
    _abort_on_waiting_timeout = _abort_on_running_timeout = stream_output

    def maybe_prepare_mlp_sync_batch(self, batch: Real, *_: Real, **__: Real) -> Real:
        """Return the batch: one worker synchronizes with none."""
        return batch

    def _add_request_to_queue(self, req: Real, *, is_retracted: bool = False) -> None:
        super()._add_request_to_queue(req, is_retracted)
        req.time_stats.wait_queue_entry_time = next(ENTRIES)


class Core:
    """The part that releases have in common: pools, allocator, requests."""

    rust: RustNodes | None = None
    """The nodes of a tree core in Rust, which has none that Python could walk."""

    _settings: Callable[[Json], Real]
    settings: Callable[[], Json]  # the configuration that the scheduler has
    _tree: Callable[[Real], Real]
    _begin: Callable[[], None]  # what its `__init__` does further; it sets the processor
    processor: Real  # of results

    def __init__(self, config: Json) -> None:
        self.config, self.kind = config, config["kind"]
        self.has_states = "mamba" in self.kind
        self.has_windows = "window" in self.kind
        self.loras = config.get("loras", 0)
        self.extra_buffer = config.get("strategy") == "extra_buffer"
        self.host = config.get("host")
        self.storage = (self.host or {}).get("storage")
        self.page, self.size = config.get("page", 1), config["tokens"]
        self.rows, self.length = config.get("max_running", 8), config.get("max_len", 4096)
        self.chunk = config.get("chunk", 8192)
        self.drafts = config.get("drafts")
        self.modes = find("DisaggregationMode", "disaggregation.utils")
        # The configuration of a server's start, and what is otherwise (`settings.OVERRIDES`).
        own: Json = {"device": "cpu", "pp_max_micro_batch_size": self.rows}
        if self.config.get("eagle") and not self.drafts:
            own["speculative_algorithm"] = None
        if self.host is not None:
            own |= {"hicache_io_backend": "direct", "hicache_mem_layout": hicache_worker.LAYOUT}
        self.overlaps = not self.config["server"]["disable_overlap_schedule"]
        self.args = self._settings(self.config["server"] | own)
        if self.drafts:
            drafts_worker.install()
        self.pool = self._rows_pool()
        self.allocator = self._allocator()
        self.tree = self._tree(self._tree_parameters())
        make = find("Session", "session.session_controller", "managers.session_controller")
        self.sessions = Sessions(make, self.tree, self._is_alive)
        if self.host is not None:
            hicache_worker.slow_down(self.tree.cache_controller, self.host.get("lag", 0))
        if self.storage is not None:
            hicache_worker.step_by_polls(self.tree, self.storage)
        vars(importlib.import_module("sglang.srt.managers.schedule_policy"))["set"] = InOrder
        self.scheduler = Attributes()
        set_all(self.scheduler, self._attributes())
        self._begin()

    def _rows_pool(self) -> Real:
        torch = importlib.import_module("torch")
        length = self.length + (self._reserved() if self.drafts else 0)
        common: Json = {"device": "cpu", "enable_memory_saver": False, "max_context_len": length}
        if not self.has_states:
            made = find("ReqToTokenPool", "mem_cache.memory_pool")
            return fitting(made, size=self.rows, **common)
        shape = fitting(
            find("Mamba2StateShape", "configs.mamba_utils"),
            conv=[(1, 1)],
            temporal=(1, 1, 1),
            intermediate_size=1,
            conv_dim=1,
            ssm_state_size=1,
            num_heads=1,
            head_dim=1,
            state_size=1,
            conv_kernel=2,
        )
        kinds = Stub(conv=torch.float32, temporal=torch.float32)
        return fitting(
            find("HybridReqToTokenPool", "mem_cache.memory_pool"),
            size=self.rows,
            mamba_size=self.config["states"],
            mamba_spec_state_size=self.rows,
            cache_params=Stub(shape=shape, dtype=kinds, layers=[0], mamba_cache_per_req=8),
            enable_mamba_extra_buffer=self.extra_buffer,
            enable_overlap_schedule=self.overlaps,
            speculative_num_draft_tokens=(self.drafts or {}).get("tokens"),
            mamba_layer_ids=[0],
            **common,
        )

    def _reserved(self) -> int:
        """Reserved places in a row beyond the context's."""
        return int(find("get_req_to_token_extra_context_len", "mem_cache.allocation_sizing")())

    def _allocator(self) -> Real:
        torch = importlib.import_module("torch")
        common: Json = {"size": self.size, "page_size": self.page, "dtype": torch.float32}
        common |= {"device": "cpu", "need_sort": False}
        memory = common | {"head_num": 1, "head_dim": 1, "enable_memory_saver": False}
        if self.has_windows:
            windows = self.config["window_tokens"]
            cache = fitting(
                find("SWAKVPool", "mem_cache.swa_memory_pool"),
                **memory,
                size_swa=windows,
                swa_attention_layer_ids=[0],
                full_attention_layer_ids=[1],
                enable_kvcache_transpose=False,
            )
            made = find(
                "SWATokenToKVPoolAllocator", "mem_cache.allocator.swa", "mem_cache.swa_memory_pool"
            )
            return fitting(made, **common, size_swa=windows, kvcache=cache)
        cache = self._attention(memory)
        name, module = (
            ("TokenToKVPoolAllocator", "mem_cache.allocator.token")
            if self.page == 1
            else ("PagedTokenToKVPoolAllocator", "mem_cache.allocator.paged")
        )
        return fitting(find(name, module, "mem_cache.allocator"), **common, kvcache=cache)

    def _attention(self, memory: Json) -> Real:
        """The pool of keys and values; a host with states needs the pool of both."""
        if self.host is None or not self.has_states:
            made = find("MHATokenToKVPool", "mem_cache.memory_pool")
            return fitting(made, **memory, layer_num=1)
        return fitting(
            find("HybridLinearKVPool", "mem_cache.memory_pool"),
            **memory,
            full_attention_layer_ids=[1],
            mamba_pool=self.pool.mamba_pool,
        )

    def _tree_parameters(self) -> Real:
        return fitting(
            find("CacheInitParams", "mem_cache.cache_init_params"),
            disable=False,
            req_to_token_pool=self.pool,
            token_to_kv_pool_allocator=self.allocator,
            page_size=self.page,
            is_eagle=bool(self.config.get("eagle")),
            eviction_policy=self.config.get("policy", "lru"),
            enable_mamba_extra_buffer=self.extra_buffer,
            chunked_prefill_size=self.chunk,
            sliding_window_size=self.config.get("window") if self.has_windows else None,
        )

    def _attributes(self) -> Json:
        """Attributes that the scheduler's own `__init__` sets."""
        window = self.config.get("window") if self.has_windows else None
        model = Stub(
            vocab_size=1 << 30,
            hidden_size=1,
            is_encoder_decoder=False,
            context_len=self.length,
            is_hybrid_swa=self.has_windows,
            sliding_window_size=window,
            hf_config=Stub(),
            hf_text_config=Stub(mamba_chunk_size=CHUNK),
            is_multimodal=False,
            model_impl="auto",
            think_end_ids=[THINK_END],
        )
        return {
            "server_args": self.args,
            "model_config": model,
            "page_size": self.page,
            "device": "cpu",
            "req_to_token_pool": self.pool,
            "token_to_kv_pool_allocator": self.allocator,
            "tree_cache": self.tree,
            "spec_algorithm": find("SpeculativeAlgorithm", "speculative.spec_info").from_string(
                "EAGLE" if self.drafts else None
            ),
            "future_map": NoOp(),
            "is_generation": True,
            "enable_overlap": self.overlaps,
            "enable_skip_finishing_decode": self.overlaps,  # `event_loop_overlap` sets it
            "result_queue": deque(),
            "max_running_requests": self.rows,
            "max_prefill_tokens": self.config.get("max_prefill", 16384),
            "max_total_num_tokens": self.size,
            "is_hybrid_swa": self.has_windows,
            "is_hybrid_ssm": self.has_states,
            "sliding_window_size": window,
            **{name: self.config["server"][name] for name in SCHEDULING},
            "enable_hierarchical_cache": self.host is not None,
            "enable_lora": bool(self.loras),
            "tp_worker": Stub(model_runner=Stub(lora_manager=self, **RUNNER)),
            "enable_metrics": False,
            "enable_hicache_storage": self.storage is not None,
            "grammar_manager": NoOp(has_waiting_grammars=lambda: False),
            "send_to_tokenizer": NoOp(),
            "disaggregation_mode": self.modes.NULL,
            "num_generated_tokens": 0,
            "processed_tokens_counter": 0,
            "forward_ct_decode": 0,
        }

    def validate_lora_batch(self, adapters: set[Real]) -> bool:
        """`LoRAManager`'s, without pinned adapters."""
        return len(adapters) <= int(self.loras)

    @staticmethod
    def ids(tokens: list[int]) -> Real:
        """Tokens as requests have them."""
        return tokens

    def request(self, name: str, prompt: list[int], wanted: Json) -> Real:
        made = find("SamplingParams", "sampling.sampling_params")
        sampling = made(
            max_new_tokens=max(1, wanted["generate"]),
            temperature=0,
            ignore_eos=self.config.get("ignore_eos", True),
        )
        sampling.normalize(None)
        named = {
            "rid": name,
            "sampling_params": sampling,
            "extra_key": wanted.get("salt"),
            "routing_key": wanted.get("routing_key"),
            "lora_id": wanted.get("lora"),
            "priority": wanted.get("priority"),
            "require_reasoning": wanted.get("thinks", False),
        }
        if "session" in wanted:
            return self._continued(prompt, wanted, named)
        return self._plain(prompt, wanted, named)

    def _plain(self, prompt: list[int], wanted: Json, named: Json) -> Real:
        request = fitting(
            find("Req", "managers.schedule_batch"),
            origin_input_text="",
            origin_input_ids=self.padded(self.ids(prompt), wanted.get("images", [])),
            vocab_size=1 << 30,
            eos_token_ids=set(),
            **named,
        )
        request.tokenizer = None
        return request

    def _continued(self, prompt: list[int], wanted: Json, named: Json) -> Real:
        """A request of a session, by the release's own `Session`."""
        params = {"replace": False, "drop_previous_output": False, **wanted["session"]}
        named |= {"rid": wanted["rid"]}
        received = Stub(input_ids=self.ids(prompt), return_hidden_states=False, **named)
        return self.sessions.request(received, params, lambda: self._plain(prompt, {}, named))

    def padded(self, ids: Real, images: Json) -> Real:
        """The ids with the release's own pad values in place of images.

        A request has one item of all images until #21899 (unless split by a variable), then one
        of each.
        """
        if not images:
            return ids
        kind = find("Modality", "managers.schedule_batch").IMAGE
        make = find("MultimodalDataItem", "managers.schedule_batch")
        spans = [(start, start + count - 1) for _, start, count in images]
        groups = [(images, spans)]
        splitting = getattr(find("envs", "environ"), "SGLANG_ENABLE_MM_SPLITTING", None)
        if splitting is None or splitting.get():
            groups = [([image], [span]) for image, span in zip(images, spans, strict=True)]
        items = []
        for group, places in groups:
            names = " ".join(name for name, *_ in group)
            number = int.from_bytes(hashlib.sha256(names.encode()).digest()[:8])
            items.append(make(modality=kind, hash=number, offsets=places, feature=0))
            if hasattr(items[-1], "set_hash"):
                items[-1].set_hash(number)
            else:
                items[-1].set_pad_value()
        for _, start, count in images:
            ids[start : start + count] = self.ids([PATCH] * count)
        inputs = fitting(
            find("MultimodalInputs", "managers.schedule_batch"),
            mm_items=items,
            im_token_id=PATCH,
            video_token_id=PATCH,  # every kind of 0.5.23 is the same stand-in
        )
        pattern = find("MultiModalityDataPaddingPatternMultimodalTokens", "managers.mm_utils")
        return pattern().pad_input_tokens(ids, inputs)

    def _is_alive(self, request: Real) -> bool:
        last, running = self.scheduler.last_batch, self.scheduler.running_batch
        places = (self.scheduler.waiting_queue, running.reqs, last.reqs if last else ())
        return not request.finished() and any(request in place for place in places)

    def abort(self, name: str) -> None:
        self.scheduler.abort_request(Stub(rid=name, abort_all=False))

    def leaks(self) -> bool:
        """True if free slots and the tree's are not all slots, at idle."""
        return False

    def _result(self, batch: Real, runs: list[list[int]]) -> Real:
        torch = importlib.import_module("torch")
        common = {
            "can_run_cuda_graph": False,
            "num_accepted_tokens": 0,
            "get_num_generated_tokens": lambda count: count,
        }
        if self.drafts and batch.forward_mode.is_decode():
            result = drafts_worker.verified(runs, self.drafts["tokens"], common)
            if not self.overlaps:  # else the next forward looks up the lengths
                drafts_worker.advance(batch, result)
            return result
        return Stub(next_token_ids=torch.tensor([run[0] for run in runs]), **common)

    def launch(self, batch: Real) -> None:
        """Queue a batch that runs, of which only a copy is processed with overlap."""
        queued = batch.copy() if self.overlaps else batch
        self.scheduler.result_queue.append((queued, None))

    def take(self, batch: Real, runs: list[list[int]], *, extends: bool) -> None:
        """Process the tokens of a batch."""
        kind = "prefill" if extends else "decode"
        process = getattr(self.processor, f"process_batch_result_{kind}")
        process(batch, self._result(batch, runs))

    def run_of(self, request: Real, wanted: Json, *, extends: bool) -> list[int]:
        """The tokens that a request generates in this step."""
        reply, done = read_row(wanted.get("reply", "")), len(request.output_ids)
        count = 1
        if self.drafts and not extends:
            count = drafts_worker.accepted(wanted, self.drafts, request.spec_verify_ct)
        return (reply[done:] + [1] * count)[:count]

    def free(self) -> Json:
        found: Json = {}
        if self.has_windows:
            found["tokens"] = int(self.allocator.full_available_size())
            found["window_tokens"] = int(self.allocator.swa_available_size())
        else:
            found["tokens"] = int(self.allocator.available_size())
        if self.has_states:
            states = getattr(self.pool, "mamba_allocator", None) or self.pool.mamba_pool
            found["states"] = int(states.available_size())
        if self.host is not None:
            found |= hicache_worker.free_slots(self.tree)
        return found


class OnePerKind(Core):
    """0.5.9: a tree for each kind of model, settings in one object."""

    def _settings(self, values: Json) -> Real:
        values["attention_backend"] = "torch_native"
        args = Stub(
            **values,
            enable_mamba_extra_buffer=lambda: self.extra_buffer,
            get_attention_backends=lambda: (values["attention_backend"],) * 2,
        )
        set_all(importlib.import_module("sglang.srt.server_args"), {"_global_server_args": args})
        _stand_in_for_page_kernels()
        return args

    def settings(self) -> Json:
        return {name: held for name, held in vars(self.args).items() if not callable(held)}

    def _tree(self, parameters: Real) -> Real:
        if self.host is not None:
            module = importlib.import_module("sglang.srt.mem_cache.hiradix_cache")
            hicache_worker.install_host(module)
            hicache_worker.install_storage(self.storage)
            return module.HiRadixCache(parameters, self.args)
        if self.has_states:
            return find("MambaRadixCache", "mem_cache.mamba_radix_cache")(parameters)
        if self.has_windows:
            return find("SWARadixCache", "mem_cache.swa_radix_cache")(params=parameters)
        return find("RadixCache", "mem_cache.radix_cache")(parameters)

    def _reserved(self) -> int:
        return 4 + int(self.drafts["tokens"])  # as `ModelRunner` adds it

    def _result(self, batch: Real, runs: list[list[int]]) -> Real:
        if not self.drafts or not batch.forward_mode.is_decode():
            return super()._result(batch, runs)
        given = self.drafts, self.page, self.allocator
        return drafts_worker.verified_while_drafted(batch, runs, *given)

    def _begin(self) -> None:
        scheduler = self.scheduler
        set_all(scheduler, dict.fromkeys(("pp_size", "tp_size", "dp_size"), 1))
        set_all(scheduler, dict.fromkeys(("attn_tp_rank", "pp_rank", "tp_rank"), 0))
        self.processor = scheduler
        scheduler.init_running_status()
        scheduler.init_chunked_prefill()
        scheduler.init_schedule_policy()

    @property
    def root(self) -> Real:
        return self.tree.root_node

    def held(self, node: Real) -> list[int]:
        """Flags of a node: state, or window; with a host, attention on the device and the host."""
        if self.host is not None:
            return [int(node.value is not None), int(node.host_value is not None)]
        if self.has_states:
            return [int(node.mamba_value is not None)]
        return [int(not node.swa_tombstone)] if self.has_windows else []

    @staticmethod
    def span(request: Real) -> tuple[int, int]:
        start = len(request.prefix_indices)
        return start, start + request.extend_input_len

    @staticmethod
    def branch(request: Real) -> Real:
        return getattr(request, "mamba_branching_seqlen", None)

    def plan(self) -> Real:
        return self.scheduler.get_next_batch_to_run()

    def idle(self) -> None:
        """What `self_check_during_idle` does beside its checks."""
        self.scheduler.new_token_ratio = self.scheduler.init_new_token_ratio

    def launch(self, batch: Real) -> None:
        if self.config.get("mixes"):  # what a prefill mixes in is fed again
            torch: Real = importlib.import_module("torch")
            batch.output_ids = torch.zeros(len(batch.reqs), dtype=torch.int64)
        super().launch(batch)


class Unified(Core):
    """0.5.16 on: one tree for all kinds, settings in a context that the process publishes."""

    published: Real = None

    def _settings(self, values: Json) -> Real:
        module = importlib.import_module("sglang.srt.runtime_context")
        values["_mamba_cache_chunk_size"] = values.pop("mamba_cache_chunk_size")
        if "requested" in self.config:
            self._check_running(module, values)
        args = self._publish(module, values)
        module.get_parallel().override_permanently(**dict.fromkeys(RANKS, 0))
        return args

    def _publish(self, module: Real, values: Json) -> Real:
        if Unified.published is not None:
            Unified.published.restore()
        Unified.published = module.get_context().override_server_args(**values)
        return Unified.published.install()

    def settings(self) -> Json:
        chunk = self.args._mamba_cache_chunk_size
        return self.args.resolved_dict() | {"mamba_cache_chunk_size": chunk}

    def _check_running(self, module: Real, values: Json) -> None:
        """Compare the number of requests that run at once with the release's own sum."""
        self._publish(module, values)
        configurator = find("KVCacheConfigurator", "mem_cache.kv_cache_configurator")
        owner: Real = Stub(
            attn_dp_size=1,
            model_config=Stub(context_len=self.length),
            mambaish_config=Stub() if self.has_states else None,
        )
        owner._calculate_mamba_ratio = lambda: configurator._calculate_mamba_ratio(owner)
        running = configurator.resolve_max_num_reqs(owner, self.size)
        if running != self.rows:
            raise ValueError(f"the release runs {running} requests at once, not {self.rows}")

    def _tree(self, parameters: Real) -> Real:
        if self.host is not None:
            hicache_worker.install_unified_host()
            hicache_worker.install_unified_storage(self.storage)
        wanted = Stub(
            server_args=self.args,
            params=parameters,
            is_hybrid_swa=self.has_windows,
            is_hybrid_ssm=self.has_states,
            full_tokens_per_layer=1,
            enable_hierarchical_cache=self.host is not None,
            tp_worker=NoOp(),
        )
        return find("create_unified_radix_cache", "mem_cache.registry")(wanted)

    def _begin(self) -> None:
        scheduler = self.scheduler
        beam = NoOp(pending_member_rows=lambda *_: 0)
        set_all(scheduler, self._unified_attributes(beam))
        scheduler.init_schedule_policy()
        self.processor = fitting(
            find(
                "SchedulerBatchResultProcessor",
                "managers.scheduler_components.batch_result_processor",
            ),
            is_generation=True,
            disaggregation_mode=self.modes.NULL,
            enable_overlap=self.overlaps,
            enable_overlap_mlx=False,
            model_config=self.scheduler.model_config,
            token_to_kv_pool_allocator=self.allocator,
            tree_cache=self.tree,
            hisparse_coordinator=None,
            req_to_token_pool=self.pool,
            decode_offload_manager=None,
            metrics_collector=None,
            metrics_reporter=NoOp(
                num_generated_tokens=0,
                enable_metrics=False,
                forward_ct_decode=0,
                current_scheduler_metrics_enabled=False,
            ),
            draft_worker=None,
            model_worker=NoOp(),
            logprob_result_processor=NoOp(),
            output_streamer=NoOp(),
            beam_coordinator=beam,
            abort_request=lambda *_: None,
        )
        core = self.tree.tree_core
        if type(core).__name__ == "RustUnifiedTreeCore":
            kinds = [
                kind for has, kind in ((self.has_states, MAMBA), (self.has_windows, SWA)) if has
            ]
            self.rust = RustNodes(
                core,
                page=self.page,
                bigrams=bool(self.config.get("eagle")) and not self.has_states,
                kinds=[FULL, *kinds] if self.host is not None else kinds,
                host=self.host is not None,
            )

    def _unified_attributes(self, beam: Real) -> Json:
        batches = find("ScheduleBatch", "managers.schedule_batch")
        return {
            "beam_coordinator": beam,
            "dp_attn_adapter": Stub(
                maybe_prepare_mlp_sync_batch=lambda batch, **_: batch,
                maybe_convert_decode_to_extend=lambda batch: batch,
            ),
            "ngram_embedding_manager": Stub(prepare_for_forward=lambda batch, **_: batch),
            "load_inquirer": Stub(_get_num_pending_tokens=lambda **_: 0),
            "metrics_reporter": NoOp(enable_metrics=False),
            "ipc_channels": Stub(send_to_tokenizer=NoOp()),
            "waiting_queue": [],
            "chunked_req": None,
            "last_batch": None,
            "_pending_chunked_abort_req": None,
            "chunked_prefill_size": self.chunk,
            "prefill_decode_interval": 0,
            "_prefill_decode_interval_remaining": 0,
            "prefill_decode_interval_min_bs": 0,
            "is_mixed_chunk": self.config["server"]["enable_mixed_chunk"],
            "forward_ct": 0,
            "running_batch": batches(reqs=[], batch_is_full=False),
        }

    def leaks(self) -> bool:
        """By the release's own check, after which a server ends (`self_check_during_idle`)."""
        checker = find(
            "SchedulerInvariantChecker", "managers.scheduler_components.invariant_checker"
        )
        free, tree = self.free(), self.tree
        pools = [("full", free["tokens"], self.size)]
        if self.has_windows:
            pools.append(("swa", free["window_tokens"], self.config["window_tokens"]))
        return any(
            checker._check_pool_invariant(
                pool_name=name,
                available=available,
                evictable=getattr(tree, f"{name}_evictable_size")(),
                protected=getattr(tree, f"{name}_protected_size")(),
                session_held=self._held_by_sessions(name),
                total=size // self.page * self.page,
            )[0]
            for name, available, size in pools
        )

    def _held_by_sessions(self, name: str) -> int:
        observer: Real = importlib.import_module(
            "sglang.srt.managers.scheduler_components.pool_stats_observer"
        )
        count = observer.kv_private_swa_tokens if name == "swa" else observer.kv_private_tokens
        return sum(count(record, self.page) for record in self.sessions.records())

    @property
    def root(self) -> Real:
        return self.tree.tree_core.root_node

    def held(self, node: Real) -> list[int]:
        """Flags of a node: state and window, with a host on both tiers."""
        kinds = find("ComponentType", "mem_cache.unified_cache.components")
        asked = [(self.has_states, kinds.MAMBA), (self.has_windows, kinds.SWA)]
        if self.host is None:
            return [int(node.component_data[kind].value is not None) for has, kind in asked if has]
        parts = [node.component_data[kind] for has, kind in [(True, kinds.FULL), *asked] if has]
        return [int(on is not None) for part in parts for on in (part.value, part.host_value)]

    @staticmethod
    def ids(tokens: list[int]) -> Real:
        return array("q", tokens)

    @staticmethod
    def span(request: Real) -> tuple[int, int]:
        return request.prefix_len, request.extend_end

    def branch(self, request: Real) -> Real:
        if self.kind == "window":
            return request.swa_branching_seqlen
        return request.mamba_branching_seqlen

    def idle(self) -> None:
        """What `on_idle` does beside its checks, if no request is there."""
        scheduler = self.scheduler
        waits = scheduler.waiting_queue or scheduler.chunked_req or scheduler.result_queue
        if not waits and scheduler.running_batch.is_empty() and not scheduler.last_batch:
            scheduler.new_token_ratio_tracker.reset()

    def plan(self) -> Real:
        scheduler = self.scheduler
        self.sessions.reap()
        found = scheduler.get_next_batch_to_run(
            running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
        )
        scheduler.running_batch = found.running_batch
        return found.batch_to_run

    def take(self, batch: Real, runs: list[list[int]], *, extends: bool) -> None:
        super().take(batch, runs, extends=extends)
        self.tree.flush_pending_backups()


def _stand_in_for_page_kernels() -> None:
    """0.5.9 takes pages by kernels only; the same sums, one of them by the release's own."""
    allocator = importlib.import_module("sglang.srt.mem_cache.allocator")

    def extend(prefix: Real, seq: Real, last: Real, free: Real, out: Real, *rest: Real) -> None:
        page = rest[1]
        needed = int(((seq + page - 1) // page - (prefix + page - 1) // page).sum())
        if needed <= len(free):  # else the caller gives up
            allocator.alloc_extend_naive(prefix, seq, last, free, out, page, "cpu")

    def decode(seq: Real, last: Real, free: Real, out: Real, _upper: Real, page: Real) -> None:
        taken = 0
        for index, length in enumerate(seq.tolist()):
            if (length - 1) % page:
                out[index] = last[index] + 1
                continue
            if taken < len(free):
                out[index] = free[taken] * page
            taken += 1

    launch = drafts_worker.Launch
    vars(allocator).update(alloc_extend_kernel=launch(extend), alloc_decode_kernel=launch(decode))


def core_of(root: Path) -> type[Core]:
    """The class for a release."""
    is_unified = (root / "sglang/srt/mem_cache/unified_radix_cache.py").exists()
    return Unified if is_unified else OnePerKind
