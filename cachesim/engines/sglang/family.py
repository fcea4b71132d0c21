"""SGLang's `Family`: the entry for tools."""

from collections.abc import Iterator
from typing import Final

from cachesim.engines.family import Corner, Family
from cachesim.engines.option import asked
from cachesim.engines.sglang.options import SglangOptions
from cachesim.engines.sglang.profiles import PATCHES, RELEASES
from cachesim.engines.sglang.rules import Rules

_STATES: Final = frozenset({"ssm", "delta", "conv"})
_WINDOWS: Final = frozenset({"window"})


def _corners() -> Iterator[Corner]:
    """Options under which states and window slots change owners: short grids, small pools."""
    for strategy in ("mamba_scheduler_strategy", "mamba_radix_cache_strategy"):
        grid = {strategy: "extra_buffer"}
        yield Corner(flags=grid | {"max_mamba_cache_size": 64}, layers=_STATES, crowd=True)
        yield Corner(flags=grid | {"mamba_track_interval": 64}, layers=_STATES, replies=24)
        ends = {strategy: "no_buffer", "chunked_prefill_size": 64}
        yield Corner(flags=ends, layers=_STATES)
    yield Corner(layers=_WINDOWS, window=8, replies=24)
    yield Corner(flags={"page_size": 16}, layers=_WINDOWS, window=4, replies=24)
    pairs = {"speculative_algorithm": "EAGLE", "page_size": 16, "chunked_prefill_size": 64}
    yield Corner(flags=pairs, layers=_WINDOWS)
    host = {"enable_hierarchical_cache": True, "max_total_tokens": 300, "page_size": 1}
    yield Corner(flags=host, steps=14)
    few = host | {"max_total_tokens": 400, "swa_full_tokens_ratio": 0.3}
    yield Corner(flags=few, layers=_WINDOWS, steps=14)


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
        asked(
            "extra_key",
            "text",
            "separates this request's prefixes from those of other keys",
        ),
        asked(
            "priority",
            "whole number",
            "under the eviction policy `priority`, nodes of lower priority are evicted first",
            default=0,
            low=0,
            high=1 << 30,
        ),
    ),
    has_slots=False,
    may_decline=False,
    hunted=({}, {"enable_hierarchical_cache": True, "max_total_tokens": 400}),
    corners=tuple(_corners()),
    incidents=("cancel", "arrival"),
    exercised={
        "node-evicted": "eviction",
        "state-evicted": "eviction",
        "prefix-kept": "save",
        "loaded-from-host": "load",
    },
)
