"""DeepSeek V4.1's own cache class: a window and groups, served alone, never cut back."""

import numpy as np
import pytest

from cachesim.engines import Engine, Request
from cachesim.engines.mlx_lm.caches.sparse_cache import SparseCache
from cachesim.engines.mlx_lm.engine import MlxLm
from cachesim.engines.mlx_lm.events import RequestAdmitted
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.model.presets import tiny
from cachesim.model.spec import ModelSpec
from cachesim.units import Tokens, as_tokens
from cachesim.verify.oracle import cold_logits

SPEC: ModelSpec = tiny("swa", family="deepseek_v41", window=8)
CHAT = as_tokens([300 + index % 37 for index in range(30)])
SAID = as_tokens([400, 401, 402])


def served(*prompts: Tokens) -> tuple[list[int | None], list[bool], Engine]:
    """Cached tokens of each prompt, and whether its answer is the cold one."""
    engine = Engine.create("mlx-lm@0.32.2", model=SPEC, arithmetic="ring")
    cached, right = [], []
    for prompt in prompts:
        ticket = engine.submit(Request(prompt=prompt, predict=3, reply=SAID))
        engine.run()
        reply = engine.reply(ticket)
        assert reply is not None
        cold = cold_logits(SPEC, prompt + SAID[:-1], arithmetic="ring")[-3:]
        cached.append(reply.cached)
        right.append(np.array_equal(cold, reply.logits))
    return cached, right, engine


def test_a_chat_goes_on_and_a_branch_starts_again() -> None:
    cached, right, engine = served(CHAT, CHAT + SAID + CHAT[:5], CHAT[:20] + SAID)

    assert cached == [0, 33, 0]
    assert right == [True, True, True]
    admitted = [each for each in engine.events if isinstance(each, RequestAdmitted)]
    assert {each.path for each in admitted} == {"single"}


def test_upstream_calls_the_class_layer_cache() -> None:
    engine = served(CHAT)[2]
    assert isinstance(engine, MlxLm)
    cache = engine.model.make_cache()

    assert {each.upstream_name for each in cache} == {"LayerCache"}
    assert not any(each.is_trimmable() for each in cache)


@pytest.mark.parametrize(
    ("count", "groups", "expected"), [(5, False, 5), (30, False, 8), (30, True, 8 + 14 + 2 * 2 * 2)]
)
def test_bytes_are_those_of_window_groups_and_what_waits(
    count: int, groups: bool, expected: int
) -> None:
    """In rows of one byte, float32 ones of two: 30 tokens are 7 groups, and two wait."""
    cache = SparseCache(FAMILY.release("0.32.2").rules.caches, 8, groups=groups)
    cache.row_bytes, cache.wide_row_bytes = 1, 2
    rows = np.zeros((1, 1, count, 1))
    cache.update_and_fetch(rows, rows)

    assert cache.nbytes == expected
