"""Workloads on a release's own caches: paged ones with their scheduler, and `DynamicCache`.

Runs in the release's environment, alone. No model runs: each request's tokens are given. A line of
JSON with "kinds" is a script of `DynamicCache`; for each step what the layers return and hold, or
the error, goes out. Keys are the tokens themselves, in int64.
"""

import importlib
import inspect
import json
import os
import queue
import sys
from typing import Any

Json = Any
Real = Any  # modules and objects of the release: known only when it runs

MEMORY = 1 << 32
"""Bytes of device memory that the release detects."""

HOME = "transformers.generation.continuous_batching"


class _NoProcessors:
    """Stands for the logits processors: there are none."""

    do_processing = False
    tensors_required = 0

    def check_kwargs(self, given: Json) -> None:
        """Accept every request."""

    def prepare_tensor_args(self, **_: Real) -> None:
        """Nothing to prepare."""

    def fill_defaults(self, *_: Real) -> None:
        """Nothing to fill."""


SERVER = {
    "num_blocks": "num_blocks",
    "page_size": "page",
    "max_batch_tokens": "max_batch_tokens",
    "max_requests_per_batch": "max_requests",
    "allow_block_sharing": "sharing",
    "scheduler_type": "scheduler",
    "safety_margin": "margin",
}
"""Flags of a server, by the workload's names."""

COMPARED = {
    "max_memory_percent": 0.9,
    "max_blocks_per_request": 0,
    "use_async_batching": False,
    "use_cuda_graph": False,
}
"""Fields that are given here beside those flags."""


def settings_of(transformers: Real, workload: Json, **given: Json) -> Real:
    """A server's configuration, with the flags of a workload."""
    flags = {name: workload[each] for name, each in SERVER.items()}
    return transformers.ContinuousBatchingConfig(**flags, **given)


def resolved(config: Real, settings: Real) -> Real:
    """A configuration as the release resolves it on a CPU."""
    torch: Any = importlib.import_module("torch")
    initialization: Any = importlib.import_module(f"{HOME}.initialization")
    return _given(
        initialization.resolve_continuous_batching_config,
        config=config,
        cb_config=settings,
        workload_hints=None,
        has_logit_processors=False,
        device=torch.device("cpu"),
    )


def differences(workload: Json) -> Json:
    """The release's defaults, and what differs from a server's start: field, started, compared."""
    transformers: Any = importlib.import_module("transformers")
    config = config_of(transformers, workload)
    started, used = (
        vars(resolved(config, settings_of(transformers, workload, **given)))
        for given in ({}, COMPARED)
    )
    rows = [
        [name, str(value), str(used[name])]
        for name, value in started.items()
        if value != used[name]
    ]
    defaults = {
        name: str(each) for name, each in vars(transformers.ContinuousBatchingConfig()).items()
    }
    return {"rows": rows, "defaults": defaults}


def config_of(transformers: Real, workload: Json) -> Real:
    """The configuration of the model."""
    config = transformers.LlamaConfig(
        hidden_size=8,
        intermediate_size=8,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=workload["head_dim"],
        num_hidden_layers=len(workload["layers"]),
        vocab_size=64,
    )
    config.layer_types = workload["layers"]
    config.sliding_window = workload["window"]
    config._attn_implementation = "eager"
    return config


def _given(function: Real, **given: Real) -> Real:
    taken = inspect.signature(function).parameters
    return function(**{name: each for name, each in given.items() if name in taken})


