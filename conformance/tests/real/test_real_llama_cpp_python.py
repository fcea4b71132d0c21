"""The comparison with the real llama-cpp-python, without the real thing."""

import ast
import base64
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cachesim.engines import Profile
from cachesim.engines.base import Engine, Request
from cachesim.engines.llama_cpp_python.family import FAMILY
from cachesim.engines.llama_cpp_python.llama import LlamaCppPython
from cachesim.model.presets import tiny
from cachesim.prove.environment import EnvironmentUnavailableError
from cachesim.prove.llama_cpp.gguf import write_model
from cachesim.prove.llama_cpp_python import scenarios, worker
from cachesim.prove.llama_cpp_python.scenarios import PROVER, program_of, report_lines
from cachesim.prove.playing import StepPlayed
from cachesim.scenario import load
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step
from cachesim.scenario.shipped import shipped_file
from cachesim.testing.search import Counterexample, search
from cachesim.typed import of_kind, there_is
from cachesim.units import as_tokens
from conformance.real.llama_cpp_python import compare

RELEASE = Profile.parse("llama-cpp-python@0.3.36")
BUILT = pytest.mark.skipif(
    not scenarios.environment_for("0.3.36").is_ready(), reason="minutes of a compiler: make nightly"
)


def test_no_compiler_is_said_before_anything_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHESIM_ENVIRONMENTS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(EnvironmentUnavailableError, match="no C\\+\\+ compiler here; install one"):
        scenarios.environment_for("0.3.36").ready()


def test_drawn_workloads_hold_caches_chats_embeddings_and_other_arguments() -> None:
    drawn = [compare.draw("0.3.36", "dense", 1, number) for number in range(60)]
    steps = [step for each in drawn for step in each.step]
    caches = {each.engine.options["cache"] for each in drawn}

    assert {"complete", "slot-save", "slot-restore", "slot-erase", "restart"} == {
        step.do for step in steps
    }
    assert {"none", "ram", "disk"} == caches
    assert any(step.messages for step in steps)
    assert any(step.options == {"endpoint": "embedding"} for step in steps)
    assert any(step.options for step in steps if step.do == "restart")
    assert drawn == [compare.draw("0.3.36", "dense", 1, number) for number in range(60)]


def test_tokens_beyond_the_end_of_an_instances_array_are_counted() -> None:
    """The array has `n_ctx` places; llama.cpp rounds the context up to a multiple of 256."""
    drawn = compare.draw("0.3.36", "dense", 0, 0)
    step = Step(name="r0", prompt=as_tokens(range(20, 120)), reply=as_tokens([7, 8, 9]))
    engine = replace(drawn.engine, options={"n_ctx": 100, "cache": "none"})
    session = scenarios.Instance(replace(drawn, engine=engine, step=(step,)), "0.3.36")

    ((_, counts),) = session.counted()

    assert {"n_tokens": 102, "entries": []} == counts
    assert 100 == len(of_kind(LlamaCppPython, session.engine).held_tokens)


@pytest.mark.wheel
@BUILT
def test_the_wrong_answer_is_there_on_the_real_package() -> None:
    scenario = load(shipped_file("llama-cpp-python-ram-cache-on-a-window"))
    steps = scenarios.play_scenario(scenario, "0.3.36")

    assert [True] * 4 == [step.agrees for step in steps]
    assert [False, False, False, True] == [step.confirmed for step in steps]


def played(**changes: Any) -> StepPlayed:
    step = StepPlayed(
        name="r1",
        prompt_tokens=9,
        real={"cached": 4},
        simulated={"cached": 4},
        agrees=True,
        confirmed=True,
        cells=("4", "off by 2", "diverged", "1e-03"),
    )
    return replace(step, **changes)


@cache
def lost_window() -> Counterexample:
    return there_is(search(RELEASE, "swa", examples=40).counterexample)


