"""Cold prompts and greedy replies: the same for the real server and for the float network."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from cachesim.model.network import FloatNetwork
from cachesim.model.plain import PlainStore
from cachesim.model.presets import PRESETS
from cachesim.model.spec import FIRST_PLAIN
from cachesim.model.store import Ubatch
from cachesim.units import Array, Token, Tokens, as_tokens

PRECISE: Final[Mapping[str, Any]] = {
    "parallel": 1,
    "flash_attn": False,
    "cache_type_k": "f32",
    "cache_type_v": "f32",
    "cache_ram": 0,
}
"""A server that rounds as little as it can."""


def drawn_prompt(random: np.random.Generator, length: int) -> Tokens:
    """Plain tokens."""
    vocabulary = PRESETS["dense"].vocabulary
    return as_tokens(random.integers(FIRST_PLAIN, vocabulary, length).tolist())


def generate(network: FloatNetwork, prompt: Tokens, predict: int) -> tuple[Tokens, list[Array]]:
    """The greedy continuation, and the log probabilities that each of its tokens came from."""
    store = PlainStore(network)
    reply: list[Token] = []
    rows: list[Array] = []
    ids, first = np.array(prompt), 0
    for _ in range(predict):
        positions = np.arange(first, first + len(ids))
        last = np.array([len(ids) - 1])
        ubatch = Ubatch(tokens=ids, positions=positions, outputs=last)
        (logits,) = network.run(ubatch, store).logits
        rows.append(logits - np.logaddexp.reduce(logits))
        reply.append(network.sample(logits))
        ids, first = np.array(reply[-1:]), first + len(ids)
    return tuple(reply), rows
