"""The layers' equations once more: one token, one head, one number after the other."""

import numpy as np

from cachesim.model.spec import ModelSpec
from cachesim.model.weights import Weights
from cachesim.units import Array


def norm(x: Array, weight: Array, epsilon: float = 1e-6) -> Array:
    return x / np.sqrt(np.mean(x * x) + epsilon) * weight


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def convolved(rows: list[Array], taps: Array) -> list[Array]:
    """Each row with the ones before it, zeros before the first; taps (k, C), oldest first."""
    size = len(taps)
    padded = [np.zeros_like(rows[0])] * (size - 1) + rows
    return [sum(taps[j] * padded[t + j] for j in range(size)) for t in range(len(rows))]


def attention(spec: ModelSpec, w: Weights, p: str, xs: Array, window: int = 0) -> Array:
    """Causal attention of rows xs (T, d) from position 0 on."""
    heads, kv, size = spec.heads, spec.kv_heads, spec.head_size
    keys: list[list[Array]] = []
    values: list[Array] = []
    results = []
    for t, row in enumerate(xs):
        x = norm(row, w[p + "attn_norm.weight"])
        query = (w[p + "attn_q.weight"] @ x).reshape(heads, -1)
        key = (w[p + "attn_k.weight"] @ x).reshape(kv, size)
        if spec.qk_norm:
            query[:, :size] = [norm(q, w[p + "attn_q_norm.weight"]) for q in query[:, :size]]
            key = np.array([norm(k, w[p + "attn_k_norm.weight"]) for k in key])
        keys.append([turned(spec, k, t) for k in key])
        values.append((w[p + "attn_v.weight"] @ x).reshape(kv, size))
        seen = range(max(0, t - window + 1) if window else 0, t + 1)
        out = []
        for h in range(heads):
            q, of = turned(spec, query[h, :size], t), h // (heads // kv)
            weights = np.exp([q @ keys[j][of] / np.sqrt(size) for j in seen])
            mixed = sum(weights[i] * values[j][of] for i, j in enumerate(seen)) / weights.sum()
            out.append(mixed * sigmoid(query[h, size:]) if spec.attention_gate else mixed)
        result = w[p + "attn_output.weight"] @ np.concatenate(out)
        if spec.post_norms:
            result = norm(result, w[p + "post_attention_norm.weight"])
        results.append(result)
    return np.array(results)


def turned(spec: ModelSpec, x: Array, position: int) -> Array:
    if spec.rope == "none":
        return x
    half = len(x) // 2
    result = x.copy()
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if spec.rope == "pairs" else (i, i + half)
        angle = position * spec.rope_base ** (-2 * i / len(x))
        result[a] = x[a] * np.cos(angle) - x[b] * np.sin(angle)
        result[b] = x[b] * np.cos(angle) + x[a] * np.sin(angle)
    return result


def ssm(spec: ModelSpec, w: Weights, p: str, xs: Array) -> Array:
    inner, heads, size, groups = spec.inner, spec.state_heads, spec.state_size, spec.groups
    wide = inner // heads
    mixed = [w[p + "ssm_in.weight"] @ norm(x, w[p + "attn_norm.weight"]) for x in xs]
    channels = spec.conv_channels
    taps = w[p + "ssm_conv1d.weight"].T
    rows = convolved([row[inner : inner + channels] for row in mixed], taps)
    state = np.zeros((heads, wide, size))
    results = []
    for row, taken in zip(mixed, rows, strict=True):
        conv = silu(taken + w[p + "ssm_conv1d.bias"])
        x = conv[:inner].reshape(heads, wide)
        b, c = conv[inner:].reshape(2, groups, size)
        y = np.zeros((heads, wide))
        for h in range(heads):
            step = np.log1p(np.exp(row[inner + channels + h] + w[p + "ssm_dt.bias"][h]))
            group = h // (heads // groups)
            fade = np.exp(step * w[p + "ssm_a"][h, 0])
            state[h] = fade * state[h] + step * np.outer(x[h], b[group])
            y[h] = state[h] @ c[group] + w[p + "ssm_d"][h, 0] * x[h]
        gated = (y.reshape(-1) * silu(row[:inner])).reshape(groups, -1)
        normed = [norm(g, n) for g, n in zip(gated, w[p + "ssm_norm.weight"], strict=True)]
        results.append(w[p + "ssm_out.weight"] @ np.concatenate(normed))
    return np.array(results)


def delta(spec: ModelSpec, w: Weights, p: str, xs: Array) -> Array:
    heads, size, groups = spec.state_heads, spec.state_size, spec.groups
    normed = [norm(x, w[p + "attn_norm.weight"]) for x in xs]
    taps = w[p + "ssm_conv1d.weight"].T
    rows = convolved([w[p + "attn_qkv.weight"] @ x for x in normed], taps)
    state = np.zeros((heads, size, size))
    results = []
    for x, taken in zip(normed, rows, strict=True):
        conv = silu(taken)
        side = groups * size
        q, k = conv[: 2 * side].reshape(2, groups, size)
        v = conv[2 * side :].reshape(heads, size)
        z = (w[p + "attn_gate.weight"] @ x).reshape(heads, size)
        beta = sigmoid(w[p + "ssm_beta.weight"] @ x)
        step = np.log1p(np.exp(w[p + "ssm_alpha.weight"] @ x + w[p + "ssm_dt.bias"]))
        out = []
        for h in range(heads):
            query = q[h % groups] / np.linalg.norm(q[h % groups]) / np.sqrt(size)
            key = k[h % groups] / np.linalg.norm(k[h % groups])
            state[h] = state[h] * np.exp(step[h] * w[p + "ssm_a"][h])
            missing = v[h] - key @ state[h]
            state[h] = state[h] + np.outer(key, beta[h] * missing)
            out.append(norm(query @ state[h], w[p + "ssm_norm.weight"]) * silu(z[h]))
        results.append(w[p + "ssm_out.weight"] @ np.concatenate(out))
    return np.array(results)


def short_conv(_spec: ModelSpec, w: Weights, p: str, xs: Array) -> Array:
    mixed = [
        (w[p + "shortconv.in_proj.weight"] @ norm(x, w[p + "attn_norm.weight"])).reshape(3, -1)
        for x in xs
    ]
    rows = convolved([b * x for b, _, x in mixed], w[p + "shortconv.conv.weight"].T)
    out = w[p + "shortconv.out_proj.weight"]
    return np.array([out @ (c * y) for (_, c, _), y in zip(mixed, rows, strict=True)])


def mlp(spec: ModelSpec, w: Weights, p: str, name: str, xs: Array) -> Array:
    results = []
    for row in xs:
        x = norm(row, w[p + name])
        gate = w[p + "ffn_gate.weight"] @ x
        if spec.activation == "gelu":
            slope = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
            gate = 0.5 * gate * (1 + np.tanh(slope))
        else:
            gate = silu(gate)
        result = w[p + "ffn_down.weight"] @ (gate * (w[p + "ffn_up.weight"] @ x))
        if spec.post_norms:
            result = norm(result, w[p + "post_ffw_norm.weight"])
        results.append(result)
    return np.array(results)
