"""RMSNorm and the activations, in one elementwise order.

An exponential of a large number may overflow on its way to a limit that is right (x / infinity);
the network says so once for all layers.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

import numpy as np

from cachesim.model.spec import Activation
from cachesim.units import Array

ZERO: Final = np.array(0.0)
ONE: Final = np.array(1.0)
"""Arrays without axes: NumPy takes them in half the time of Python's 0.0 and 1.0."""

TABLE_ENDS: Final = 10.0
"""From here on ggml takes GELU for x, and for 0 on the other side."""


def squares(rows: Array) -> Array:
    """Sum of squares along the last axis, kept as an axis of one."""
    sums: Array = np.matmul(rows[..., None, :], rows[..., :, None])[..., 0]
    return sums


def rms_norm(rows: Array, epsilon: float) -> Array:
    """Rows (..., d) at a root mean square of one; a weight, if any, is the caller's."""
    size = rows.shape[-1]
    scale = squares(rows)
    scale *= 1.0 / size
    scale += epsilon
    np.sqrt(scale, out=scale)
    return np.divide(rows, scale)


def l2_norm(rows: Array, epsilon: float) -> Array:
    """Rows (..., d) at length one; shorter ones than epsilon are divided by it (as ggml does)."""
    length = squares(rows)
    np.sqrt(length, out=length)
    np.maximum(length, epsilon, out=length)
    return np.divide(rows, length)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    result: Array = np.negative(x)
    np.exp(result, result)
    np.add(result, ONE, result)
    np.divide(ONE, result, result)
    return result


def silu(x: Array) -> Array:
    """X times its sigmoid."""
    result: Array = np.negative(x)
    np.exp(result, result)
    np.add(result, ONE, result)
    np.divide(x, result, result)
    return result


def gelu(x: Array) -> Array:
    """The tanh form, as ggml computes it."""
    inner = x * x
    inner *= 0.044715
    inner += 1.0
    inner *= x
    inner *= -2.0 * math.sqrt(2.0 / math.pi)  # 0.5 (1 + tanh u) is the sigmoid of 2 u
    np.exp(inner, out=inner)
    inner += 1.0
    np.divide(x, inner, out=inner)
    return inner


def gelu_table(x: Array) -> Array:
    """GELU as ggml_vec_geglu_f32 looks it up: half-precision numbers on both sides."""
    within = np.clip(x, -TABLE_ENDS, TABLE_ENDS)
    halves = within.astype(np.float32).astype(np.float16)
    result = _table()[halves.view(np.uint16)]
    np.copyto(result, 0.0, where=x <= -TABLE_ENDS)
    np.copyto(result, x, where=x >= TABLE_ENDS)
    return result


@cache
def _table() -> Array:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return gelu(every).astype(np.float16).astype(np.float64)


ACTIVATIONS: Final[Mapping[Activation, Callable[[Array], Array]]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu-table": gelu_table,
}


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    result: Array = np.logaddexp(ZERO, x)
    return result
