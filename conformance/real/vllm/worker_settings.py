"""The configuration that the real scheduler is given: vLLM's own, made of a workload's flags.

`EngineArgs` with a model's `config.json` and the flags that a workload names becomes a `VllmConfig`
by the release's own code, as when a server starts; the external store that it may name is below.
Later changes are in `OVERRIDES`, pretended values in `PRETENDED`. Runs in the worker.
"""

import dataclasses
import enum
import importlib
import json
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cachesim.prove.worker_side import Json, NoOp, Real, differences, fitting, folder_of
from conformance.real.vllm.models import LONGEST, STARTED

STORE: Final = "conformance.real.vllm.worker_settings"

FLAGS: Final = {
    "max_model_len": "max_len",
    "max_num_batched_tokens": "budget",
    "max_num_scheduled_tokens": "scheduled",
    "max_num_seqs": "max_seqs",
    "enable_prefix_caching": "caching",
    "scheduling_policy": "policy",
    "scheduler_reserve_full_isl": "reserve_full",
    "prefix_cache_retention_interval": "retention",
}
"""Flag of `EngineArgs` -> its name in a workload."""

FURTHER: Final = (
    "disable_hybrid_kv_cache_manager",
    "enable_mamba_shared_prefix_checkpoint",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "max_num_active_seqs",
    "prefill_schedule_interval",
    "watermark",
)
"""Flags of `EngineArgs` that a workload's `further` names as upstream does."""

FORMER: Final = {"enable_mamba_fine_grained_prefix_cache": "enable_mamba_shared_prefix_checkpoint"}
"""Former names of flags; a release has one or the other."""

OF_DRAFTS: Final = ("disable_eagle_block_drop", "num_speculative_tokens_per_batch_size")
"""Those of its `--speculative-config`."""

OVERRIDES: Final = {
    "cache_config.num_gpu_blocks": (
        "the pool is counted on the GPU, after its memory was measured; a workload names it, and "
        "num_gpu_blocks_override means the same"
    ),
    "cache_config.block_size": (
        "workloads have blocks of 4 and 8 tokens, too, which kernels do not take; the engine core "
        "makes it the smallest block of all groups, in which the scheduler cuts prefill, here too"
    ),
    "cache_config.mamba_block_size": (
        "a start with layers that attend makes it their block in align mode, as it is here"
    ),
    "cache_config.mamba_cache_mode": (
        "all becomes align for gated-delta layers, which the configuration has; a workload's "
        "states are then those of other layers"
    ),
    "cache_config.hash_block_size": (
        "the engine core sets it to the unit that prefix_match_unit names, or leaves it out; the "
        "scheduler is handed the same number apart from it"
    ),
    "scheduler_config.max_num_scheduled_tokens": (
        "a flag since 0.28; before, the release sets it for drafters with slots of their own alone"
    ),
    "cache_config.prefix_match_unit": "it must divide the blocks, whose sizes are a workload's",
    "cache_config.user_specified_block_size": (
        "a size that is given stays; read before the scheduler starts, and never by it"
    ),
}
"""Fields of `VllmConfig` that differ from vLLM's own -> the reason."""

