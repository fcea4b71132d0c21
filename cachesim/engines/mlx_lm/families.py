"""The model classes of mlx-lm, and the effect of batch padding on their recurrent states.

A batch of unequal prompts is padded. Every recurrent layer class has its own code for padding in
its convolution and its state, which is wrong in some releases: then the states of a shared batch
are wrong, whatever the caches and the store do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from cachesim.errors import OptionError
from cachesim.model.spec import RECURRENT_KINDS, LayerKind, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentRules:
    """Handling of batch padding by a model class; the defaults are correct."""

    slots: int = 2
    """Number of arrays in a layer's `ArraysCache`."""

    merges_slots_as_padding: bool = False
    """The layer's caches are `MambaCache`s, whose first argument is a padding: a merge of fresh
    ones passes the number of slots as padding, and the next prefill raises (#842)."""

    paired: bool = False
    """A recurrent layer and the attention after it are one layer with one `CacheList`."""

    masks: bool = True
    """The layer applies the cache's mask; otherwise padding counts as tokens."""

    conv_at_lengths: bool = True
    """The convolution keeps the rows at the end of `lengths`, not the last ones of the batch."""

    chunked: bool = False
    """The state is computed by chunks (`ssm_attn`), not token by token."""

    scan_at_lengths: bool = True
    """The chunked scan gets `lengths`; otherwise it uses its last row, and if that is padding, it
    loses every token of the chunk."""

    padding_decays: bool = False
    """Padding decays the state of earlier tokens in the chunked scan."""

    float32_state: bool = True
    """The state is in float32 for any model type; the convolution's rows never are."""

    sparse: bool = False
    """Every layer has one cache of the class's own, with a window and groups."""

    shares_in_batches: bool = True
    """Layers that share another layer's keys do so in batches too; otherwise they raise."""

    shares_in_time: bool = True
    """Layers that share another layer's keys rotate their queries to the columns' positions;
    otherwise to those after the call, which the layer with the keys has counted already."""

    advances: bool = True
    """The layer advances its cache by the computed columns; otherwise every step of a prefill uses
    the mask of the first columns."""


def _place(release: str, order: tuple[str, ...]) -> int:
    """The place of a release in the order; one that is not in it is newer."""
    return order.index(release) if release in order else len(order)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """A model class: its possible layers, and its rules before the oldest release."""

    name: str
    about: str
    layers: tuple[LayerKind, ...]
    rules: RecurrentRules = field(default_factory=RecurrentRules)  # see `releases.py`
    since: str = ""  # the first release that has the class; empty: the oldest known
    chunked: bool = False  # its windows are chunks
    batches: bool = True  # its caches have a batch form

    def is_at(self, release: str, order: tuple[str, ...]) -> bool:
        """True if a release has the class."""
        return not self.since or _place(release, order) >= order.index(self.since)


