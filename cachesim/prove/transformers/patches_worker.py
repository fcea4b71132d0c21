"""Changes of the library while a script is run; imported by `script_worker` alone.

A remedy changes one thing that a cause is suspected of.
"""

import copy
import importlib
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any
from unittest.mock import patch

Real = Any  # modules and objects of the release: known only when it runs

PAGED = "transformers.generation.continuous_batching"
UNLIMITED = "a cache without windows"
SELECTED = "batch_select_indices for reorder_cache"
PER_CALL = "a paged store for each call of attention"
PER_CYCLE = "paged layers counted in each cycle"
MOVED = "states in modules moved"
LIMITED = "time steps limited in each call"
STEP = "mamba2_selective_state_update"


@contextmanager
def patched(model: Real, remedies: tuple[str, ...]) -> Iterator[None]:
    """The library with the remedies' changes."""
    with ExitStack() as changes:
        if SELECTED in remedies:
            utils: Any = importlib.import_module("transformers.cache_utils")
            changes.enter_context(
                patch.object(
                    utils.Cache,
                    "reorder_cache",
                    lambda self, order: self.batch_select_indices(order),
                )
            )
        if MOVED in remedies:
            changes.enter_context(_states_moved(model))
        if LIMITED in remedies:
            changes.enter_context(_steps_limited(model))
        if UNLIMITED in remedies:
            changes.enter_context(_paged_without_windows())
        if PER_CALL in remedies:
            changes.enter_context(_store_per_call())
        if PER_CYCLE in remedies:
            for kind in {type(module) for module in model.modules()}:
                if "cycle_offset" in inspect.signature(kind.forward).parameters and hasattr(
                    next(module for module in model.modules() if type(module) is kind), "layer_idx"
                ):
                    changes.enter_context(_counted_by_cycle(kind))
        yield


@contextmanager
def _states_moved(model: Real) -> Iterator[None]:
    """A new order of a cache's rows is one of the tensors that modules keep, too."""
    torch: Any = importlib.import_module("torch")
    kind: Any = importlib.import_module("transformers.cache_utils").Cache
    move = kind.reorder_cache

    def changed(self: Real, order: Real) -> None:
        move(self, order)
        for module in model.modules():
            for name, kept in vars(module).items():
                if isinstance(kept, torch.Tensor) and kept.shape[:1] == order.shape:
                    setattr(module, name, kept.index_select(0, order))

    with patch.object(kind, "reorder_cache", changed):
        yield


@contextmanager
def _steps_limited(model: Real) -> Iterator[None]:
    """The time step of a single token has the limits of those of several tokens."""
    torch: Any = importlib.import_module("torch")
    mixer = next(
        (module for module in model.modules() if hasattr(module, "time_step_limit")), model
    )
    module = importlib.import_module(type(mixer).__module__)
    step: Real = getattr(module, STEP, None)

    def changed(*given: Real, dt_bias: Real, **by: Real) -> Real:
        least, most = mixer.time_step_limit
        size = torch.nn.functional.softplus(given[2] + dt_bias).clamp(least, most)
        return step(*given[:2], size, *given[3:], **by | {"dt_softplus": False})

    with patch.object(module, STEP, changed) if step else nullcontext():
        yield


@contextmanager
def _paged_without_windows() -> Iterator[None]:
    module, group = None, "group_layers_by_attn_type"
    with suppress(ImportError):
        module = importlib.import_module(f"{PAGED}.cache")

    def full(config: Real) -> dict[str, list[int]]:
        return {"full_attention": list(range(config.num_hidden_layers))}

    with patch.object(module, group, full) if hasattr(module, group) else nullcontext():
        yield


