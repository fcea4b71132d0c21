"""What differs from release to release in how the real scheduler is set up; runs in the worker."""

import importlib
from array import array
from pathlib import Path
from typing import Any, Final

from cachesim.real.sglang import worker_host, worker_storage
from cachesim.real.sglang.rust_core import FULL, MAMBA, SWA, RustNodes
from cachesim.real.sglang.worker_core import Core, find, set_all
from cachesim.real.worker_side import Bag, Told, fitting

Json = Any
Real = Any

NEVER: Final = 1 << 30

RANKS: Final = tuple(
    f"{name}_rank"
    for name in (
        *("tp", "pp", "dp", "attn_tp", "attn_dp", "attn_cp"),
        *("moe_ep", "moe_dp", "moe_tp", "dcp", "attn_dcp"),
    )
)


class OnePerKind(Core):
    """0.5.9: a tree for each kind of model, settings in one object."""

    def _settings(self, values: Json) -> Real:
        values["attention_backend"] = "torch_native"
        args = Bag(
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
            worker_host.install_old(module)
            worker_storage.install(self.storage)
            return module.HiRadixCache(parameters, self.args)
        if self.has_states:
            return find("MambaRadixCache", "mem_cache.mamba_radix_cache")(parameters)
        if self.has_windows:
            return find("SWARadixCache", "mem_cache.swa_radix_cache")(params=parameters)
        return find("RadixCache", "mem_cache.radix_cache")(parameters)

    def _begin(self) -> None:
        scheduler = self.scheduler
        set_all(scheduler, dict.fromkeys(("pp_size", "tp_size", "dp_size"), 1))
        set_all(scheduler, dict.fromkeys(("attn_tp_rank", "pp_rank", "tp_rank"), 0))
        scheduler.init_running_status()
        scheduler.init_chunked_prefill()
        scheduler.init_schedule_policy()

    @property
    def root(self) -> Real:
        """The tree's root."""
        return self.tree.root_node

    def held(self, node: Real) -> list[int]:
        """Whether a node has its state, or its window; with a host, where attention's slots are."""
        if self.host is not None:
            return [int(node.value is not None), int(node.host_value is not None)]
        if self.has_states:
            return [int(node.mamba_value is not None)]
        return [int(not node.swa_tombstone)] if self.has_windows else []

    @staticmethod
    def span(request: Real) -> tuple[int, int]:
        """Where this chunk begins and ends."""
        start = len(request.prefix_indices)
        return start, start + request.extend_input_len

    @staticmethod
    def branch(request: Real) -> Real:
        """The branching point that the match reported."""
        return getattr(request, "mamba_branching_seqlen", None)

    def plan(self) -> Real:
        """The next batch."""
        return self.scheduler.get_next_batch_to_run()

    def take(self, batch: Real, tokens: list[int], *, extends: bool) -> None:
        """What the model sampled."""
        scheduler, result = self.scheduler, self._result(tokens)
        if self.config.get("mixes"):  # what a prefill mixes in is fed again
            batch.output_ids = result.next_token_ids
        if extends:
            scheduler.process_batch_result_prefill(batch, result)
        else:
            scheduler.process_batch_result_decode(batch, result)


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
        """Compare the number of requests that run at once with the release's own sum.

        It is that of the server's start, whose schedule may overlap.
        """
        overlap = {"disable_overlap_schedule": self.config["server"]["disable_overlap_schedule"]}
        self._publish(module, values | overlap)
        configurator = find("KVCacheConfigurator", "mem_cache.kv_cache_configurator")
        owner: Real = Bag(
            attn_dp_size=1,
            model_config=Bag(context_len=self.length),
            mambaish_config=Bag() if self.has_states else None,
        )
        owner._calculate_mamba_ratio = lambda: configurator._calculate_mamba_ratio(owner)
        running = configurator.resolve_max_num_reqs(owner, self.size)
        if running != self.rows:
            msg = f"the release runs {running} requests at once, not {self.rows}"
            raise ValueError(msg)

    def _tree(self, parameters: Real) -> Real:
        if self.host is not None:
            worker_host.install_unified()
            worker_storage.install_unified(self.storage)
        wanted = Bag(
            server_args=self.args,
            params=parameters,
            is_hybrid_swa=self.has_windows,
            is_hybrid_ssm=self.has_states,
            full_tokens_per_layer=1,
            enable_hierarchical_cache=self.host is not None,
            tp_worker=Told(),
        )
        return find("create_unified_radix_cache", "mem_cache.registry")(wanted)

    def _begin(self) -> None:
        scheduler = self.scheduler
        beam = Told(pending_member_rows=lambda *_: 0)
        set_all(scheduler, self._unified_attributes(beam))
        scheduler.init_schedule_policy()
        self.processor = self._processor(beam)
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

    def _step_by_looks(self, wanted: Json) -> None:
        worker_storage.step_by_looks_unified(self.tree, wanted["lag"], wanted["acks"])

    def _unified_attributes(self, beam: Real) -> Json:
        batches = find("ScheduleBatch", "managers.schedule_batch")
        return {
            "tp_worker": Bag(model_runner=Bag(attn_backend=object(), prefill_aware_swa=False)),
            "beam_coordinator": beam,
            "dp_attn_adapter": Bag(
                maybe_prepare_mlp_sync_batch=lambda batch, **_: batch,
                maybe_convert_decode_to_extend=lambda batch: batch,
            ),
            "ngram_embedding_manager": Bag(prepare_for_forward=lambda batch, **_: batch),
            "load_inquirer": Bag(_get_num_pending_tokens=lambda **_: 0),
            "metrics_reporter": Told(enable_metrics=False),
            "ipc_channels": Bag(send_to_tokenizer=Told()),
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
            "processed_tokens_counter": 0,
        }

    def _processor(self, beam: Real) -> Real:
        return fitting(
            find(
                "SchedulerBatchResultProcessor",
                "managers.scheduler_components.batch_result_processor",
            ),
            is_generation=True,
            disaggregation_mode=self.modes.NULL,
            enable_overlap=False,
            enable_overlap_mlx=False,
            model_config=self.scheduler.model_config,
            token_to_kv_pool_allocator=self.allocator,
            tree_cache=self.tree,
            hisparse_coordinator=None,
            req_to_token_pool=self.pool,
            decode_offload_manager=None,
            metrics_collector=None,
            metrics_reporter=Told(
                num_generated_tokens=0,
                enable_metrics=False,
                forward_ct_decode=0,
                current_scheduler_metrics_enabled=False,
            ),
            draft_worker=None,
            model_worker=None,
            logprob_result_processor=Told(),
            output_streamer=Told(),
            beam_coordinator=beam,
            abort_request=lambda *_: None,
        )

    @property
    def root(self) -> Real:
        """The tree's root."""
        return self.tree.tree_core.root_node

    def held(self, node: Real) -> list[int]:
        """Whether a node has its state, or its window."""
        kinds = find("ComponentType", "mem_cache.unified_cache.components")
        asked = [(self.has_states, kinds.MAMBA), (self.has_windows, kinds.SWA)]
        if self.host is None:
            return [int(node.component_data[kind].value is not None) for has, kind in asked if has]
        parts = [node.component_data[kind] for has, kind in [(True, kinds.FULL), *asked] if has]
        return [int(on is not None) for each in parts for on in (each.value, each.host_value)]

    @staticmethod
    def ids(tokens: list[int]) -> Real:
        return array("q", tokens)

    @staticmethod
    def span(request: Real) -> tuple[int, int]:
        """Where this chunk begins and ends."""
        return request.prefix_len, request.extend_end

    def branch(self, request: Real) -> Real:
        """The branching point that the match reported."""
        if self.kind == "window":
            return request.swa_branching_seqlen
        return request.mamba_branching_seqlen

    def plan(self) -> Real:
        """The next batch."""
        scheduler = self.scheduler
        found = scheduler.get_next_batch_to_run(
            running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
        )
        scheduler.running_batch = found.running_batch
        return found.batch_to_run

    def take(self, batch: Real, tokens: list[int], *, extends: bool) -> None:
        """What the model sampled."""
        processor, result = self.processor, self._result(tokens)
        if extends:
            processor.process_batch_result_prefill(batch, result)
        else:
            processor.process_batch_result_decode(batch, result)
        self.tree.flush_pending_backups()


class _Launch:
    """A kernel's place: started as `kernel[grid](...)`, computed by a plain function."""

    def __init__(self, function: Real) -> None:
        self.function = function

    def __getitem__(self, _grid: Real) -> Real:
        return self.function


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

    vars(allocator).update(alloc_extend_kernel=_Launch(extend), alloc_decode_kernel=_Launch(decode))


def core_of(root: Path) -> type[Core]:
    """How this release is set up."""
    is_unified = (root / "sglang/srt/mem_cache/unified_radix_cache.py").exists()
    return Unified if is_unified else OnePerKind
