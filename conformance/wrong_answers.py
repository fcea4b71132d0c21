"""Wrong answers of the real server, shown on the server itself.

A conversation is played with its caches on; then its last prompt goes to a fresh server. Both say
how likely each token comes next. Rounding moves that by little; a state that has read another
prompt moves it by much.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cachesim.engines.chat import FIRST_WORD, VOCABULARY
from cachesim.prove.llama_cpp.fitting import Release
from cachesim.prove.llama_cpp.server import RealServer
from cachesim.prove.llama_cpp.workload import Outcome, workload
from cachesim.scenario.format import Scenario, Step
from cachesim.units import Token, Tokens

ROUNDING: Final = 0.02
"""Cached and uncached runs of a sound server lie closer than this: 16-bit keys and values round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Prompts in order; the answer to the last one is in question."""

    name: str
    prompts: tuple[Tokens, ...]
    predict: int = 1
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def on(self, release: Release, preset: str) -> Scenario:
        """The conversation as a workload."""
        return workload(
            name=self.name,
            release=release,
            preset=preset,
            options=self.options,
            steps=tuple(
                Step(name=f"r{index}", prompt=prompt, predict=self.predict)
                for index, prompt in enumerate(self.prompts)
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Distance of the answer after a conversation from the cold one."""

    conversation: str
    release: str
    preset: str
    cached: int
    distance: float  # the largest difference of a log probability, over the whole vocabulary
    same_text: bool

    @property
    def wrong(self) -> bool:
        """True when rounding cannot explain the distance."""
        return self.distance > ROUNDING


def run(*parts: range) -> Tokens:
    """Tokens of the toy vocabulary: equal numbers are equal tokens, up to 247 of them."""
    words = VOCABULARY - FIRST_WORD
    return tuple(Token(FIRST_WORD + number % words) for part in parts for number in part)


THREE_REQUESTS: Final = Conversation(
    name="three requests",
    prompts=(run(range(5)), run(range(100, 140)), run(range(100, 120), range(200, 220))),
)
"""A: 5 tokens. B: 40 unrelated tokens. C: 20 of B and 20 new; the checkpoint at one token stays."""

FOUR_SLOTS: Final = Conversation(
    name="three requests, four unified slots",
    prompts=THREE_REQUESTS.prompts,
    options={"parallel": 4, "kv_unified": True},
)
"""The same where each prompt gets a slot of its own."""

STALE_NEIGHBOUR: Final = Conversation(
    name="stale neighbour",
    prompts=(
        run(range(100)),
        run(range(100), range(200, 205)),
        run(range(100), *(range(120, 220) for _ in range(10))),
        run(range(100), range(120, 170), range(10, 110)),
    ),
)
"""A checkpoint one token beyond the common prefix survives, and is restored two requests later."""


def verdict_on(server: RealServer, model: Path, conversation: Conversation, preset: str) -> Verdict:
    """Play a conversation warm and its last prompt cold; compare what comes next."""
    asked = conversation.on(server.release, preset)
    warm = server.play(asked, model, probabilities=VOCABULARY)[-1]
    alone = workload(
        "cold", release=server.release, preset=preset, options={}, steps=asked.step[-1:]
    )
    cold = server.play(alone, model, probabilities=VOCABULARY)[-1]
    return Verdict(
        conversation=conversation.name,
        release=server.release,
        preset=preset,
        cached=warm.cached or 0,
        distance=distance(warm, cold),
        same_text=warm.reply == cold.reply,
    )


def distance(one: Outcome, other: Outcome) -> float:
    """The largest difference of a log probability before the first generated token."""
    ours, theirs = one.top[0], other.top[0]
    shared = ours.keys() & theirs.keys()
    return max((abs(ours[token] - theirs[token]) for token in shared), default=math.inf)
