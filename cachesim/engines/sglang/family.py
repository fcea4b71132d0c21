"""What tools must know of SGLang."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.option import Option
from cachesim.engines.sglang.options import SglangOptions
from cachesim.engines.sglang.profiles import PATCHES, RELEASES
from cachesim.engines.sglang.rules import Rules

FAMILY: Final[Family[Rules, SglangOptions]] = Family(
    name="sglang",
    about="SGLang: a radix tree whose nodes may hold states and window slots",
    repository="sgl-project/sglang",
    room=__package__,
    engine=f"{__package__}.server:Sglang",
    releases=RELEASES,
    patches=PATCHES,
    options=SglangOptions,
    fields=(
        Option(
            name="extra_key",
            about="keeps this request's prefixes apart from those of other keys",
            kind="text",
        ),
        Option(
            name="priority",
            about="under the eviction policy `priority`, nodes of a lower one go first",
            kind="whole number",
            default=0,
            low=0,
            high=1 << 30,
        ),
    ),
    has_slots=False,
    may_decline=False,
    hunted=({}, {"enable_hierarchical_cache": True, "max_total_tokens": 400}),
    incidents=("cancel", "arrival"),
    exercised={
        "node-evicted": "eviction",
        "state-evicted": "eviction",
        "prefix-kept": "save",
        "loaded-from-host": "load",
    },
)
