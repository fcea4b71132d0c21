"""Scenarios on the real `Llama` of a release, with the simulator beside it.

A wrong answer is written as a program, too, that needs the package alone.
"""

import base64
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from cachesim.engines.family import Profile
from cachesim.engines.llama_cpp_python.family import FAMILY
from cachesim.engines.llama_cpp_python.llama import LlamaCppPython
from cachesim.engines.llama_cpp_python.options import Options
from cachesim.engines.llama_cpp_python.rules import Rules
from cachesim.engines.llama_cpp_python.states import DiskCache
from cachesim.engines.option import options_of
from cachesim.errors import CachesimError
from cachesim.model.arithmetic import ArithmeticName, Network
from cachesim.model.build import build
from cachesim.model.presets import PRESETS
from cachesim.model.spec import ModelSpec
from cachesim.play.session import Record, Session
from cachesim.prove.environment import Environment, package_of
from cachesim.prove.hunt.proof import ProofResult, Prover, refuted_by, result_of, step_of
from cachesim.prove.llama_cpp.gguf import as_ggml_computes, text_of, write_model
from cachesim.prove.llama_cpp_python.fitting import fits
from cachesim.prove.llama_cpp_python.worker import APART
from cachesim.prove.playing import StepPlayed
from cachesim.prove.worker_process import WorkerError, WorkerProcess
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Scenario
from cachesim.typed import Json, of_kind
from cachesim.units import Array
from cachesim.verify.oracle import Oracle

if TYPE_CHECKING:
    from cachesim.testing.search import Counterexample

WORKER: Final = "cachesim.prove.llama_cpp_python.worker"
TOLERANCES: Final = {"f32": 2e-2, "f16": 0.1}
"""Largest accepted distance of two logits, by the type of keys."""

WRONG: Final = 0.1
"""Logits this far from a fresh instance's are of a wrong answer: those found are off by 1 to 10."""

PRECISE: Final = {"type_k": "f32", "type_v": "f32"}
DRAWN: Final = tuple(name for name, spec in PRESETS.items() if not spec.mtp_depth)
"""Presets to draw from; the binding has no use for an MTP head."""


def environment_for(release: str, version: str = "") -> Environment:
    """The environment that holds a release, or another version: built here, without wheels."""
    _, package = package_of(FAMILY, release, version)
    return Environment(
        name=f"llama-cpp-python-{package.version}",
        requirements=package.requirements,
        patience=3600,
        variables=(("CMAKE_ARGS", "-DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF"),),
    )


class RealInstances:
    """A release in a process of its own, and the files of the models that it ran."""

    def __init__(self, release: str, version: str = "") -> None:
        """`version` is run where another one than the release's own is compared with it."""
        self.release = release
        self.python = environment_for(release, version).ready()
        self.results: Sequence[Json] = ()  # of the last workload

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory()
        self._process = self._started()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.__exit__(None, None, None)
        self._folder.cleanup()

    def _started(self) -> WorkerProcess:
        name = f"{FAMILY.name} {self.release}"
        return WorkerProcess(name, self.python, WORKER)

    def play(self, scenario: Scenario, *, proves: bool = False) -> tuple[StepPlayed, ...]:
        """Every step on the simulator, then on the real class."""
        session = Instance(scenario, self.release)
        records = session.counted()
        path = Path(self._folder.name) / f"{hash(session.spec):x}.gguf"
        if not path.exists():
            write_model(session.spec, path)
        order = {
            "model": str(path),
            "options": _arguments(scenario.engine.options),
            "calls": [_call(record, session, proves=proves) for record, _ in records],
        }
        try:
            self.results = self._process.play(order)
        except WorkerError:
            self._process.__exit__(None, None, None)
            self._process = self._started()
            self.results = [{"error": "the process ended"}] * len(records)
        return tuple(compared(session, records, self.results))

    def settings(self) -> list[dict[str, str]]:
        """Defaults of the package's arguments, and those of a drawn workload at its defaults."""
        return self._process.play({"options": _arguments(PRECISE)})


