"""A workload as a program that needs the package alone, and its output on a release."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from cachesim.lab.real.llama_cpp.gguf import write_model
from cachesim.lab.real.llama_cpp_python.compare import Instance, calls_of, environment_for
from cachesim.lab.real.llama_cpp_python.worker import APART
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Scenario

CACHES: Final = {"ram": "LlamaRAMCache", "disk": "LlamaDiskCache"}
OWN: Final = frozenset({*APART, "type_k", "type_v"})
"""Options that the program leaves out, or has elsewhere."""

MODEL: Final = "model.gguf"
SHOWN: Final = 8
"""Tokens of the two answers: the first alone may be right by chance."""

ACTIONS: Final = {
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
            yield from ACTIONS[call["do"]].format(**call).splitlines()
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