FAMILIES: Final[Mapping[str, ModelFamily]] = {
    model_family.name: model_family
    for model_family in (
        ModelFamily(name="llama", about="Llama and its relatives", layers=("attention",)),
        ModelFamily(name="gemma3_text", about="Gemma 3", layers=("window", "attention")),
        ModelFamily(
            name="gemma3n",
            about="Gemma 3n",
            layers=("window", "attention"),
            rules=RecurrentRules(shares_in_batches=False, shares_in_time=False),
        ),
        ModelFamily(
            name="llama4",
            about="Llama 4",
            layers=("window", "attention"),
            chunked=True,
            batches=False,
        ),
        ModelFamily(
            name="deepseek_v41",
            about="DeepSeek V4.1",
            layers=("window", "attention"),
            rules=RecurrentRules(sparse=True),
            since="0.32.0",
            batches=False,
        ),
        ModelFamily(
            name="qwen3_next",
            about="Qwen3-Next",
            layers=("delta", "attention"),
            rules=RecurrentRules(merges_slots_as_padding=True, float32_state=False, advances=False),
        ),
        ModelFamily(
            name="qwen3_5",
            about="Qwen 3.5",
            layers=("delta", "attention"),
            rules=RecurrentRules(conv_at_lengths=False, float32_state=False, advances=False),
            since="0.30.7",
        ),
        ModelFamily(
            name="granitemoehybrid",
            about="Granite 4 hybrid",
            layers=("ssm", "attention"),
            rules=RecurrentRules(
                merges_slots_as_padding=True,
                chunked=True,
                scan_at_lengths=False,
                padding_decays=True,
                float32_state=False,
                advances=False,
            ),
        ),
        ModelFamily(
            name="mamba2",
            about="Mamba-2",
            layers=("ssm",),
            rules=RecurrentRules(
                merges_slots_as_padding=True,
                chunked=True,
                padding_decays=True,
                float32_state=False,
                advances=False,
            ),
        ),
        ModelFamily(
            name="nemotron_h",
            about="Nemotron-H",
            layers=("ssm", "attention"),
            rules=RecurrentRules(
                merges_slots_as_padding=True,
                chunked=True,
                scan_at_lengths=False,
                padding_decays=True,
                float32_state=False,
                advances=False,
            ),
        ),
        ModelFamily(
            name="falcon_h1",
            about="Falcon-H1",
            layers=("ssm", "attention"),
            rules=RecurrentRules(
                merges_slots_as_padding=True,
                paired=True,
                chunked=True,
                padding_decays=True,
                float32_state=False,
                advances=False,
            ),
        ),
        ModelFamily(
            name="plamo2",
            about="PLaMo 2",
            layers=("ssm", "attention"),
            rules=RecurrentRules(
                merges_slots_as_padding=True,
                chunked=True,
                padding_decays=True,
                float32_state=False,
                advances=False,
            ),
        ),
        ModelFamily(
            name="jamba",
            about="Jamba",
            layers=("ssm", "attention"),
            rules=RecurrentRules(
                merges_slots_as_padding=True, masks=False, conv_at_lengths=False, advances=False
            ),
        ),
        ModelFamily(
            name="lfm2",
            about="LFM2",
            layers=("conv", "attention", "window"),
            rules=RecurrentRules(slots=1, advances=False),
        ),
    )
}
"""The model classes by the name of their module."""

DEFAULTS: Final[Mapping[LayerKind, str]] = {
    "delta": "qwen3_5",
    "conv": "lfm2",
    "ssm": "granitemoehybrid",
    "window": "gemma3_text",
    "attention": "llama",
}
"""Kind of layer -> the class of a model with it; the first kind counts."""


def model_classes(spec: ModelSpec) -> tuple[str, ...]:
    """The classes of `mlx_lm.models` that a model with these layers may have, by name."""

    def fits(name: str) -> bool:
        try:
            family_of(replace(spec, family=name))
        except OptionError:
            return False
        return True

    return tuple(filter(fits, FAMILIES))


def family_of(spec: ModelSpec) -> ModelFamily:
    """The class that a model names, or the default of its layers."""
    family = FAMILIES.get(spec.family or _default(spec))
    if family is None:
        msg = f"mlx-lm has no model family {spec.family!r} here; there are {', '.join(FAMILIES)}"
        raise OptionError(msg)
    foreign = [kind for kind in spec.layers if kind not in family.layers]
    missing = set(family.layers) & set(RECURRENT_KINDS) - set(spec.layers)
    if spec.chunked != family.chunked:
        msg = (
            f"model family {family.name!r} sees chunks where others have windows: write chunked"
            if family.chunked
            else f"model family {family.name!r} has no chunks: leave `chunked` out, or the family"
        )
        raise OptionError(msg)
    if family.chunked and not _alternates(spec):
        msg = f"model family {family.name!r} attends fully in every fourth layer, and only there"
        raise OptionError(msg)
    if foreign or missing:
        kinds = ", ".join(dict.fromkeys(spec.layers))
        raise OptionError(
            f"model family {family.name!r} has layers of {', '.join(family.layers)}; this model "
            f"has {kinds}: name a family that fits, or leave it out"
        )
    return family


def _alternates(spec: ModelSpec) -> bool:
    """Check for three chunked layers before each full one, as in `LlamaModel`."""
    kinds = [
        "attention" if number % 4 == 0 else "window" for number in range(1, len(spec.layers) + 1)
    ]
    return "attention" in kinds and kinds == list(spec.layers)


def _default(spec: ModelSpec) -> str:
    if spec.chunked:
        return next(family.name for family in FAMILIES.values() if family.chunked)
    if set(spec.layers) == {"ssm"}:
        return "mamba2"
    return next(name for kind, name in DEFAULTS.items() if kind in spec.layers)