class Instance(Session):
    """A session whose network rounds as ggml does."""

    def __init__(self, scenario: Scenario, release: str, rules: Rules | None = None) -> None:
        self.spec = as_ggml_computes(spec_of(scenario.model))
        known = FAMILY.release(release)
        other = replace(known, rules=rules or known.rules)
        releases = tuple(other if release is known else release for release in FAMILY.releases)
        profile, family = Profile(FAMILY.name, release), replace(FAMILY, releases=releases)
        super().__init__(scenario, profile, reads_state=False, family=family)

    def _network(self, spec: ModelSpec, arithmetic: ArithmeticName) -> Network:
        return build(self.spec, arithmetic)

    def counted(self) -> list[tuple[Record, Json]]:
        """Each step's record, and the counts after it."""
        return [(self.send([step])[0], self._counts()) for step in self.scenario.step]

    def _counts(self) -> Json:
        """Tokens of the instance, also those beyond its array, and of its cache's entries."""
        engine = of_kind(LlamaCppPython, self.engine)
        sizes = not isinstance(engine.cache, DiskCache)
        entries = engine.books()["prompt_cache"]
        return {
            "n_tokens": engine.n_tokens,
            "entries": [[entry["n_tokens"], entry["bytes"] * sizes] for entry in entries],
        }


def _arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    return {option.name: given.get(option.name, option.default) for option in options_of(Options)}


def _call(record: Record, session: Session, *, proves: bool) -> Json:
    step = record.step
    if step.do != "complete":
        return {"do": step.do, "file": step.file, "options": dict(step.options)}
    request = session.request(record)
    prompt = list(map(int, request.prompt))
    if step.options.get("endpoint") == "embedding":
        return {"do": "embed", "text": text_of(prompt)}
    reply = None if request.reply is None else list(map(int, request.reply))
    most = request.predict if reply is None else len(reply)
    call = {"do": "complete", "prompt": prompt, "predict": most, "reply": reply, "cold": proves}
    if step.messages:
        messages = [asdict(message) for message in session.vocabulary.messages(step.messages)]
        call |= {"do": "chat", "messages": messages}
    return call


def calls_of(session: Instance) -> list[Json]:
    """Each call with its tokens; all are run."""
    return [_call(record, session, proves=False) for record, _ in session.counted()]


def compared(
    session: Instance, records: Sequence[tuple[Record, Json]], results: Sequence[Json]
) -> Iterator[StepPlayed]:
    """Each step of the simulator beside the result of the real class."""
    oracle = Oracle(session.network)
    tolerance = TOLERANCES[session.scenario.engine.options.get("type_k", "f16")]
    for (record, counts), result in zip(records, results, strict=False):
        real = {name: value for name, value in result.items() if name not in {"logits", "cold"}}
        reply, rows = record.reply, _rows(result.get("logits", ()))
        simulated: Json = {"cached": 0, "reply": []} | counts
        distance, wrong, verdict = 0.0, 0.0, "-"
        if record.error:
            kind = "" if record.reply is None else f"{record.error}: "
            simulated = {"error": f"{kind}{record.message}"} | counts
        elif reply is not None and reply.generated:
            simulated |= {"cached": reply.cached, "reply": list(map(int, reply.generated))}
            cold = oracle.logits(reply.prompt, reply.generated)
            verdict = "same" if np.array_equal(cold, reply.logits) else "diverged"
            distance = _distance(rows, reply.logits)
            wrong = _distance(rows, _rows(result["cold"]) if "cold" in result else cold)
        agrees = bool(real == simulated and distance <= tolerance)
        off = f"off by {wrong:.1g}" if wrong > WRONG else "same"
        answer = str(real["error"]) if "error" in real else off
        yield StepPlayed(
            name=record.name,
            prompt_tokens=len(record.prompt),
            real=real | ({} if agrees else {"logits apart": distance}),
            simulated=simulated,
            agrees=agrees,
            confirmed=wrong > WRONG or ("error" in real and agrees),
            cells=(str(real.get("cached", "-")), answer, verdict, f"{distance:.0e}"),
            proof=wrong,
        )


def _rows(encoded: Sequence[str]) -> Array:
    rows = [np.frombuffer(base64.b64decode(text), "<f4") for text in encoded]
    return np.stack(rows) if rows else np.zeros((0, 0))


def _distance(one: Array, other: Array) -> float:
    both = min(len(one), len(other))
    return float(np.abs(one[:both] - other[:both]).max()) if both else 0.0


def play_scenario(
    scenario: Scenario, release: str, *, proves: bool = True
) -> tuple[StepPlayed, ...]:
    """Run a scenario on both, each answer beside one of a fresh real instance."""
    with RealInstances(release) as real:
        return real.play(scenario, proves=proves)