PRETENDED: Final = {
    "platforms.current_platform": (
        "a GPU",
        "the name, the memory (80 GB) and the capability of an H100",
        "the scheduler runs on the CPU; a GPU picks default budgets, which workloads name",
    ),
    "config.vllm.HAS_TRITON": (
        "True where a driver is",
        "True",
        "a machine with a GPU has one; with it Model Runner V2 is chosen as there",
    ),
    "ModelConfig, the model's class": (
        "its code, with kernels",
        "a class with the same interfaces",
        "the configuration reads a class's traits alone, which are those of its class statement",
    ),
    "EngineCore, model_executor": (
        "workers with a model",
        "the specs of a workload's layers; memory for any pool; layouts that FlashAttention takes",
        "its own `_initialize_kv_caches` makes the groups; a workload's that differ do not agree",
    ),
    "DeepSeek V4, layers": (
        "a model with weights, which asks each cache for its spec",
        "its caches alone, of the release's own classes, with the sizes of Flash's configuration",
        "groups follow from specs; blocks of 256 tokens and FP8 are what its attention takes",
    ),
    "MambaSpec, num_prefill_checkpoint_blocks": (
        "1 for Mamba-2 since 0.32, for gated-delta layers on FlashInfer since 0.33",
        "as those of a scenario's layers; drawn workloads have either, or 0 as other layers do",
        "what the layers' `get_kv_cache_spec` returns, which needs their kernels",
    ),
    "StructuredOutputManager": (
        "its grammars",
        "none",
        "no request of a workload asks for a grammar",
    ),
    "KVConnectorFactory": (
        "a connector's class",
        "a store that has what a workload says",
        "the scheduler asks it the same questions; workloads with `store` alone have one",
    ),
    "OffloadingConnector, sets": (
        "an order that differs between processes",
        "requests that end by number, keys of an ended job as they were offered",
        "the order decides only which of them is evicted first",
    ),
    "Scheduler, log_stats": ("True", "False", "what is counted for metrics decides nothing"),
    "runner: device": (
        "a GPU, pinned and unified memory",
        "the CPU and its memory",
        "a copy between both is made or left out; it changes no value",
    ),
    "runner: Triton kernels": (
        "compiled",
        "interpreted by Triton, its language prepared once, _TEMPORAL_TILES 1",
        "the same code of the release computes the same indices; tiles share one copy",
    ),
    "runner: cudagraph_mode": (
        "FULL_AND_PIECEWISE",
        "NONE",
        "not compared: a batch of null rows, and a prompt taken for drafts (#49918)",
    ),
    "runner: network, sampler, drafter": (
        "computed",
        "none: tokens and drafts are a workload's",
        "which tokens are accepted is all that states depend on",
    ),
    "runner: lora_config": (
        "as the scheduler's",
        "None",
        "weights of adapters change what is written, and not where",
    ),
    "runner: GDNAttentionMetadataBuilder.supports_update_block_table": (
        "True on a GPU, since 0.32",
        "False",
        "both read the same columns of the block table",
    ),
    "runner: Mamba2AttentionMetadataBuilder.chunk_size": (
        "a number of the model: 256 in Granite 4",
        "mamba_chunk_size of a scenario; in drawn workloads 3 to 12, or the builder's own",
        "results depend on it: the simulated runner reads states at the ends of the same chunks",
    ),
    "runner: keys, values and states": (
        "tensors of the model",
        "one number for each, that of its block",
        "a copy of the release's kernels then shows where it came from",
    ),
}
"""Settings outside `VllmConfig`: a server's default, ours, why no result depends on it."""