@pytest.mark.thorough
@pytest.mark.nightly
def test_a_search_finds_the_lost_window_in_four_requests() -> None:
    found = lost_window().scenario

    assert len(found.step) <= 4
    assert "ram" == found.engine.options["cache"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("step", "confirmed", "seen"),
    [
        (played(), True, "r1: 4 cached, off by 2"),
        (played(confirmed=False), False, "r1: 4 cached, off by 2"),
        (played(agrees=False), False, "r1: {'cached': 4}, simulated {'cached': 4}"),
    ],
)
def test_a_proof_needs_a_wrong_answer_on_the_real_package_as_simulated(
    step: StepPlayed, confirmed: bool, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = lost_window()
    monkeypatch.setattr(scenarios, "play_scenario", lambda *_: (step,) * len(found.scenario.step))

    result = PROVER.prove(found, RELEASE)

    assert PROVER.fits(found.scenario)
    assert (confirmed, seen) == (result.confirmed, result.seen)


def results_of(scenario: Scenario, release: str) -> list[dict[str, Any]]:
    """A release's own results, in the form in which the real class gives them."""
    session = scenarios.Instance(scenario, release)
    return [
        {
            "cached": record.reply.cached,
            "reply": list(map(int, record.reply.generated)),
            "logits": [base64.b64encode(r.astype("<f4")).decode() for r in record.reply.logits],
            **counts,
        }
        for record, counts in session.counted()
        if record.reply is not None
    ]


@pytest.mark.parametrize(("release", "step"), [("0.3.31", None), ("0.3.36", 1)])
def test_rules_that_differ_from_what_a_version_did_are_seen(release: str, step: int | None) -> None:
    scenario = load(shipped_file("llama-cpp-python-2306-same-prompt-again"))
    results = results_of(scenario, "0.3.31")
    rules = FAMILY.release(release).rules

    found = compare.difference_under(scenario, "0.3.36", results, rules)

    assert step == (None if found is None else found.step)


DRAFT_BEYOND_A_BATCH = Scenario(
    format=FORMAT,
    name="draft-beyond-a-batch",
    model=Model(preset="dense"),
    engine=Server(
        name=RELEASE.engine,
        profiles=(RELEASE.release,),
        options={
            "draft_model": "prompt-lookup",
            "logits_all": True,
            "n_batch": 4,
            "n_ubatch": 4,
            **scenarios.PRECISE,
        },
    ),
    step=(
        Step(name="r0", prompt=(*range(301, 309), 301, 302), reply=(303, 304, 305)),
        Step(name="r1", prompt=(301, 302), reply=(303,)),
    ),
)


class NoRows:
    """A `Llama` of which the last batch holds no logits of the sampled token."""

    n_tokens, ctx, cache = 19, None, None
    close = n_vocab = int

    def __init__(self, _: str, **__: object) -> None:
        self.input_ids = np.zeros(4)

    def create_completion(self, *_: object, **__: object) -> None:
        self.sample(idx=10)

    def sample(self, **_: object) -> int:
        raise AssertionError


def test_a_token_without_logits_ends_the_real_process_as_the_simulated_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = SimpleNamespace(llama_get_logits_ith=lambda *_: None)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", library)
    (record, counts), _ = scenarios.Instance(DRAFT_BEYOND_A_BATCH, RELEASE.release).counted()
    options = {"cache": "none", "capacity_bytes": 0, "draft_model": "none", **scenarios.PRECISE}
    call = {"do": "complete", "prompt": [], "predict": 1}
    order = {"model": "", "options": options, "calls": [call, call]}

    results = worker.Player(SimpleNamespace(Llama=NoRows), order, tmp_path).results()

    assert "llama_get_logits_ith: 9 tokens back in a batch" == record.message
    assert [{"error": record.message, **counts, "logits": []}] == results


@BUILT
def test_a_draft_beyond_a_batch_ends_the_real_process() -> None:
    (step,) = scenarios.play_scenario(DRAFT_BEYOND_A_BATCH, RELEASE.release)

    assert step.agrees
    assert step.confirmed


WRONG = ("llama-cpp-python-ram-cache-on-a-window", "llama-cpp-python-small-window-rewind")


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_a_program_of_at_most_25_lines(name: str) -> None:
    scenario = load(shipped_file(name))
    lines = program_of(scenario, "0.3.36", len(scenario.step) - 1)
    compile("\n".join(lines), name, "exec")
    calls = [ast.literal_eval(f"({line[9:]}") for line in lines if line.startswith("ask(llm, ")]

    assert len(lines) <= 25
    assert [70, 40, 70] == [len(p) for p, _ in calls] or [350] == [len(p) for p, _ in calls]


@pytest.mark.wheel
@BUILT
@pytest.mark.parametrize("name", WRONG)
def test_that_program_prints_two_answers_on_the_real_package(name: str) -> None:
    scenario = load(shipped_file(name))
    lines = list(report_lines(scenario, "0.3.36", len(scenario.step) - 1))

    assert "It printed:" in lines


@pytest.mark.wheel
@BUILT
def test_the_real_proxy_keeps_what_lies_on_disk_when_it_switches_models(tmp_path: Path) -> None:
    write_model(tiny("dense"), tmp_path / "model.gguf")
    python = str(scenarios.environment_for("0.3.36").ready())
    done = subprocess.run(
        [python, "-I", "-c", SWITCH], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    engine = Engine.create("llama-cpp-python@0.3.36", model=tiny("dense"), arithmetic="ring")
    assert isinstance(engine, LlamaCppPython)
    cached = []
    for place in ("disk", "ram", "ram", "disk", "disk"):
        if place != engine.options.cache:
            engine.reopen({"cache": place})
        ticket = engine.submit(Request(prompt=as_tokens(range(300, 340)), predict=4))
        engine.run()
        cached.append(there_is(engine.reply(ticket)).cached)

    assert str(cached) == done.stdout.strip().splitlines()[-1], done.stderr


SWITCH = """
import sys, types
from inspect import signature
settings = types.ModuleType("llama_cpp.server.settings")  # needs packages of the server
settings.ModelSettings = types.SimpleNamespace
sys.modules[settings.__name__] = settings
import llama_cpp
from llama_cpp.server.model import LlamaProxy

parameters = signature(llama_cpp.Llama.__init__).parameters.values()
defaults = {each.name: each.default for each in parameters}
of_server = dict.fromkeys(
    ("model_alias", "hf_pretrained_model_name_or_path", "hf_model_repo_id", "rpc_servers",
     "mul_mat_q", "chat_template_kwargs")
)

def alias(name, kind):
    own = dict(model="model.gguf", model_alias=name, cache=True, cache_type=kind,
               cache_size=2 << 30, verbose=False, n_threads=1, n_threads_batch=1)
    return types.SimpleNamespace(**{**defaults, **of_server, **own})

cached, evaluated = [], llama_cpp.Llama.eval
llama_cpp.Llama.eval = lambda self, tokens: (first.append(len(tokens)), evaluated(self, tokens))[1]
proxy = LlamaProxy([alias("disk", "disk"), alias("ram", "ram")])
for name in ("disk", "ram", "ram", "disk", "disk"):
    first = []
    proxy(name).create_completion(list(range(300, 340)), max_tokens=4, temperature=0.0)
    cached.append(40 - first[0])
print(cached)
"""


@pytest.mark.wheel
@BUILT
def test_a_right_answer_makes_no_program() -> None:
    scenario = load(shipped_file("llama-cpp-python-window-without-a-cache"))

    assert [] == list(report_lines(scenario, "0.3.36", len(scenario.step) - 1))