def _proven_on_an_instance(found: "Counterexample", profile: Profile) -> ProofResult:
    """Run it on the real `Llama`, and hold its logits against those of a fresh instance."""
    try:
        played = play_scenario(found.scenario, profile.release)
    except CachesimError as error:
        return ProofResult(confirmed=False, seen=str(error))
    if refuted := refuted_by(played):
        return refuted
    at = step_of(found, played)
    (cached, answer, *_), ended = at.cells, "error" in at.real
    return result_of(
        found,
        played,
        wrong=bool(at.confirmed) and not ended,
        ended=ended,
        cached=at.real.get("cached"),
        seen=f"{cached} cached, {answer}",
    )


PROVER: Final = Prover(
    where="the real package",
    models=DRAWN,
    kinds=("restart",),
    fits=fits,
    prove=_proven_on_an_instance,
    ready=lambda release: environment_for(release).ready(),
)


CACHES: Final = {"ram": "LlamaRAMCache", "disk": "LlamaDiskCache"}
OWN: Final = frozenset({*APART, "type_k", "type_v"})
"""Options that the program leaves out, or has elsewhere."""

MODEL: Final = "model.gguf"
SHOWN: Final = 8
"""Tokens of the two answers: the first alone may be right by chance."""

STATEMENTS: Final = {
    "slot-save": 'states["{file}"] = llm.save_state()',
    "slot-restore": 'llm.load_state(states["{file}"])',
    "slot-erase": "llm.reset()",
    "restart": "llm.close()\nllm = opened()",
}


def program_of(scenario: Scenario, release: str, wrong: int) -> list[str]:
    """Lines of Python: the calls up to the wrong answer, and the same call of a fresh instance."""
    calls = calls_of(Instance(scenario, release))[: wrong + 1]
    return list(_lines(scenario.engine.options, calls))


def _lines(options: Mapping[str, Any], calls: list[dict[str, Any]]) -> Iterator[str]:
    cache = CACHES.get(options.get("cache", "none"), "")
    given = [f"{name}={value!r}" for name, value in options.items() if name not in OWN]
    folder = '"states", ' if cache == "LlamaDiskCache" else ""
    yield f"from llama_cpp import {', '.join(filter(None, ('Llama', cache)))}"
    yield from ("", "", "def opened(cached=True):")
    yield f"    llm = Llama({', '.join((f'{MODEL!r}', *given, 'verbose=False'))})"
    if cache:
        yield "    if cached:"
        size = options.get("capacity_bytes", 2 << 30)
        yield f"        llm.set_cache({cache}({folder}capacity_bytes={size}))"
    yield from ("    return llm", "", "", "def ask(llm, prompt, count):")
    yield "    out = llm.create_completion(prompt, max_tokens=count, temperature=0.0)"
    yield from ('    return out["choices"][0]["text"]', "", "", "llm, states = opened(), {}")
    for call in calls[:-1]:
        if call["do"] == "complete":
            yield f"ask(llm, {call['prompt']}, {call['predict']})"
        else:
            yield from STATEMENTS[call["do"]].format(**call).splitlines()
    yield f"prompt = {calls[-1]['prompt']}"
    yield f'print("in turn:       ", ask(llm, prompt, {SHOWN}))'
    yield f'print("fresh instance:", ask(opened(cached=False), prompt, {SHOWN}))'


def report_lines(scenario: Scenario, release: str, wrong: int) -> Iterator[str]:
    """The program and its output on the release; empty if its answers do not differ."""
    others = any(step.options for step in scenario.step)  # embeddings, other arguments
    if others or scenario.engine.options.get("draft_model", "none") != "none":
        return
    model = scenario.model
    program = program_of(scenario, release, wrong)
    with TemporaryDirectory() as folder:
        write_model(spec_of(model), Path(folder) / MODEL)
        command = [str(environment_for(release).ready()), "-I", "-c", "\n".join(program)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    printed = done.stdout.splitlines()
    answers = [line.partition(":")[2].strip() for line in printed]
    if done.returncode or len(answers) != 2 or answers[0] == answers[1]:
        return
    window = f" --window {model.window}" if model.window else ""
    seed = f" --seed {model.seed}" if model.seed else ""
    written = f"cachesim real gguf {model.preset} -o {MODEL}{window}{seed}"
    yield f"With the package alone, and a model of `{written}`:"
    yield from ("", *(f"    {line}".rstrip() for line in program), "")
    yield from ("It printed:", "", *(f"    {line}" for line in printed), "")
