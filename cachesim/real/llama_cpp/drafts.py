"""The MTP head beside llama.cpp's: how many drafts the same prompts see proposed and accepted.

The real server does not show what its head thinks, but it counts. With one draft at a time, the
counts follow from three things: the target's greedy reply, the head's guess at each position, and
where the guesses fall.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from cachesim.model.network import FloatNetwork
from cachesim.model.plain import PlainStore
from cachesim.model.presets import preset
from cachesim.model.store import Ubatch
from cachesim.real.llama_cpp.gguf import write_model
from cachesim.real.llama_cpp.greedy import PRECISE, drawn_prompt, generate
from cachesim.real.llama_cpp.server import RealServer
from cachesim.real.llama_cpp.workload import Release
from cachesim.scenario.format import Step
from cachesim.typed import there_is
from cachesim.units import Tokens

DRAFTING: Final[Mapping[str, Any]] = {
    **PRECISE,
    "spec_type": "draft-mtp",
    "spec_draft_n_max": 1,
    "spec_draft_p_min": 0.0,
}
"""A server that proposes one token at a time, however unsure its head is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """How many tokens were proposed and how many of them were right."""

    drafted: int
    accepted: int


def compare_drafts(
    release: Release, *, prompts: int = 20, length: int = 40, predict: int = 48, seed: int = 0
) -> list[tuple[Drafts, Drafts]]:
    """What the real server counted and what the network's head makes of each prompt."""
    random = np.random.default_rng(seed)
    network = FloatNetwork(preset("hybrid-mtp", seed=seed))
    found = []
    with RealServer(release) as real, TemporaryDirectory() as folder:
        path = Path(folder) / "hybrid-mtp.gguf"
        write_model(network.spec, path)
        with real.started(DRAFTING, path) as server:
            for _ in range(prompts):
                prompt = drawn_prompt(random, length)
                step = Step(name="prompt", prompt=prompt, predict=predict, cache_prompt=False)
                (outcome,) = server.ask((step,))
                counted = Drafts(drafted=outcome.drafted, accepted=outcome.accepted)
                found.append((counted, expected_drafts(network, prompt, predict)))
    return found


def expected_drafts(network: FloatNetwork, prompt: Tokens, predict: int) -> Drafts:
    """Play the loop: propose one token where there is room, and go on behind what was right."""
    reply, _ = generate(network, prompt, predict + 2)
    told = (*prompt, *reply)
    guesses = head_guesses(network, told[:-1])
    right = [guess == token for guess, token in zip(guesses, told[1:], strict=True)]
    emitted, at, drafted, accepted = 1, len(prompt), 0, 0
    while emitted < predict:
        room = predict - emitted > 1
        hit = room and right[at]
        drafted, accepted = drafted + room, accepted + hit
        emitted, at = emitted + 1 + hit, at + 1 + hit
    return Drafts(drafted=drafted, accepted=accepted)


def head_guesses(network: FloatNetwork, tokens: Tokens) -> list[int]:
    """The head's guess for the token after each: it reads the hidden row before it."""
    head = there_is(network.companion())  # the preset has one
    ids, positions = np.array(tokens), np.arange(len(tokens))
    output = network.run(Ubatch(tokens=ids, positions=positions), PlainStore(network))
    hidden = there_is(output.hidden)
    before = np.concatenate([np.zeros_like(hidden[:1]), hidden[:-1]])
    ubatch = Ubatch(tokens=ids, positions=positions, hidden=before)
    guesses: list[int] = head.run(ubatch, PlainStore(head)).logits.argmax(axis=1).tolist()
    return guesses