class Batches:
    """A batch processor of the release."""

    def __init__(self, workload: Json) -> None:
        torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        api: Any = importlib.import_module(f"{HOME}.continuous_api")
        cache_module: Any = importlib.import_module(f"{HOME}.cache")
        distributed: Any = importlib.import_module(f"{HOME}.distributed")
        initialization: Any = importlib.import_module(f"{HOME}.initialization")
        scheduler_module: Any = importlib.import_module(f"{HOME}.scheduler")
        # What other processes leave free decides nothing but whether the cache is refused.
        cache_module.get_device_and_memory_breakdown = lambda: (None, MEMORY, 0, 0)
        self.requests: Any = importlib.import_module(f"{HOME}.requests")
        self.replies = workload["replies"]
        config = config_of(transformers, workload)
        settings = resolved(config, settings_of(transformers, workload, **COMPARED))
        device = torch.device("cpu")
        helper = _given(
            distributed.DistributedHelper, device_mesh=None, cpu_group_timeout=None, tp_plan=None
        )
        self.cache = _given(
            cache_module.PagedAttentionCache,
            config=config,
            continuous_batching_config=settings,
            device=device,
            distributed_helper=helper,
            dtype=torch.float16,
        )
        _given(
            initialization.update_cb_config_after_cache_creation,
            cb_config=settings,
            num_blocks=self.cache.num_blocks,
            max_batch_tokens=self.cache.max_batch_tokens,
        )
        self.scheduler = scheduler_module.SCHEDULER_MAPPING[settings.scheduler_type](
            cache=self.cache,
            safety_margin=settings.safety_margin,
            max_requests_per_batch=settings.max_requests_per_batch,
        )
        self.inbox: queue.Queue[Real] = queue.Queue()
        self.cancels: queue.Queue[str] = queue.Queue()
        self.processor = _given(
            api.ContinuousBatchProcessor,
            cache=self.cache,
            config=config,
            generation_config=transformers.GenerationConfig(),
            continuous_batching_config=settings,
            logit_processor=_NoProcessors(),
            input_queue=self.inbox,
            cancel_queue=self.cancels,
            output_router=api.OutputRouter(),
            background_thread_status=api.BackgroundThreadStatus(),
            model_device=device,
            model_dtype=torch.float16,
            scheduler=self.scheduler,
            distributed_helper=helper,
        )

    def add(self, number: int, prompt: Json, most: int) -> None:
        """Queue a request."""
        state = self.requests.RequestState(
            request_id=str(number), initial_tokens=list(prompt), max_new_tokens=most
        )
        self.inbox.put(state)

    def batch(self) -> Json:
        """Run a batch; return its result."""
        try:
            ready = self.processor.prepare_next_batch()
        except RuntimeError as error:
            return {"raised": str(error)}
        if not ready:
            return {"idle": self.scheduler.has_pending_requests(), **self.content()}
        ios = self.processor.inputs_and_outputs
        taken, tokens = [], []
        for future in ios.requests_in_batch:
            state = future.state
            number = int(state.request_id)
            start = state.position_offset - future.query_length
            taken.append([number, start, future.query_length, future.has_new_token])
            if future.has_new_token:
                known = len(state.initial_tokens) + len(state.generated_tokens)
                tokens.append(self.replies[number][known])
        ios.prepare_batch_update = lambda: (ios.requests_in_batch, tokens, None)
        self.processor.update_batch()
        return {"batch": taken, **self.content()}

    def content(self) -> Json:
        """Tables, references, hashes and free blocks of every allocator."""
        scheduler, pool = self.scheduler, self.cache.pool
        return {
            "active": [
                [int(each), int(state.status)] for each, state in scheduler.active_requests.items()
            ],
            "waiting": [int(each) for each in scheduler.waiting_requests_order],
            "sectors": list(pool.free_sectors),
            "allocators": [
                {
                    "tables": sorted(
                        [int(name), list(t)] for name, t in allocator.block_table.items()
                    ),
                    "shared": sorted(allocator.ledger.shared_ref_counts.items()),
                    "hashes": sorted(allocator.ledger.block_to_hash.items()),
                    "cached": list(allocator.ledger.cached_blocks),
                    "free": [
                        [root, list(t)]
                        for root, t in pool._free_blocks[allocator.index].trees.items()
                    ],
                }
                for allocator in self.cache.cache_allocators.values()
            ],
        }


