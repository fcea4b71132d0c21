"""`Family` value of Transformers' continuous batching."""

from functools import partial
from typing import Final

from cachesim.engines.family import Family, Patch, laying, tagged
from cachesim.engines.transformers.dynamic import LayerRules
from cachesim.engines.transformers.options import TransformersOptions
from cachesim.engines.transformers.rules import Rules
from cachesim.errors import SpecError
from cachesim.model.spec import ModelSpec

_release = partial(tagged, package="transformers")
_lengths = Rules(layers=LayerRules(crops_to_length=True, crops_unused=False))
_counts = Rules(layers=LayerRules(crops_unused=False))
_now = Rules()

RELEASES: Final = (
    _release("5.18.0", "", rules=_lengths, about="sectors for layers of several kinds"),
    _release("5.20.2", "", rules=_counts, about="as 5.18.0; DynamicCache: no positive crop"),
    _release("5.22.2", "", rules=_now, about="as 5.20.2; DynamicCache: unused layers are cropped"),
    _release("5.23.0", "", rules=_now, about="as 5.22.2"),
    _release("5.24.0", "", rules=_now, about="as 5.22.2"),
)
"""Oldest first."""

PATCHES: Final[tuple[Patch[Rules], ...]] = (
    Patch(
        name="registers-last-batch",
        about="blocks are registered before the request that filled them is finished",
        fits=tuple(release.name for release in RELEASES),
        lay=laying(registers_last_batch=True),
    ),
)


def check_model(spec: ModelSpec) -> None:
    """Refuse layers without an allocator, as `group_layers_by_attn_type` does."""
    other = next((each for each in spec.layers if each not in {"attention", "window"}), None)
    if other is not None or spec.chunked:
        kind = "chunked windows" if spec.chunked else f"{other!r}"
        raise SpecError(
            f"transformers' continuous batching has no allocator for layers of kind {kind}: "
            "take a model of attention and window layers"
        )


FAMILY: Final[Family[Rules, TransformersOptions]] = Family(
    name="transformers",
    about="Hugging Face Transformers, continuous batching: hashed blocks, all evicted at once",
    repository="huggingface/transformers",
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    configuration=f"{__package__}.fields",
    engine=f"{__package__}.server:Transformers",
    releases=RELEASES,
    patches=PATCHES,
    options=TransformersOptions,
    has_slots=False,
    check_model=check_model,
    groups_layers=True,
    program="transformers serve --continuous-batching",
)
