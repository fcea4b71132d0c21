"""The models by name: each follows a real family, in the shapes of its usual toy."""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from cachesim.errors import SpecError
from cachesim.model.spec import LayerKind, ModelSpec

_HYBRID_DELTA: Final = ModelSpec(
    name="hybrid-delta",
    layers=("delta", "attention", "delta", "attention"),
    rope="halves",
    qk_norm=True,
    attention_gate=True,
    inner=64,
    groups=2,
    state_heads=4,
)

PRESETS: Final[Mapping[str, ModelSpec]] = MappingProxyType(
    {
        # Llama: full attention everywhere
        "dense": ModelSpec(name="dense", layers=("attention",) * 4),
        # Gemma 3: every second layer sees a window only
        "swa": ModelSpec(
            name="swa",
            layers=("window", "attention", "window", "attention"),
            window=32,
            rope="halves",
            qk_norm=True,
            post_norms=True,
            activation="gelu",
            embedding_scale=8.0,
        ),
        # Mamba-2: no attention, no MLP
        "recurrent": ModelSpec(name="recurrent", layers=("ssm",) * 4, mlp_width=0),
        # Granite 4 hybrid: Mamba-2 layers, every third attends
        "hybrid": ModelSpec(name="hybrid", layers=("ssm", "ssm", "attention") * 2),
        # Qwen 3.5: gated delta nets, every second attends, with a gate
        "hybrid-delta": _HYBRID_DELTA,
        # LFM2 with a window: short convolutions, every second layer sees a window
        "hybrid-swa": ModelSpec(
            name="hybrid-swa",
            layers=("conv", "window", "conv", "window"),
            window=32,
            rope="halves",
            qk_norm=True,
            conv_size=3,
        ),
        # Qwen 3.5 with its MTP head; nearly a bigram model, so that the head is often right
        "hybrid-mtp": replace(_HYBRID_DELTA, name="hybrid-mtp", mtp_depth=1, mix=0.2),
    }
)
"""The presets with drawn weights, by name."""


def _recalling(name: str, like: str, *layers: LayerKind, **changes: Any) -> ModelSpec:
    base = PRESETS[like]
    sizes = {"head_size": 32, "rope_base": 1e10, "mix": 1.0, "recall": True}
    return replace(base, name=name, layers=layers or base.layers, **{**sizes, **changes})


_REGISTERS: Final = {"inner": 512, "state_heads": 16, "state_size": 4, "groups": 1}

RECALL: Final[Mapping[str, ModelSpec]] = MappingProxyType(
    {
        model_spec.name: model_spec
        for model_spec in (
            _recalling("recall-dense", "dense", *("attention",) * 3),
            _recalling("recall-swa", "swa"),
            _recalling("recall-recurrent", "recurrent", *("ssm",) * 3, **_REGISTERS),
            _recalling("recall-delta", "hybrid-delta", "delta", "delta"),
            _recalling("recall-hybrid", "hybrid", "ssm", "attention", "ssm", **_REGISTERS),
            _recalling("recall-hybrid-delta", "hybrid-delta"),
            _recalling("recall-hybrid-swa", "hybrid-swa", heads=2),
            _recalling("recall-hybrid-mtp", "hybrid-mtp"),
        )
    }
)
"""Presets with constructed weights, which recall facts of their prompt."""

ALL_PRESETS: Final[Mapping[str, ModelSpec]] = MappingProxyType({**PRESETS, **RECALL})
"""The presets of both kinds."""

FIELDS: Final = frozenset(field.name for field in fields(ModelSpec))
"""Fields of a preset that may be overridden."""

ABOUT: Final[Mapping[str, str]] = {
    "dense": "Llama: full attention",
    "swa": "Gemma 3: every second layer sees a window of 32",
    "recurrent": "Mamba-2: no attention at all",
    "hybrid": "Granite 4 hybrid: Mamba-2, every third layer attends",
    "hybrid-delta": "Qwen 3.5: gated delta nets, every second layer attends",
    "hybrid-swa": "LFM2 with a window: short convolutions, every second layer sees a window",
    "hybrid-mtp": "Qwen 3.5 with its head that guesses a further token",
    "recall-dense": "recalls facts of its prompt from the cells of full attention",
    "recall-swa": "recalls facts from the cells of a window layer, as long as the window has them",
    "recall-recurrent": "recalls facts from an SSM state with a register per name",
    "recall-delta": "recalls facts from a matrix state of the delta rule",
    "recall-hybrid": "recalls facts from an SSM state; attention binds a value to its name",
    "recall-hybrid-delta": "recalls facts from a matrix state; attention binds a value to its name",
    "recall-hybrid-swa": "recalls facts from a window layer; a convolution binds them",
    "recall-hybrid-mtp": "recall-hybrid-delta with a head that guesses a further token",
}
"""The real family behind each preset."""


def preset(name: str, /, **changes: Any) -> ModelSpec:
    """The preset of a name, with some fields changed.

    >>> from cachesim import preset
    >>> preset("hybrid").layers
    ('ssm', 'ssm', 'attention', 'ssm', 'ssm', 'attention')
    >>> preset("hybrid", seed=7).seed
    7
    """
    if name not in ALL_PRESETS:
        raise SpecError(f"there is no preset {name!r}; there are {', '.join(ALL_PRESETS)}")
    base = ALL_PRESETS[name]
    for field in changes:
        if field not in FIELDS:
            raise SpecError(f"a model has no {field!r}; it has {', '.join(sorted(FIELDS))}")
    if all(getattr(base, field) == value for field, value in changes.items()):
        return base
    return replace(base, **changes)


@lru_cache(maxsize=64)
def one_of_each(spec: ModelSpec, *, in_ratio: bool = False) -> ModelSpec:
    """The spec with one layer of each kind, after one with full attention.

    `in_ratio`: with the layers of one period instead, so that the kinds keep their ratio.

    What a layer keeps stays, and with it whatever a cache decides without counting bytes. What
    attention keeps in the first layer of all depends on no other token, so that keys and values
    from elsewhere do not show in it: a state stands first, or one more layer. An MTP head guesses
    with all layers, and drafts are what it guesses: there none is left out.
    """
    if spec.mtp_depth or spec.recall:
        return spec
    first, *others = spec.layers
    folds = first in {"ssm", "delta"}
    if in_ratio:
        kinds, count = spec.layers, len(spec.layers)
        sizes = range(1, count + 1)
        period = next(size for size in sizes if kinds == kinds[:size] * (count // size))
        return replace(spec, layers=kinds[: period if folds else 2 * period])
    layers = dict.fromkeys(spec.layers) if folds else (first, *dict.fromkeys(others))
    return replace(spec, layers=tuple(layers))


def tiny(name: str, /, **changes: Any) -> ModelSpec:
    """The preset with one layer of each kind it needs, at least 2, and a width of 16."""
    base = preset(name)
    kinds = tuple(dict.fromkeys(base.layers))
    small: dict[str, Any] = {
        "name": f"{name}-tiny",
        "layers": kinds if len(kinds) > 1 else kinds * 2,
        "width": 16,
        "mlp_width": 32 if base.mlp_width else 0,
        "heads": 2,
        "kv_heads": 1,
        "head_size": 8,
        "window": 8 if base.window else 0,
        "embedding_scale": 4.0 if base.embedding_scale != 1.0 else 1.0,
        "state_size": 8,
        "inner": 16 if "delta" in kinds else 32,
        "groups": 1,
        "state_heads": 2,
    }
    return preset(name, **{**small, **changes})