def play(workload: Json) -> Json:
    """Results of each batch of a workload, up to an error."""
    player = Batches(workload)
    results: list[Json] = []
    for step in workload["steps"]:
        for number, prompt, most in step["add"]:
            player.add(number, prompt, most)
        for number in step["cancel"]:
            player.cancels.put(str(number))
        for _ in range(step["batches"]):
            results.append(player.batch())
            if "raised" in results[-1]:
                return results
    return results


# -- layers --------------------------------------------------------------------------------------

METHODS = {
    "crop": "crop",
    "reorder": "reorder_cache",
    "select": "batch_select_indices",
    "repeat": "batch_repeat_interleave",
    "reset": "reset",
    "record": "activate_past_recording",
}


class Layers:
    """A cache, and its models' results for the tokens."""

    def __init__(self, order: Json) -> None:
        self.torch: Any = importlib.import_module("torch")
        utils: Any = importlib.import_module("transformers.cache_utils")
        kinds = utils.DYNAMIC_LAYER_TYPE_MAPPING
        self.order, self.kinds = order, order["kinds"]
        layers = [
            kinds[kind](**({"sliding_window": order["window"]} if "sliding" in kind else {}))
            for kind in self.kinds
        ]
        self.cache = utils.DynamicCache()
        self.cache.layers, self.cache.layer_class_to_replicate = layers, None

    def step(self, name: str, given: Json) -> Json:
        """Return value of a step, with the cache after it."""
        found: Json = None
        try:
            if name == "feed":
                found = [self._feed(layer, given) for layer in range(len(self.kinds))]
            else:
                tensor = name in ("reorder", "select")
                value = [self.torch.tensor(given)] if tensor else [] if given is None else [given]
                found = getattr(self.cache, METHODS[name])(*value)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            found = type(error).__name__
        return [found, [self._content(layer) for layer in self.cache.layers]]

    def _feed(self, number: int, rows: Json) -> Json:
        """Update a layer's cache; the values that attention or a convolution reads."""
        kind, layer = self.kinds[number], self.cache.layers[number]
        tokens = self.torch.tensor(rows)
        seen: Real = None
        if kind in ("linear_attention", "conv", "hybrid", "hybrid_sliding"):
            before = layer.recurrent_states[0] if layer.has_previous_state[0] else None
            seen = self.cache.update_conv_state(
                tokens[:, None], number, conv_kernel_size=self.order["kernel"]
            )[:, 0]
            if kind in ("linear_attention", "hybrid"):
                state = self.torch.zeros(len(rows), dtype=int) if before is None else before
                if len(state) != len(rows):
                    raise RuntimeError("no model computes a state of another batch")
                for column in tokens.T:
                    state = (state * self.order["fold"] + column) % self.order["modulus"]
                self.cache.update_recurrent_state(state, number)
        if kind == "indexed_attention":
            self.cache.update_indexer(tokens[..., None], number)
        if kind not in ("linear_attention", "conv"):
            keys = tokens[:, None, :, None]
            seen = self.cache.update(keys, keys, number)[0][:, 0, :, 0]
        return seen.tolist()

    def _content(self, layer: Real) -> Json:
        found = {"croppable": layer.is_croppable}
        if hasattr(layer, "keys"):
            found["keys"] = None if layer.keys is None else layer.keys[:, 0, :, 0].tolist()
            found["length"] = layer.get_seq_length()
        for name, each in (("inputs", "conv_states"), ("states", "recurrent_states")):
            if hasattr(layer, each):
                value = getattr(layer, each)[0]
                rows = value if value is None or name == "states" else value[:, 0]
                found[name] = None if rows is None else rows.tolist()
        if hasattr(layer, "indexer_keys"):
            index = layer.indexer_keys
            found["index"] = None if index is None else index[..., 0].tolist()
        return found


def main() -> None:
    """Run workloads until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        if "kinds" in order:
            layers = Layers(order)
            found = [layers.step(name, given) for name, given in order["steps"]]
        else:
            found = differences(order["settings"]) if "settings" in order else play(order)
        answers.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