@contextmanager
def _store_per_call() -> Iterator[None]:
    """A second call with the same keys, in the same layer, has keys and values of its own."""
    module: Any = importlib.import_module(f"{PAGED}.cache")
    kind = module.PagedAttentionCache
    update = kind.update
    seconds: dict[int, Real] = {}
    last: dict[int, Real] = {}

    def changed(self: Real, key_states: Real, value_states: Real, *given: Real, **by: Real) -> Real:
        layer: Real = by.get("layer_idx", given[0] if given else 0)
        if last.get(layer) is not key_states:
            last[layer] = key_states
            return update(self, key_states, value_states, *given, **by)
        if id(self) not in seconds:
            seconds[id(self)] = copy.deepcopy(self)
        return update(seconds[id(self)], key_states, value_states, *given, **by)

    with patch.object(kind, "update", changed):
        yield


@contextmanager
def _counted_by_cycle(kind: Real) -> Iterator[None]:
    forward = kind.forward

    def changed(self: Real, *given: Real, cycle_offset: int = 0, **by: Real) -> Real:
        with patch.object(self, "layer_idx", self.layer_idx + cycle_offset):
            return forward(self, *given, cycle_offset=0, **by)

    with patch.object(kind, "forward", changed):
        yield


def quantised(config: Real, kind: str) -> Real:
    """A quantised cache that loses no precision, so that its bookkeeping alone is compared."""
    utils: Any = importlib.import_module("transformers.cache_utils")
    base: Any = utils.Fp8QuantizedLayer if kind == "fp8" else utils.QuantizedLayer
    cache = utils.QuantizedCache("fp8", config)  # which refuses windows and states

    class Whole(base):  # type: ignore[misc]
        def _quantize(self, tensor: Real, *_: Real, **__: Real) -> Real:
            return (tensor, 1.0) if kind == "fp8" else tensor

        def _dequantize(self, stored: Real) -> Real:
            return stored[0] if kind == "fp8" else stored

    given = {} if kind == "fp8" else {"residual_length": 4}
    cache.layers = [Whole(**given) for _ in cache.layers]
    return cache


def whole_mask(mask: Real, count: int) -> Real:
    """Mask of the last tokens of a batch, added to their scores."""
    torch: Any = importlib.import_module("torch")
    end = mask.shape[1]
    seen = torch.arange(end)[None] <= torch.arange(end - count, end)[:, None]
    allowed = seen[None, None] & mask[:, None, None].bool()
    return torch.where(allowed, 0.0, torch.finfo(torch.float64).min)


class _NoStream(nullcontext[None]):
    def wait_stream(self, _: Real) -> None:
        """Do nothing: there is one stream."""


def keep_streams_out() -> None:
    """Let offloaded caches run without an accelerator: their copies are then in order anyway."""
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        torch.Stream = torch.cuda.Stream = _NoStream
        torch.cuda.default_stream = torch.cuda.current_stream = lambda *_: _NoStream()


def give_mtp(model: Real) -> bool:
    """Give a model a layer for multi-token prediction, of random weights; False if unknown."""
    layers: Any = importlib.import_module("transformers.modeling_layers")
    config = model.config.get_text_config()
    if getattr(config, "num_mtp_layers", None) is None or not hasattr(layers, "MtpModel"):
        return False
    config.num_mtp_layers = 1
    for kind in ("layer_types", "mlp_layer_types"):
        if getattr(config, kind, None) and not getattr(config, f"mtp_{kind}", None):
            setattr(config, f"mtp_{kind}", [getattr(config, kind)[-1]])

    def made(main: Real, **_: Real) -> Real:
        torch: Any = importlib.import_module("torch")
        torch.manual_seed(4)
        drafter = layers.MtpModel(main, 1).to(torch.float64).eval()
        for weight in drafter.layers.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 1.5 / weight.shape[-1] ** 0.5)
        return drafter

    layers.MtpModel.from_pretrained = made
    return True


def assistant_of(model: Real) -> Real:
    """A copy of a model that is right sometimes."""
    torch: Any = importlib.import_module("torch")
    helper = copy.deepcopy(model)
    for weight in helper.parameters():
        source = torch.Generator().manual_seed(3)
        weight.add_(torch.randn(weight.shape, generator=source).to(weight) * 0.05)
    helper.generation_config.num_assistant_tokens = 4
    helper.generation_config.assistant_confidence_threshold = 0.0
    return helper
