"""`cachesim real ik_llama.cpp`: a scenario on a binary that someone has built."""

import gzip
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.table import Table

from cachesim.engines.family import Profile
from cachesim.engines.ik_llama.family import FAMILY
from cachesim.engines.ik_llama.slot import GONE
from cachesim.errors import OptionError, ScenarioError
from cachesim.model import recall
from cachesim.model.spec import ModelSpec
from cachesim.play import run
from cachesim.prove import playing
from cachesim.prove.llama_cpp.gguf import exact_spec, write_model
from cachesim.prove.llama_cpp.scenarios import divergence_of
from cachesim.prove.llama_cpp.workload import (
    CRASH,
    Outcome,
    in_one_call,
    resolved,
    vocabulary_of,
)
from cachesim.scenario.checks import full_profile, spec_of
from cachesim.scenario.format import Scenario, Step
from cachesim.scenario.shipped import load_all
from cachesim.units import as_tokens
from cachesim.verify.verdict import SHOWN
from conformance.real import agreement as agreeing
from conformance.real.ik_llama.binary import (
    BinaryError,
    Server,
    arguments,
)
from conformance.real.ik_llama.deepseek4 import write_predictor, write_target
from conformance.real.ik_llama.orders import ENDED, judged

ROUNDING: Final = 3e-2
"""Limit of differences of log probabilities: right replies stay below 2e-2."""

PROBE: Final = as_tokens(range(300, 360))
"""Prompt with which a model is tried on a fresh server."""

STARTS: Final = 60
"""How often a server is started for a request that comes before it is idle."""

CONTEXT, WINDOW = (FAMILY.option(each).default for each in ("ctx_size", "companion_window"))

ALIKE: Final = ("ctx_size", "batch_size", "ubatch_size", "parallel")
"""Options that the cold server shares with the warm one."""


