"""Weights in blocks, read as `dequantize_row_q8_0` and `dequantize_row_q4_K` of llama.cpp do."""

from typing import Any

import numpy as np
import pytest

from benchmarks.quantised import quantised

WEIGHTS = np.random.default_rng(0).normal(size=(3, 512)).astype(np.float32)


def q8_0(block: Any) -> list[float]:
    return [float(block["scale"]) * int(number) for number in block["numbers"]]


def q4_k(block: Any) -> list[float]:
    found, six = [], [int(each) for each in block["six"]]
    for sub in range(8):
        if sub < 4:
            scale, least = six[sub] & 63, six[sub + 4] & 63
        else:
            scale = six[sub + 4] & 15 | six[sub - 4] >> 6 << 4
            least = six[sub + 4] >> 4 | six[sub] >> 6 << 4
        for number in block["numbers"][sub // 2 * 32 : sub // 2 * 32 + 32]:
            nibble = int(number) >> 4 if sub % 2 else int(number) & 15
            found.append(float(block["scale"]) * scale * nibble - float(block["lowest"]) * least)
    return found


@pytest.mark.parametrize(("kind", "read", "error"), [("Q8_0", q8_0, 0.02), ("Q4_K", q4_k, 0.25)])
def test_blocks_hold_the_weights(kind: str, read: Any, error: float) -> None:
    blocks = quantised({"a.weight": WEIGHTS}, kind)["a.weight"]
    found = [[number for block in row for number in read(block)] for row in blocks]

    assert WEIGHTS.shape == np.shape(found)
    assert error > np.abs(WEIGHTS - found).max()


def test_what_does_not_divide_stays_as_it_is() -> None:
    weights = {"norm.weight": WEIGHTS[0], "a.weight": WEIGHTS[:, :100]}
    assert weights == quantised(weights, "Q4_K")
