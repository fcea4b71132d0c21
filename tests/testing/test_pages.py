"""Workloads part at the ends of pages, where a paged cache is wrong first."""

from dataclasses import replace

import pytest

from cachesim import Engine
from cachesim.engines.base import Request
from cachesim.engines.family import Profile
from cachesim.engines.transformers import cache
from cachesim.engines.transformers.options import TransformersOptions
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.probe.target import page_of
from cachesim.testing.workloads import EDGES, LAST_WORD, Seeded, Shape, draw_workload
from cachesim.units import as_tokens

PROFILE = Profile("llama.cpp", "b11549")
"""Workloads of a server whose answers name no release are drawn for this one."""


def requests_until_wrong(seed: int, page: int, shape: Shape, most: int) -> int:
    """Requests until an answer is not that of a server that shares no blocks."""
    model = build(replace(preset("dense"), vocabulary=LAST_WORD + 1), "ring")
    options = {"page_size": page, "num_blocks": 96}
    warm, cold = (
        Engine.create("transformers@5.24.0", model=model, options=options | more)
        for more in ({}, {"allow_block_sharing": False})
    )
    sent = number = 0
    while sent < most:
        number += 1
        drawn = draw_workload(Seeded(f"{seed} {number}"), PROFILE, "hybrid", shape)
        for step in drawn.step:
            if step.do != "complete" or not step.ids or not isinstance(step.reply, tuple):
                continue
            sent += 1
            prompt, reply = as_tokens(list(step.ids)), as_tokens(list(step.reply))
            answers = []
            for server in (warm, cold):
                ticket = server.submit(Request(prompt=prompt, predict=len(reply), reply=reply))
                server.run()
                answers.append(server.reply(ticket))
            one, other = answers
            assert one is not None
            assert other is not None
            if any((a != b).any() for a, b in zip(one.logits, other.logits, strict=True)):
                return sent
    return most


@pytest.mark.parametrize(("page", "most"), [(4, 60), (16, 150), (64, 250)])
def test_a_hash_without_a_blocks_last_token_is_met_in_few_requests(
    monkeypatch: pytest.MonkeyPatch, page: int, most: int
) -> None:
    hashed = cache.compute_block_hash
    monkeypatch.setattr(
        cache, "compute_block_hash", lambda parent, own: hashed(parent, [*own[:-1], 0])
    )
    edges = (*EDGES, *(3 * (page - 1, page, page + 1, 2 * page + 1)))
    shape = Shape(
        flags=False, longest=max(120, 2 * page + 8), together=False, edges=edges, page=page
    )
    assert all(requests_until_wrong(seed, page, shape, most) < most for seed in range(3))


def test_a_right_cache_of_pages_is_not_accused() -> None:
    shape = Shape(flags=False, longest=120, together=False, page=16)
    assert 100 == requests_until_wrong(0, 16, shape, 100)


@pytest.mark.parametrize(
    ("engine", "command", "page"),
    [
        ("transformers", "transformers serve X --port {port} --cb-block-size 16", 16),
        ("transformers", "transformers serve X --cb-block-size=32 --port 1", 32),
        ("transformers", "transformers serve X --continuous-batching", 256),
        ("transformers", "", TransformersOptions().page_size),
        ("", "mlx_lm.server --cb-block-size 16", 0),
    ],
)
def test_the_page_is_that_of_the_servers_flags_or_of_their_default(
    engine: str, command: str, page: int
) -> None:
    assert page == page_of(engine, command)