@playing.comparing
def real_ik_llama_cpp(
    *,
    binary: Path,
    scenario: str,
    release: str = "",
    record: Path | None = None,
    keep: Path | None = None,
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
        A scenario: a file, a folder, or the name of a shipped one.
    release
        The commit of the binary; by default the newest of the scenario's.
    record
        A file to which the requests and the real answers are added; a checkout replays it with
        `cachesim real vectors`.
    keep
        A folder for the model's files and the server's logs, which are removed otherwise.

    """
    if not binary.is_file():
        raise ScenarioError(f"{binary} is no file: name a llama-server built from ik_llama.cpp")
    equal, found = True, load_all([scenario])
    for _, one in found:
        try:
            equal = _played(one, binary, release or _release_of(one), record, keep) and equal
        except (OptionError, ScenarioError) as error:
            if len(found) == 1:
                raise
            playing.console().print(f"{one.name}: not run: {error}", markup=False)
    return 0 if equal else 1


def _release_of(scenario: Scenario) -> str:
    profiles = [full_profile(scenario.engine.name, profile) for profile in scenario.engine.profiles]
    own = [
        profile.release
        for profile in profiles
        if profile.engine == FAMILY.name and not profile.patches
    ]
    if not own:
        raise ScenarioError(f"{scenario.name} names no unpatched release of {FAMILY.name}")
    return max(own, key=FAMILY.names().index)


def _played(
    scenario: Scenario, binary: Path, release: str, record: Path | None, keep: Path | None
) -> bool:
    steps, line = play_scenario(scenario, binary, release, keep)
    if record is not None:
        with gzip.open(record, "at", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")
    found = judged(line)
    title = f"{scenario.name} on {FAMILY.name} {release}, {binary.name}"
    playing.console().print(_table(title, steps))
    if isinstance(found, agreeing.Race):
        playing.console().print(f"as simulated in another order of arrival: {found.order}")
    if isinstance(found, playing.Difference):
        playing.console().print(f"the simulator differs in step {found.step}:", markup=False)
        for text in found.lines():
            playing.console().print(text, markup=False)
    return not isinstance(found, playing.Difference)


def play_scenario(
    scenario: Scenario, binary: Path, release: str, keep: Path | None = None
) -> tuple[tuple[playing.StepPlayed, ...], dict[str, Any]]:
    """Run a scenario on the real server; its steps, and the line of a vector file."""
    scenario = without_goodbyes(scenario, release)
    spec = exact_spec(spec_of(scenario.model))
    options = {"ctx_size": CONTEXT, **scenario.engine.options}  # the server's: the model's own
    words = arguments(options, release)
    kept = {k: v for k, v in options.items() if k in ALIKE}
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    with nullcontext(keep) if keep else TemporaryDirectory(prefix="cachesim-ik-") as name:
        folder = Path(name).resolve()
        model = folder / "model.gguf"
        if scenario.engine.options.get("companion") == "window":
            window = scenario.engine.options.get("companion_window", WINDOW)
            predictor = folder / "predictor.gguf"
            write_target(model, spec.vocabulary, window)
            write_predictor(predictor, spec.vocabulary, window)
            words += ["-md", str(predictor)]
        else:
            write_model(spec, model)
            refuse_contradiction(binary, model, folder, spec)
        texts = recall.TEXTS if spec.recall else {}
        start = partial(Server, binary, model, folder=folder, probabilities=8, texts=texts)
        groups, outcomes = _warm(scenario, partial(start, words=words))
        cold_start = partial(start, words=arguments(kept, release))
        steps = [step for group in groups for step in group]
        cold = [
            _cold(step, cold_start) if outcome.top else None
            for step, outcome in zip(steps, outcomes, strict=True)
        ]
    line = line_of(scenario, release, groups, outcomes)
    found = judged(line)
    at = found.step if isinstance(found, playing.Difference) else len(steps)
    return tuple(
        _step_played(*each, agrees=number != at)
        for number, each in enumerate(zip(steps, outcomes, cold, strict=True))
    ), line


def without_goodbyes(scenario: Scenario, release: str) -> Scenario:
    """A scenario without clients that leave after their reply: here, every client does."""
    leaving = (
        "cancel_after_ubatches" in each.options or each.do == "cancel" for each in scenario.step
    )
    if not any(leaving):
        return scenario
    for step in run(scenario, Profile(FAMILY.name, release), arithmetic="ring").steps:
        if step.error == GONE:
            raise ScenarioError(f"{step.name}: its client leaves before the reply, as a clock says")
    return replace(scenario, step=tuple(each for each in scenario.step if each.do != "cancel"))


def _step_played(
    step: Step, outcome: Outcome, cold: Outcome | None, *, agrees: bool
) -> playing.StepPlayed:
    ended, proven = outcome.error == CRASH, cold is not None and bool(cold.top)
    apart, token = divergence_of(outcome, cold) if proven and cold else (0.0, 0)
    wrong = apart > ROUNDING
    verdict = f"WRONG {apart:.2g}, token {token + 1}" if wrong else f"{SHOWN['same']} {apart:.0g}"
    counts = (_count(outcome.cached), _count(outcome.processed))
    return playing.StepPlayed(
        name=step.name,
        prompt_tokens=len(step.ids) if step.do == "complete" else 0,
        real=outcome,
        simulated=outcome,
        agrees=agrees,
        confirmed=agrees if ended else wrong if proven else None,
        cells=(
            *(counts if outcome.error is None else (outcome.error, "-")),
            str(len(outcome.reply) or ""),
            verdict if proven else "",
        ),
    )


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
    scenario: Scenario, start: Callable[..., Server]
) -> tuple[list[list[Step]], list[Outcome]]:
    """The steps, in the groups that are sent together, and their outcomes."""
    early = any(each.options.get("before_first_idle") for each in scenario.step)
    apart = replace(scenario, step=tuple(map(_alone, scenario.step)))
    for _ in range(STARTS if early else 1):
        vocabulary, groups, outcomes = vocabulary_of(scenario), list[list[Step]](), list[Outcome]()
        with start(early=early) as server:
            for numbers in in_one_call(scenario):
                group = [_plain(resolved(apart, number, vocabulary)) for number in numbers]
                with ThreadPoolExecutor(len(group)) as clients:
                    answers = list(clients.map(server.send, group))
                for step, outcome in zip(group, answers, strict=True):
                    vocabulary.replies[step.name] = outcome.reply
                groups.append(group)
                outcomes += answers
                if server.lost or early > server.came_early:
                    break
            if early == server.came_early:
                return groups, outcomes
    raise BinaryError(
        f"{scenario.name}: in {STARTS} starts the server was idle before the first request each "
        "time; on a busier machine it may not be"
    )


def _alone(step: Step) -> Step:
    """A step without what no request can ask for: the companion drafts as it likes."""
    return replace(step, drafts=None, with_previous=False)


def _plain(step: Step) -> Step:
    if step.messages or step.leaves:
        raise ScenarioError(f"{step.name}: a binary answers plain requests whose clients stay")
    return step


def _cold(step: Step, start: Callable[..., Server]) -> Outcome:
    with start() as server:
        return server.send(replace(step, slot=-1, cache_prompt=True))


def line_of(
    scenario: Scenario,
    release: str,
    groups: Sequence[Sequence[Step]],
    outcomes: Sequence[Outcome],
) -> dict[str, Any]:
    """The requests and real answers as a line of a vector file."""
    spec, rest = exact_spec(spec_of(scenario.model)), iter(outcomes)
    steps = [[(step, next(rest)) for step in group] for group in groups]
    given, expected = (
        [
            row[0] if len(row) == 1 else row
            for row in ([part(*each) for each in one] for one in steps)
        ]
        for part in (_sent, _seen)
    )
    model = {"preset": scenario.model.preset, "state_size": spec.state_size, "inner": spec.inner}
    return {
        "id": scenario.name,
        "profile": f"{FAMILY.name}@{release}",
        "model": model if "delta" in spec.layers else {"preset": scenario.model.preset},
        "options": dict(scenario.engine.options),
        "steps": given,
        "expected": expected,
    }


def _sent(step: Step, outcome: Outcome) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": step.name}
    if step.do != "complete":
        return {**entry, "do": step.do, "slot": step.slot, "file": step.file}
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
    return entry


def _seen(step: Step, outcome: Outcome) -> dict[str, Any]:
    if outcome.error is not None:
        return {"error": ENDED if outcome.error == CRASH else outcome.error}
    if step.do != "complete":
        return {}
    shown = {"processed": outcome.processed, "generated": len(outcome.reply), "slot": outcome.slot}
    return shown if outcome.cached is None else {"cached": outcome.cached, **shown}


def _table(title: str, steps: Sequence[playing.StepPlayed]) -> Table:
    table = Table(title=title, title_style="", box=None, padding=(0, 0, 0, 2))
    for head in ("request", "prompt", "cached", "prefilled", "reply", "beside a fresh server"):
        table.add_column(head, justify="left" if head == "request" else "right")
    for step in steps:
        table.add_row(step.name, str(step.prompt_tokens or ""), *step.cells)
    return table


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)
