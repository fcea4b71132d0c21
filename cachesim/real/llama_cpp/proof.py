"""Whether a real server's answers are right: each is held against the server's own cold answer.

Keys and values are kept as 32-bit floats, without flash attention, and every token of a reply is
compared. What rounding is left shows the server itself, which reads the same prompt cold twice, in
pieces of another size.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cachesim.engines.byte_tokenizer import VOCABULARY
from cachesim.engines.llamacpp.lora import as_field
from cachesim.real.llama_cpp.server import RealServer
from cachesim.real.llama_cpp.workload import Outcome
from cachesim.scenario.format import Step
from cachesim.scenario.session import AS_TEXT

EXACT: Final[Mapping[str, Any]] = {
    "flash_attn": False,
    "cache_type_k": "f32",
    "cache_type_v": "f32",
}
"""Flags of a server whose answers may be compared."""

ROUNDING: Final = 1e-3
"""Log probabilities of a sound server lie closer than this: five times what it was seen to do."""

ALIKE: Final = ("ctx_size", "batch_size", "ubatch_size", "swa_full", "lora")
"""Flags that the cold server shares with the warm one, so that both round alike."""

PROMPTING: Final = ("endpoint", AS_TEXT, "tools", "add_generation_prompt")
"""Fields of a request that its prompt depends on."""

PIECES: Final[Mapping[str, Any]] = {"ubatch_size": 5}
"""What the second cold server reads in, to show how far rounding goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How far an answer lies from the cold one, at which token, and how far rounding goes."""

    distance: float
    token: int  # the generated token before which it is so far
    noise: float  # between two cold answers

    @property
    def wrong(self) -> bool:
        """True when rounding cannot explain the distance."""
        return self.distance > max(ROUNDING, 2 * self.noise)

    def __str__(self) -> str:
        if self.wrong:
            return f"WRONG {self.distance:.2g}, token {self.token + 1}"
        return f"same {self.distance:.0g}"


def parted(one: Outcome, other: Outcome) -> tuple[float, int]:
    """The largest difference of a log probability, and before which token it is.

    Rows are compared as long as both replies have said the same.

        one    t0 t1 t2 t3        row 0, 1, 2 and 3 are compared: before t3 both had said the same
        other  t0 t1 t2 u3 u4     row 4 is not
    """
    largest, token = 0.0, 0
    for at, (ours, theirs) in enumerate(zip(one.top, other.top, strict=False)):
        shared = ours.keys() & theirs.keys()
        apart = max((abs(ours[each] - theirs[each]) for each in shared), default=math.inf)
        if not ours or not theirs:  # a server that verifies drafts gives no row for what it accepts
            apart = 0.0
        if apart > largest:
            largest, token = apart, at
        if one.reply[at : at + 1] != other.reply[at : at + 1]:
            break
    return largest, token


def proven(
    step: Step,
    answer: Outcome,
    options: Mapping[str, Any],
    real: RealServer,
    model: Path,
    *,
    strengths: Sequence[float] = (),
) -> Proof | None:
    """Hold an answer of an exact server against cold ones; None where there is nothing to hold.

    `strengths` are of the adapters that the answer belongs to, whatever was in force later.
    """
    if step.do != "complete" or answer.error or not answer.top:
        return None
    shared = {key: options[key] for key in ALIKE if key in options}
    alone = alone_of(step, strengths)
    cold, again = (
        _cold(alone, {**shared, **more}, real, model) for more in (EXACT, {**EXACT, **PIECES})
    )
    if not cold.top:
        return None
    distance, token = parted(answer, cold)
    noise, _ = parted(again, cold) if again.top else (0.0, 0)
    return Proof(distance=distance, token=token, noise=noise)


def alone_of(step: Step, strengths: Sequence[float] = ()) -> Step:
    """A step whose prompt goes to a server of its own: nothing but what makes the prompt stays."""
    fields = {key: step.options[key] for key in PROMPTING if key in step.options}
    if strengths:
        fields["lora"] = as_field(strengths)
    return replace(step, slot=-1, with_previous=False, turns=None, completions=1, options=fields)


def _cold(step: Step, options: Mapping[str, Any], real: RealServer, model: Path) -> Outcome:
    with real.started(options, model, probabilities=VOCABULARY) as server:
        return server.ask([step])[0]


def told_alike(one: Sequence[Outcome], other: Sequence[Outcome]) -> bool:
    """Whether two plays of the same steps reused the same."""
    return [(each.cached, each.error) for each in one] == [
        (each.cached, each.error) for each in other
    ]