class ConfigFactory:
    """Configurations built by a release's own code."""

    def __init__(self) -> None:
        self.arguments: Real = importlib.import_module("vllm.engine.arg_utils").EngineArgs
        usage: Real = importlib.import_module("vllm.usage.usage_lib")
        self.context = usage.UsageContext.OPENAI_API_SERVER
        self.transfer: Real = importlib.import_module("vllm.config").KVTransferConfig
        speculative: Real = importlib.import_module("vllm.config").SpeculativeConfig
        self._hashes_ahead = "disable_lookahead_block_hashes" in vars(speculative)
        self._folder = folder_of(STARTED)

    def model(self, name: str) -> str:
        return str(Path(self._folder.name, name))

    def flags(self, config: Json) -> dict[str, Real]:
        states = [group for group in config["groups"] if group["kind"] == "mamba"]
        further = config.get("further", {})
        given: dict[str, Real] = {
            "model": self.model("hybrid" if states else "dense"),
            "max_model_len": LONGEST,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 16,
        }
        if config.get("compressed"):
            given |= {"model": self.model("compressed"), "skip_tokenizer_init": True}
            given |= {"kv_cache_dtype": "fp8"}  # others are refused until 0.28
        given |= {flag: config[name] for flag, name in FLAGS.items() if name in config}
        given |= {"async_scheduling": False} if config.get("synchronous") else {}
        if states and states[0].get("mode", "align") != "none" and config.get("caching", True):
            given |= {"enable_prefix_caching": True, "mamba_cache_mode": states[0].get("mode")}
        if config.get("drafts"):
            wanted: Json = {"num_speculative_tokens": config["drafts"], "method": "ngram"}
            if config.get("eagle"):
                mtp = states or config.get("compressed")
                wanted["method"] = config.get("method") or ("mtp" if mtp else "eagle")
                if wanted["method"] == "eagle":
                    wanted["model"] = self.model("eagle")
                elif not mtp:
                    given["model"] = self.model("mtp")
                if not config.get("lookahead_hashes") and self._hashes_ahead:
                    wanted["disable_lookahead_block_hashes"] = True
            wanted |= {name: further[name] for name in OF_DRAFTS if name in further}
            ranges = "num_speculative_tokens_per_batch_size"
            wanted |= {ranges: json.loads(further[ranges])} if ranges in further else {}
            given["speculative_config"] = wanted
        if config.get("loras"):
            given |= {"enable_lora": True, "max_loras": config["loras"]}
        given |= {name: further[name] for name in FURTHER if name in further}
        given |= {old: further[new] for old, new in FORMER.items() if new in further}
        if config.get("store"):
            given.setdefault("disable_hybrid_kv_cache_manager", False)  # stores need it until 0.19
            given["kv_transfer_config"] = self.transfer(
                kv_connector=CONNECTOR,
                kv_connector_module_path=STORE,
                kv_role="kv_both",
                **({"kv_load_failure_policy": "recompute"} if config.get("recomputes") else {}),
            )
        if config.get("offload"):
            given = {"disable_hybrid_kv_cache_manager": False} | given | {"kv_offloading_size": 1.0}
            offload = config["offload"]
            given["kv_transfer_config"] = self.transfer(
                kv_connector_extra_config={
                    "blocks_per_chunk": offload["factor"],
                    "eviction_policy": offload["policy"],
                    "store_threshold": offload["threshold"],
                    "offload_prompt_only": offload["prompt_only"],
                }
            )
        return given

    def started(self, config: Json) -> Real:
        """The configuration that a server would start with."""
        return fitting(self.arguments, **self.flags(config)).create_engine_config(self.context)

    def used(self, config: Json) -> Real:
        """The configuration that the scheduler is given here."""
        made = self.started(config)
        states = [group for group in config["groups"] if group["kind"] == "mamba"]
        cache = made.cache_config
        cache.num_gpu_blocks = config["blocks"]
        cache.block_size = min(group["block"] for group in config["groups"])
        if states:
            cache.mamba_block_size = states[0]["block"]
        if states and states[0].get("mode") == "all":
            cache.mamba_cache_mode = "all"
        if config.get("scheduled"):
            made.scheduler_config.max_num_scheduled_tokens = config["scheduled"]
        for name in ("hash_block_size", "prefix_match_unit"):
            if hasattr(cache, name):
                setattr(cache, name, config.get("hash_block"))
        return made

    def differences(self, config: Json) -> list[list[str]]:
        """Fields of `VllmConfig` with another value than at a server's start: name, start, here."""
        return differences(
            *(dict(fields_of(each)) for each in (self.started(config), self.used(config)))
        )


