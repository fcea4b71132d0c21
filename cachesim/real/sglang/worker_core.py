"""The release's own scheduler, pools and tree of one configuration; runs in the worker.

Imported after the stand-ins are in place: what is imported here is the unpacked release's.
"""

import importlib
from typing import Any, Final

from cachesim.real.sglang import worker_host, worker_storage
from cachesim.real.sglang.rust_core import RustNodes
from cachesim.real.worker_side import Bag, Told, fitting

Json = Any
Real = Any

CHUNK: Final = 64
"""What a linear-attention kernel takes at once."""


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


class Attributes(Scheduler):  # type: ignore[misc] # the release's class: any
    """The real scheduler's methods on attributes that are set here; what is not set is None.

    Its own `__init__` opens sockets and loads a model.
    """

    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Real:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def stream_output(self, *_: Real, **__: Real) -> None:
        """Nobody listens."""

    maybe_collect_routed_experts = maybe_collect_customized_info = stream_output
    report_prefill_stats = log_prefill_stats = log_decode_stats = stream_output
    log_decode_stats_every_iteration = send_abort_output = stream_output
    _abort_on_waiting_timeout = _abort_on_running_timeout = stream_output

    def maybe_prepare_mlp_sync_batch(self, batch: Real, *_: Real, **__: Real) -> Real:
        """One worker needs no agreement."""
        return batch

    def _add_request_to_queue(self, req: Real, *, is_retracted: bool = False) -> None:
        if is_retracted:
            req.storage_prefetch_retry_attempts, req.storage_prefetch_last_match_len = 0, None
        if self.enable_hicache_storage:
            self._prefetch_kvcache(req)
        self.waiting_queue.append(req)


