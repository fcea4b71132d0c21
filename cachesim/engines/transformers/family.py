"""`Family` value of Transformers' continuous batching."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.transformers.options import TransformersOptions
from cachesim.engines.transformers.releases import HISTORY, RELEASES
from cachesim.engines.transformers.rules import Rules
from cachesim.errors import SpecError
from cachesim.model.spec import ModelSpec


def check_model(spec: ModelSpec) -> None:
    """Refuse layers without an allocator, as `group_layers_by_attn_type` does."""
    other = next((layer for layer in spec.layers if layer not in {"attention", "window"}), None)
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
    patches=HISTORY.patches,
    options=TransformersOptions,
    has_slots=False,
    check_model=check_model,
    groups_layers=True,
    program="transformers serve --continuous-batching",
)