def fields_of(value: Real, name: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Every field of a configuration and of nested ones, with its value as text.

    Identifiers that are drawn at every start are left out.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and depth < 6:
        for each in vars(value):
            if not each.startswith("__"):
                inner = f"{name}.{each}" if name else each
                yield from fields_of(getattr(value, each), inner, depth + 1)
    elif not name.endswith(("instance_id", "engine_id", "_hash")):
        yield name, words_of(value)


def words_of(value: Real) -> str:
    """A value as text without memory addresses."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (str, int, float, bool, type(None))):
        return str(value)
    if isinstance(value, dict):
        return str({str(key): words_of(each) for key, each in value.items()})
    if isinstance(value, (list, tuple, set, frozenset)):
        return str([words_of(each) for each in value])
    return type(value).__name__


CONNECTOR: Final = "WorkloadStore"
"""The connector that a configuration names; `connector` makes it."""


class Store(NoOp):
    """The scheduler's half of a KV connector; the workload has its number of stored tokens."""

    supports_divergent_local_hybrid_hits = False

    server: Real = None  # whose workload is run

    def __init__(self, vllm_config: Real, role: Real, kv_cache_config: Real) -> None:
        del vllm_config, role, kv_cache_config

    @property
    def requires_kv_delivery(self) -> bool:
        """True for a connector that hands blocks over, as to a decode server."""
        return bool(self.server.config.get("delivers"))

    def get_num_new_matched_tokens(self, request: Real, local: int) -> tuple[int, bool]:
        """Tokens beyond the local hit, and whether they are loaded in later steps."""
        server = self.server
        wanted = server.wanted[request.request_id]
        if server.groups_apart:
            server.results[request.request_id]["lookups"].append([local])
        server.queries[request.request_id] += 1
        if request.request_id in server.loads.asked:
            return 0, False
        found = max(0, self.reached(request) - local)
        return found, found > 0 and "loads" in wanted

    def update_state_after_alloc(self, request: Real, blocks: Real, external: int) -> None:
        """Begin a load; a prefill server is not asked again."""
        server, tables = self.server, blocks.get_block_ids()
        wanted = server.wanted[request.request_id]
        if not external:
            server.loads.asked |= {request.request_id} if "leaves" in wanted else set()
            return
        group, end = server.config["groups"][0], self.reached(request)
        span = range((end - external) // group["block"], end // group["block"])
        server.loads.begin(request.request_id, wanted, tables, span, group["kind"])

    def reached(self, request: Real) -> int:
        """End of the tokens that the store has of a request."""
        size, wanted = self.server.sizes[0], self.server.wanted[request.request_id]
        stored = self.server.stored(request.request_id)
        if "leaves" in wanted:  # a prefill server's: not cut to whole blocks
            return int(min(stored, request.num_tokens - wanted["leaves"]))
        return int(min(stored, request.num_tokens - 1) // size * size)

    def request_finished_all_groups(self, request: Real, *_: Real) -> tuple[bool, None]:
        """True if the blocks of a request that ran to its end are still to be sent."""
        server = self.server
        wanted = server.wanted[request.request_id]
        if request.status != server.release.ended or "sends" not in wanted:
            return False, None
        server.loads.sending[request.request_id] = wanted["sends"]
        return True, None

    request_finished = request_finished_all_groups

    def take_events(self, *_: Real) -> tuple[()]:
        """No events: the scheduler knows of every load."""
        return ()

    get_loaded_kv_cache_group_ids = take_events

    def has_pending_block_frees(self, *_: Real) -> bool:
        """Nothing is held, and no block of a last state is waited for (0.30)."""
        return False

    has_pending_push_work = register_finished_partial_tail = has_pending_block_frees


OFFLOADING: Final = "vllm.distributed.kv_transfer.kv_connector.v1.offloading"


def size_host(settings: Real, caches: Real, offload: Json) -> None:
    """Set the bytes that hold as many chunks as a workload names, by the release's own sizes."""
    made = importlib.import_module(f"{OFFLOADING}.config").build_offloading_config(settings, caches)
    chunk = made.worker_kv_bytes_per_block * offload["factor"]
    page = mmap.PAGESIZE
    size = -(-chunk // page) * page * offload["chunks"]
    settings.kv_transfer_config.kv_connector_extra_config["cpu_bytes_to_use"] = size


def worker_metadata() -> Real:
    """The class of what a worker reports, None in releases whose offloading is not compared."""
    try:
        return importlib.import_module(f"{OFFLOADING}.common").OffloadingWorkerMetadata
    except (ImportError, AttributeError):
        return None


def connector() -> type[Store]:
    """The store as a KV connector with support for groups, registered by name."""
    made: Real = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.base")
    bases = (Store, made.SupportsHMA, made.KVConnectorBase_V1)
    found: Real = type(CONNECTOR, bases, {})
    found.__abstractmethods__ = frozenset()
    setattr(sys.modules[__name__], CONNECTOR, found)
    store: type[Store] = found
    return store
