"""The releases and patches of Transformers, as data."""

from typing import Final

from cachesim.engines.family import Patch, laying, tagged
from cachesim.engines.history import History, Merged
from cachesim.engines.transformers.dynamic import LayerRules
from cachesim.engines.transformers.rules import Rules

TAGS: Final = (
    ("5.18.0", "sectors for layers of several kinds"),
    ("5.20.2", "as 5.18.0; DynamicCache: no positive crop"),
    ("5.22.2", "as 5.20.2; DynamicCache: unused layers are cropped"),
    ("5.23.0", "as 5.22.2"),
    ("5.24.0", "as 5.22.2"),
)
"""Each release, oldest first: its changes."""

ALL: Final = tuple(name for name, _ in TAGS)

OLDEST: Final = Rules(layers=LayerRules(crops_to_length=True, crops_unused=False))
"""The rules of 5.18.0."""

MERGED: Final[tuple[Merged, ...]] = (
    Merged(
        name="no-positive-crop",
        about="DynamicCache: a crop is a negative number of tokens; before, a length, too",
        landed="5.20.2",
        sets={"layers.crops_to_length": False},
    ),
    Merged(
        name="unused-layers-cropped",
        about="DynamicCache: a layer that holds nothing yet may be cropped",
        landed="5.22.2",
        sets={"layers.crops_unused": True},
    ),
)

PROPOSED: Final[tuple[Patch[Rules], ...]] = (
    Patch(
        name="registers-last-batch",
        about="blocks are registered before the request that filled them is finished",
        fits=ALL,
        lay=laying(registers_last_batch=True),
    ),
)

HISTORY: Final = History(OLDEST, ALL, MERGED, PROPOSED)
RELEASES: Final = tuple(
    tagged(name, "", HISTORY.rules(name), about, "transformers") for name, about in TAGS
)
