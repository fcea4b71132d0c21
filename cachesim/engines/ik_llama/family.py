"""The `Family` of ik_llama.cpp's server."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.ik_llama.options import FIELDS, Options
from cachesim.engines.ik_llama.releases import HISTORY, RELEASES
from cachesim.engines.ik_llama.rules import Rules

FAMILY: Final[Family[Rules, Options]] = Family(
    name="ik_llama.cpp",
    about="llama.cpp's fork: tolerant matching, checkpoints during generation, MTP drafts",
    repository="ikawrakow/ik_llama.cpp",
    vocabulary="ik",
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    configuration=f"{__package__}.fields",
    engine=f"{__package__}.server:IkLlama",
    releases=RELEASES,
    patches=HISTORY.patches,
    options=Options,
    fields=FIELDS,
    kin=("llama.cpp",),
    loads={
        **dict.fromkeys(("dense", "recall-dense"), ""),
        **dict.fromkeys(("swa", "recall-swa"), "with six layers"),
        **dict.fromkeys(
            ("hybrid-delta", "hybrid-mtp", "recall-hybrid-delta", "recall-hybrid-mtp"),
            "with states of 64 or 128",
        ),
    },
)
