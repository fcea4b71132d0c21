"""`cachesim real ik_llama.cpp`: a scenario on a binary that someone has built."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.table import Table

from cachesim.engines.ik_llama.family import FAMILY
from cachesim.errors import OptionError, ScenarioError
from cachesim.lab.real import playing
from cachesim.lab.real.ik_llama.binary import (
    LOADS,
    BinaryError,
    Server,
    arguments,
    exact_spec,
)
from cachesim.lab.real.llama_cpp.gguf import write_model
from cachesim.lab.real.llama_cpp.scenarios import divergence_of
from cachesim.lab.real.llama_cpp.workload import CRASH, Outcome, resolved, vocabulary_of
from cachesim.lab.real.vectors.servers import explained
from cachesim.model.spec import ModelSpec
from cachesim.scenario.checks import full_profile, spec_of
from cachesim.scenario.format import Scenario, Step
from cachesim.scenario.shipped import load_all
from cachesim.units import as_tokens

ROUNDING: Final = 1e-2
"""Limit of differences of log probabilities: right replies stay below 2e-3."""

PROBE: Final = as_tokens(range(300, 360))
"""Prompt with which a model is tried on a fresh server."""

ALIKE: Final = ("ctx_size", "batch_size", "ubatch_size", "parallel")
"""Options that the cold server shares with the warm one."""


@playing.comparing
def real_ik_llama_cpp(
    *, binary: Path, scenario: str, release: str = "", record: Path | None = None
) -> int:
    """Run a scenario on a server binary of ik_llama.cpp, and on the simulator.

    Each answer is compared with that of a fresh server of the same binary. A model on which a fresh
    server contradicts itself is refused: it proves nothing.

    Example: cachesim real ik_llama.cpp --binary llama-server --scenario SCENARIO.toml

    Parameters
    ----------
    binary
        A llama-server that you have built from the commit.
    scenario
        A scenario: a file, or the name of a shipped one.
    release
        The commit of the binary; by default the newest of the scenario's.
    record
        A file to which the requests and the real answers are added, for `cachesim real vectors`.

    """
    if not binary.is_file():
        raise ScenarioError(f"{binary} is no file: name a llama-server built from ik_llama.cpp")
    equal = True
    for _, one in load_all([scenario]):
        equal = _played(one, binary, release or _release_of(one), record) and equal
    return 0 if equal else 1


def _release_of(scenario: Scenario) -> str:
    profiles = [full_profile(scenario.engine.name, each) for each in scenario.engine.profiles]
    own = [each.release for each in profiles if each.engine == FAMILY.name and not each.patches]
    if not own:
        raise ScenarioError(f"{scenario.name} names no unpatched release of {FAMILY.name}")
    return max(own, key=FAMILY.names().index)


def _played(scenario: Scenario, binary: Path, release: str, record: Path | None) -> bool:
    if scenario.model.preset not in LOADS:
        raise OptionError(
            f"{FAMILY.name} loads no {scenario.model.preset!r}; it loads {', '.join(LOADS)}"
        )
    spec = exact_spec(spec_of(scenario.model))
    words = arguments(scenario.engine.options, release)
    kept = {k: v for k, v in scenario.engine.options.items() if k in ALIKE}
    with TemporaryDirectory(prefix="cachesim-ik-") as name:
        folder = Path(name)
        model = folder / "model.gguf"
        write_model(spec, model)
        refuse_contradiction(binary, model, folder, spec)
        steps, outcomes = _warm(scenario, binary, model, words, folder)
        cold_words = arguments(kept, release)
        cold = [
            _cold(each, binary, model, cold_words, folder) if outcome.top else None
            for each, outcome in zip(steps, outcomes, strict=True)
        ]
    line = line_of(scenario, release, steps, outcomes)
    if record is not None:
        with gzip.open(record, "at", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")
    difference, _ = explained(line)
    title = f"{scenario.name} on {FAMILY.name} {release}, {binary.name}"
    playing.console().print(_table(title, steps, outcomes, cold))
    if difference is not None:
        playing.console().print(f"the simulator differs in step {difference.step}:", markup=False)
        for text in difference.lines():
            playing.console().print(text, markup=False)
    return difference is None


def refuse_contradiction(binary: Path, model: Path, folder: Path, spec: ModelSpec) -> None:
    """Refuse a model for which reading a token and decoding it give different answers."""
    with Server(binary, model, [], folder, probabilities=8) as server:
        decoded = server.send(Step(name="decoded", prompt=PROBE, predict=3))
        prompt = PROBE + decoded.reply[:1]
        read = server.send(Step(name="read", prompt=prompt, predict=1, cache_prompt=False))
    if not decoded.top[1:] or not read.top:
        raise BinaryError(f"{binary} replies without probabilities: is it a llama-server?")
    apart, _ = divergence_of(
        replace(read, reply=()), replace(decoded, reply=(), top=decoded.top[1:])
    )
    if apart > ROUNDING:
        raise BinaryError(
            f"{spec.name}: a fresh server reads a token and decodes it with log probabilities "
            f"{apart:.2g} apart, so no reply of it can be compared; the server has kernels for "
            "recurrent states of 64 and 128"
        )


def _warm(
    scenario: Scenario, binary: Path, model: Path, words: list[str], folder: Path
) -> tuple[list[Step], list[Outcome]]:
    vocabulary, steps, outcomes = vocabulary_of(scenario), [], []
    with Server(binary, model, words, folder, probabilities=8) as server:
        for number in range(len(scenario.step)):
            step = resolved(scenario, number, vocabulary)
            if step.with_previous or step.messages or step.leaves:
                raise ScenarioError(f"{step.name}: a binary answers plain requests alone")
            outcome = server.send(step)
            vocabulary.replies[step.name] = outcome.reply
            steps.append(step)
            outcomes.append(outcome)
            if server.lost:
                break
    return steps, outcomes


def _cold(step: Step, binary: Path, model: Path, words: list[str], folder: Path) -> Outcome:
    with Server(binary, model, words, folder, probabilities=8) as server:
        return server.send(replace(step, slot=-1, cache_prompt=True))


def line_of(
    scenario: Scenario, release: str, steps: Sequence[Step], outcomes: Sequence[Outcome]
) -> dict[str, Any]:
    """The requests and real answers as a line of a vector file."""
    spec = exact_spec(spec_of(scenario.model))
    given: list[dict[str, Any]] = []
    expected: list[dict[str, Any]] = []
    for step, outcome in zip(steps, outcomes, strict=True):
        entry: dict[str, Any] = {"name": step.name}
        if step.do != "complete":
            given.append({**entry, "do": step.do, "slot": step.slot, "file": step.file})
            expected.append({"error": "ended"} if outcome.error == CRASH else {})
            continue
        entry |= {"prompt": list(step.ids), "predict": step.predict}
        if outcome.error is None:
            counted = len(outcome.reply) + outcome.drafted
            entry |= {"reply": list(outcome.reply), "counted": counted}
        if step.slot >= 0:
            entry["slot"] = step.slot
        if not step.cache_prompt:
            entry["cache_prompt"] = False
        if step.options:
            entry["options"] = dict(step.options)
        given.append(entry)
        if outcome.error is not None:
            expected.append({"error": outcome.error})
            continue
        shown = {
            "processed": outcome.processed,
            "generated": len(outcome.reply),
            "slot": outcome.slot,
        }
        expected.append(shown if outcome.cached is None else {"cached": outcome.cached, **shown})
    model = {"preset": scenario.model.preset, "state_size": spec.state_size, "inner": spec.inner}
    return {
        "id": scenario.name,
        "profile": f"{FAMILY.name}@{release}",
        "model": model if "delta" in spec.layers else {"preset": scenario.model.preset},
        "options": dict(scenario.engine.options),
        "steps": given,
        "expected": expected,
    }


def _table(
    title: str, steps: Sequence[Step], outcomes: Sequence[Outcome], cold: Sequence[Outcome | None]
) -> Table:
    table = Table(title=title, title_style="", box=None, padding=(0, 0, 0, 2))
    for head in ("step", "prompt", "cached", "processed", "reply", "beside a fresh server"):
        table.add_column(head, justify="left" if head == "step" else "right")
    for step, outcome, alone in zip(steps, outcomes, cold, strict=True):
        prompt = str(len(step.ids)) if step.do == "complete" else ""
        cells = (prompt, *(_count(n) for n in (outcome.cached, outcome.processed)))
        if outcome.error is not None:
            cells = (prompt, outcome.error, "-")
        table.add_row(step.name, *cells, str(len(outcome.reply) or ""), _verdict(outcome, alone))
    return table


def _verdict(outcome: Outcome, alone: Outcome | None) -> str:
    if alone is None or not alone.top:
        return ""
    apart, token = divergence_of(outcome, alone)
    return f"WRONG {apart:.2g}, token {token + 1}" if apart > ROUNDING else f"same {apart:.0g}"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)
