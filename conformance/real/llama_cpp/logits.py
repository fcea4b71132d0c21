"""The float network beside llama.cpp itself: same weights, same prompts, the same logits.

The real server computes in float32, with flash attention off and keys and values kept as float32;
the rest is rounding. The real server itself shows its size, by a second run token by token: with
GELU, which ggml looks up in a table of half-precision numbers, a last bit may find the neighbouring
entry, and the server is further from itself than elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from rich.table import Table

from cachesim.model.arithmetic import PlainStore
from cachesim.model.network import FloatNetwork
from cachesim.model.presets import PRESETS, preset
from cachesim.model.spec import FIRST_PLAIN
from cachesim.model.store import Ubatch
from cachesim.prove.llama_cpp.fitting import Abilities, Release
from cachesim.prove.llama_cpp.gguf import as_ggml_computes, write_model
from cachesim.prove.llama_cpp.server import RealServer, as_release, environment_for
from cachesim.prove.llama_cpp.workload import Outcome
from cachesim.prove.playing import console
from cachesim.scenario.format import Step
from cachesim.typed import there_is
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
    """The greedy continuation, and the log probabilities of each of its tokens."""
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


DRAFTING: Final[Mapping[str, Any]] = {
    **PRECISE,
    "spec_type": "draft-mtp",
    "spec_draft_n_max": 1,
    "spec_draft_p_min": 0.0,
}
"""A server that proposes one token at a time, however unsure its head is."""


def expected_drafts(network: FloatNetwork, prompt: Tokens, predict: int) -> tuple[int, int]:
    """Numbers of drafted and accepted tokens: one is proposed while there is room."""
    reply, _ = generate(network, prompt, predict + 2)
    tokens = (*prompt, *reply)
    guesses = head_guesses(network, tokens[:-1])
    right = [guess == token for guess, token in zip(guesses, tokens[1:], strict=True)]
    emitted, at, drafted, accepted = 1, len(prompt), 0, 0
    while emitted < predict:
        room = predict - emitted > 1
        hit = room and right[at]
        drafted, accepted = drafted + room, accepted + hit
        emitted, at = emitted + 1 + hit, at + 1 + hit
    return drafted, accepted


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


LENGTH: Final = 64
PREDICT: Final = 16
"""Tokens of a prompt, and of its reply."""

TOP: Final = 8
"""Most likely tokens compared at each step."""

ENOUGH: Final = 0.99
"""The share of prompts that must agree token by token: now and then two logits nearly tie."""

TOLERANCE: Final = 1e-3
"""Largest accepted difference of log probabilities: twenty times float32's measured one."""

OWN: Final = 2.0
"""Accepted multiple of the real server's own variation, where that is larger."""

TOKEN_BY_TOKEN: Final[Mapping[str, Any]] = {**PRECISE, "ubatch_size": 1}
"""The same server, adding up in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The comparison of a preset's answers over some prompts."""

    preset: str
    equal: int  # prompts whose generated tokens are all the same
    distances: tuple[float, ...]  # per prompt, the largest distance of two log probabilities
    own: float = 0.0  # the same between the real server and itself, over all prompts

    @property
    def tolerance(self) -> float:
        return max(TOLERANCE, OWN * self.own)

    @property
    def agrees(self) -> bool:
        """99 of 100 prompts with equal tokens, and no log probability too far off."""
        enough = self.equal >= ENOUGH * len(self.distances)
        return enough and max(self.distances) <= self.tolerance


def compare_logits(
    release: Release, names: Sequence[str], *, prompts: int, seed: int
) -> list[Agreement]:
    """Run the same prompts on the real server, twice, and on the network, for each preset."""
    found = []
    with RealServer(release) as real, TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder) / f"{name}.gguf"
            spec = as_ggml_computes(preset(name, seed=seed))
            write_model(spec, path)
            random = np.random.default_rng(seed)
            drawn = [drawn_prompt(random, LENGTH) for _ in range(prompts)]
            theirs, again = (
                _answers(real, flags, path, drawn) for flags in (PRECISE, TOKEN_BY_TOKEN)
            )
            network = FloatNetwork(spec)
            mine = [_computed(network, prompt) for prompt in drawn]
            found.append(agreement(name, theirs, mine, again))
    return found


