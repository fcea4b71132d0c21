"""The numbers of SGLang's own classes, request by request, on the engine as users start it."""

from typing import Any

import pytest

from cachesim.engines.base import Engine
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.options import SglangOptions
from cachesim.engines.sglang.server import Sglang
from cachesim.model.presets import tiny
from cachesim.typed import of_kind

RELEASES = ("0.5.9", "0.5.23")


def strategy(release: str, name: str) -> dict[str, Any]:
    option = "mamba_scheduler_strategy" if release == "0.5.9" else "mamba_radix_cache_strategy"
    return {option: name}


def test_drafts_and_mixed_chunks_go_together_since_0523() -> None:
    asked = SglangOptions(enable_mixed_chunk=True, speculative_algorithm="EAGLE")

    found = {release: asked.mixes(FAMILY.release(release).rules) for release in RELEASES}

    assert {"0.5.9": False, "0.5.23": True} == found


@pytest.mark.parametrize(
    ("release", "named", "options", "running"),
    [
        ("0.5.23", "extra_buffer", {}, 3),
        ("0.5.23", "no_buffer", {}, 5),
        ("0.5.9", "extra_buffer", {}, 3),
        ("0.5.9", "extra_buffer", {"speculative_algorithm": "EAGLE"}, 4),
        ("0.5.23", "extra_buffer", {"speculative_algorithm": "EAGLE"}, 3),
        ("0.5.23", "no_buffer", {"max_total_tokens": 9}, 4),
        ("0.5.9", "no_buffer", {"max_total_tokens": 9}, 5),
    ],
)
def test_states_and_tokens_bound_the_requests_that_run_at_once(
    release: str, named: str, options: dict[str, Any], running: int
) -> None:
    """Sixteen states: three a request, and one or two more where states are tracked apart."""
    engine = Engine.create(
        f"sglang@{release}",
        model=tiny("hybrid", vocabulary=4096),
        options={"max_mamba_cache_size": 16, **strategy(release, named), **options},
        arithmetic="counts",
    )

    assert running == of_kind(Sglang, engine).scheduler.limits.max_running