class Core:
    """What the releases have in common: pools, allocator, and how a request is made."""

    rust: RustNodes | None = None
    """The nodes of a tree core in Rust, which has none that Python could walk."""

    def __init__(self, config: Json) -> None:
        self.config, self.kind = config, config["kind"]
        self.has_states = "mamba" in self.kind
        self.has_windows = "window" in self.kind
        self.extra_buffer = config.get("strategy") == "extra_buffer"
        self.host = config.get("host")
        self.storage = (self.host or {}).get("storage")
        self.page, self.size = config.get("page", 1), config["tokens"]
        self.rows, self.length = config.get("max_running", 8), config.get("max_len", 4096)
        self.chunk = config.get("chunk", 8192)
        self.modes = find("DisaggregationMode", "disaggregation.utils")
        self.args = self._settings(self._values())
        self.pool = self._rows_pool()
        self.allocator = self._allocator()
        self.tree = self._tree(self._tree_parameters())
        if self.host is not None:
            worker_host.slow_down(self.tree.cache_controller, self.host.get("lag", 0))
        if self.storage is not None:
            self._step_by_looks(self.storage)
        self.scheduler = Attributes()
        set_all(self.scheduler, self._attributes())
        self._begin()

    def _values(self) -> Json:
        """The configuration of a server's start, and what is otherwise (`settings.OVERRIDES`)."""
        own: Json = {
            "device": "cpu",
            "disable_overlap_schedule": True,
            "pp_max_micro_batch_size": self.rows,
        }
        if self.config.get("eagle"):
            own["speculative_algorithm"] = None
        if self.host is not None:
            own |= {"hicache_io_backend": "direct", "hicache_mem_layout": worker_host.LAYOUT}
        return self.config["server"] | own

    def _settings(self, values: Json) -> Real:
        raise NotImplementedError

    def settings(self) -> Json:
        """The configuration that the scheduler has."""
        raise NotImplementedError

    def _tree(self, parameters: Real) -> Real:
        raise NotImplementedError

    def _begin(self) -> None:
        raise NotImplementedError

    def _step_by_looks(self, wanted: Json) -> None:
        worker_storage.step_by_looks(self.tree, wanted["lag"])

    def _rows_pool(self) -> Real:
        torch = importlib.import_module("torch")
        common = {"device": "cpu", "enable_memory_saver": False}
        if not self.has_states:
            made = find("ReqToTokenPool", "mem_cache.memory_pool")
            return fitting(made, size=self.rows, max_context_len=self.length, **common)
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
        kinds = Bag(conv=torch.float32, temporal=torch.float32)
        return fitting(
            find("HybridReqToTokenPool", "mem_cache.memory_pool"),
            size=self.rows,
            mamba_size=self.config["states"],
            mamba_spec_state_size=self.rows,
            max_context_len=self.length,
            cache_params=Bag(shape=shape, dtype=kinds, layers=[0], mamba_cache_per_req=8),
            enable_mamba_extra_buffer=self.extra_buffer,
            enable_overlap_schedule=True,
            mamba_layer_ids=[0],
            **common,
        )

    def _allocator(self) -> Real:
        torch = importlib.import_module("torch")
        memory: Json = {
            "size": self.size,
            "page_size": self.page,
            "dtype": torch.float32,
            "head_num": 1,
            "head_dim": 1,
            "device": "cpu",
            "enable_memory_saver": False,
        }
        common = {
            "size": self.size,
            "page_size": self.page,
            "dtype": torch.float32,
            "device": "cpu",
            "need_sort": False,
        }
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
        """Keys and values; a host beside states asks for the pool that knows of both."""
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
        """What the scheduler's own `__init__` would have set."""
        window = self.config.get("window") if self.has_windows else None
        model = Bag(
            vocab_size=1 << 30,
            is_encoder_decoder=False,
            context_len=self.length,
            is_hybrid_swa=self.has_windows,
            sliding_window_size=window,
            hf_config=Bag(),
            hf_text_config=Bag(mamba_chunk_size=CHUNK),
            is_multimodal=False,
            model_impl="auto",
        )
        return {
            "server_args": self.args,
            "model_config": model,
            "page_size": self.page,
            "device": "cpu",
            "req_to_token_pool": self.pool,
            "token_to_kv_pool_allocator": self.allocator,
            "tree_cache": self.tree,
            "spec_algorithm": find("SpeculativeAlgorithm", "speculative.spec_info").NONE,
            "is_generation": True,
            "enable_overlap": False,
            "max_running_requests": self.rows,
            "max_prefill_tokens": self.config.get("max_prefill", 16384),
            "max_total_num_tokens": self.size,
            "is_hybrid_swa": self.has_windows,
            "is_hybrid_ssm": self.has_states,
            "sliding_window_size": window,
            "schedule_policy": "fcfs",
            "enable_priority_scheduling": False,
            "schedule_low_priority_values_first": False,
            "enable_hierarchical_cache": self.host is not None,
            "enable_lora": False,
            "enable_metrics": False,
            "enable_hicache_storage": self.storage is not None,
            "grammar_manager": Told(has_waiting_grammars=lambda: False),
            "send_to_tokenizer": Told(),
            "disaggregation_mode": self.modes.NULL,
            "num_generated_tokens": 0,
            "forward_ct_decode": 0,
        }

    @staticmethod
    def ids(tokens: list[int]) -> Real:
        """Tokens as requests have them."""
        return tokens

    def request(self, name: str, prompt: list[int], wanted: Json) -> Real:
        """A request of the release."""
        made = find("SamplingParams", "sampling.sampling_params")
        sampling = made(
            max_new_tokens=max(1, wanted["generate"]),
            temperature=0,
            ignore_eos=self.config.get("ignore_eos", True),
        )
        sampling.normalize(None)
        request = fitting(
            find("Req", "managers.schedule_batch"),
            rid=name,
            origin_input_text="",
            origin_input_ids=self.ids(prompt),
            sampling_params=sampling,
            extra_key=wanted.get("salt"),
            priority=wanted.get("priority"),
            vocab_size=1 << 30,
            eos_token_ids=set(),
        )
        request.tokenizer = None
        return request

    def abort(self, name: str) -> None:
        """The client of a request goes away."""
        self.scheduler.abort_request(Bag(rid=name, abort_all=False))

    def _result(self, tokens: list[int]) -> Real:
        torch = importlib.import_module("torch")
        return Bag(
            next_token_ids=torch.tensor(tokens),
            can_run_cuda_graph=False,
            num_accepted_tokens=0,
            get_num_generated_tokens=lambda count: count,
        )

    def free(self) -> Json:
        """Free slots."""
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
            found |= worker_host.free_slots(self.tree)
        return found
