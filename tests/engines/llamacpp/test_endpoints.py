"""What shares the slots with completions: embeddings, documents, gaps; and what ends all."""

from contextlib import nullcontext
from typing import Any

import pytest

from cachesim.engines.base import Engine
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.errors import UpstreamAbort
from cachesim.model.presets import preset
from cachesim.play.session import SlotFiles


def server(release: str = "b11549", model: str = "dense", **options: Any) -> LlamaCpp:
    engine = Engine.create(
        f"llama.cpp@{release}",
        model=preset(model),
        options=options,
        arithmetic="ring",
        store=SlotFiles(),
    )
    assert isinstance(engine, LlamaCpp)
    return engine


def test_no_context_is_the_one_that_the_model_was_trained_with() -> None:
    assert 65_536 == server(ctx_size=0).server.slots[0].n_ctx


@pytest.mark.parametrize(
    ("flags", "since"),  # the wheels' first release that ends as it starts
    [
        ({"parallel": 3, "ubatch_size": 512, "pooling": "mean"}, "b9538"),
        ({"parallel": 6, "ubatch_size": 512, "pooling": "mean"}, "b9538"),
        ({"parallel": 4, "ubatch_size": 510, "pooling": "mean"}, "b9538"),
        ({"parallel": 3, "ctx_size": 256, "pooling": "mean"}, "b9538"),
        ({"parallel": 3, "ubatch_size": 99, "batch_size": 64, "pooling": "mean"}, "b9538"),
        ({"parallel": 4, "ubatch_size": 2, "pooling": "last"}, "b9538"),
        ({"parallel": 4, "batch_size": 3, "embedding": False}, "b9538"),
        ({"parallel": 3, "ubatch_size": 510, "pooling": "mean"}, ""),
        ({"parallel": 3, "ubatch_size": 512, "pooling": "mean", "embedding": False}, ""),
        ({"parallel": 3, "ubatch_size": 512, "pooling": "cls"}, ""),
        ({"parallel": 4, "ubatch_size": 2, "embedding": False}, ""),
    ],
)
def test_a_graph_that_cannot_be_reserved_ends_the_server_at_start_as_on_the_wheels(
    flags: dict[str, Any], since: str
) -> None:
    names = FAMILY.real()
    for release in names:
        ends = bool(since) and names.index(release) >= names.index(since)
        expected = pytest.raises(UpstreamAbort, match="graph_reserve") if ends else nullcontext()
        with expected:
            server(release, **{"embedding": True, **flags})