def _answers(
    real: RealServer, flags: Mapping[str, Any], path: Path, prompts: Sequence[Tokens]
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with real.started(flags, path, probabilities=TOP) as server:
        for prompt in prompts:
            step = Step(name="prompt", prompt=prompt, predict=PREDICT, cache_prompt=False)
            outcomes += server.send((step,))
    return outcomes


def _computed(network: FloatNetwork, prompt: Tokens) -> Outcome:
    reply, rows = generate(network, prompt, PREDICT)
    likelihoods = ({Token(i): each for i, each in enumerate(row.tolist())} for row in rows)
    return Outcome(reply=reply, top=tuple(likelihoods))


def agreement(
    name: str, theirs: Sequence[Outcome], mine: Sequence[Outcome], again: Sequence[Outcome]
) -> Agreement:
    """Compare two servers' outcomes, beside a second run of the first one."""
    return Agreement(
        preset=name,
        equal=sum(one.reply == other.reply for one, other in zip(theirs, mine, strict=True)),
        distances=tuple(map(distance, theirs, mine)),
        own=max(map(distance, theirs, again)),
    )


def distance(one: Outcome, other: Outcome) -> float:
    """The largest distance among the likeliest tokens, as long as both generate the same."""
    largest = 0.0
    pairs = zip(one.reply, other.reply, one.top, other.top, strict=True)
    for token, others, top, row in pairs:
        apart = (abs(top[each] - row[each]) for each in top if each in row)
        largest = max(largest, *apart)
        if token != others:
            break
    return largest


PROMPTS: Final = 100
"""For each preset; as many for the MTP head."""


def real_logits(release: str, seed: int) -> int:
    """Compare the network's log probabilities with those of a real llama.cpp server."""
    wheel = as_release(release)
    environment_for(wheel).ready()
    names = Abilities(wheel).presets
    found = compare_logits(wheel, names, prompts=PROMPTS, seed=seed)
    out = console()
    table = Table(title=f"distance of log probabilities from llama.cpp {release}", title_style="")
    heads = ("equal replies", "largest", "typical", "real, itself", "allowed", "")
    table.add_column("preset", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right")
    for each in found:
        table.add_row(
            each.preset,
            f"{each.equal} of {len(each.distances)}",
            f"{max(each.distances):.1e}",
            f"{median(each.distances):.1e}",
            f"{each.own:.1e}",
            f"{each.tolerance:.0e}",
            "ok" if each.agrees else "DIFFERS",
        )
    out.print(table)
    agree = all(each.agrees for each in found)
    if any(PRESETS[name].mtp_depth for name in names):
        random = np.random.default_rng(seed)
        network = FloatNetwork(preset("hybrid-mtp", seed=seed))
        pairs = []
        with RealServer(wheel) as real, TemporaryDirectory() as folder:
            path = Path(folder) / "hybrid-mtp.gguf"
            write_model(network.spec, path)
            with real.started(DRAFTING, path) as server:
                for _ in range(PROMPTS):
                    prompt = drawn_prompt(random, 40)
                    step = Step(name="prompt", prompt=prompt, predict=48, cache_prompt=False)
                    (outcome,) = server.send((step,))
                    counted = outcome.drafted, outcome.accepted
                    pairs.append((counted, expected_drafts(network, prompt, 48)))
        same = sum(real == expected for real, expected in pairs)
        out.print(f"drafts of the MTP head: counted alike on {same} of {len(pairs)} prompts")
        agree = agree and same >= ENOUGH * len(pairs)
    return 0 if agree else 1
