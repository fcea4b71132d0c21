"""Caches of Transformers' models in the release itself: what is wrong."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import make_transformers
import pytest

from cachesim.prove.transformers.process import WORKER, Worker
from cachesim.prove.transformers.program import Model, program_of
from cachesim.prove.transformers.script_worker import WRONG as WRONG_GAP
from cachesim.prove.transformers.scripts import OPERATIONS, ROUNDED, Script, drawn
from conformance.real.transformers import reports
from conformance.real.transformers.causes import SHOWN
from conformance.real.transformers.commands import play_family
from conformance.real.transformers.environments import NEWEST, environment_for
from conformance.real.transformers.reports import write_reports
from conformance.real.transformers.results import Cell, Found

pytestmark = [
    pytest.mark.wheel,
    pytest.mark.skipif(
        not environment_for(NEWEST).is_ready(), reason="torch is not installed: make nightly"
    ),
]
NIGHTLY = pytest.mark.nightly
QUANTISING = environment_for(NEWEST, quantises=True)
ROOT = Path(__file__).parents[3]
GENERATE = {"generate-cached", "generate-shorter"}
"""`generate` feeds a prompt again whose tokens are all in the cache."""

WRONG = {
    "llama": GENERATE | {"grouped-select"},
    "gemma3_text": GENERATE,
    "mamba2": GENERATE | {"generate-turn"},
    "falcon_h1": GENERATE | {"select"},
}
OWN_MODEL = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


class OwnConfig(LlamaConfig):
    model_type = "own"


class Own(LlamaForCausalLM):
    config_class = OwnConfig

    def forward(self, input_ids=None, position_ids=None, **more):
        from_0 = torch.arange(input_ids.shape[1])[None]
        positions = from_0 if position_ids is None else position_ids
        return super().forward(input_ids, position_ids=positions, **more)


AutoConfig.register("own", OwnConfig)
AutoModelForCausalLM.register(OwnConfig, Own)
"""
"""Each call counts positions from 0."""

LOST = """
import copy, sys
sys.path.insert(0, sys.argv[1])
import script_worker, tiny_worker, torch

script_worker.load()
torch.set_grad_enabled(False), torch.set_num_threads(1)
tiny_worker.keep_double()
fields = tiny_worker.fields_of(sys.argv[2])
play = script_worker.Family.of(sys.argv[2], fields, "eager").play()
play.play([["feed", 20]])


def logits(cache):
    given = {play.key: cache}
    return play.model(script_worker.tokens(2, 1), use_cache=True, **given).logits


cold = logits(copy.deepcopy(play.cache))
for number, layer in enumerate(play.cache.layers):
    for name, _ in script_worker.contents(layer):
        cache = copy.deepcopy(play.cache)
        dict(script_worker.contents(cache.layers[number]))[name].zero_()
        print(script_worker.distance(logits(cache), cold, cold), name)
"""
"""Error of the next logits without one layer's keys, values or state."""


@pytest.fixture
def worker() -> Iterator[Worker]:
    process = Worker(environment_for(NEWEST).python)
    yield process
    process.close()


def wrong_in(worker: Worker, family: str) -> set[str]:
    found = Found(NEWEST)
    scripts = {name: drawn(name, family, 0) for name in OPERATIONS}
    play_family(worker, family, scripts, "eager", found)
    assert not found.unbuilt
    return {cell.operation for cell in found.cells if cell.verdict == "wrong"}


@NIGHTLY
@pytest.mark.parametrize("family", WRONG)
def test_the_same_operations_are_wrong_each_time(worker: Worker, family: str) -> None:
    assert WRONG[family] == wrong_in(worker, family)
    assert WRONG[family] == wrong_in(worker, family)


@NIGHTLY
def test_a_refusal_names_layer_types_in_the_same_order_in_each_process(worker: Worker) -> None:
    cells = []
    for _ in range(4):
        found = Found(NEWEST)
        play_family(worker, "zamba2", {"fp8": drawn("fp8", "zamba2", 0)}, "eager", found)
        cells += found.cells
        worker.close()
    assert cells[:1] * 4 == cells


@pytest.mark.parametrize(
    "family",
    [
        "falcon_h1",
        *(
            pytest.param(each, marks=NIGHTLY)
            for each in ("bamba", "granitemoehybrid", "nemotron_h", "zamba2", "zaya")
        ),
        pytest.param("hrm_text", marks=NIGHTLY),  # whose embeddings are multiplied by 50
    ],
)
def test_a_lost_key_or_state_is_seen_in_the_next_logits(family: str) -> None:
    folder = str(WORKER.parent)
    command = [environment_for(NEWEST).python, "-W", "ignore", "-c", LOST, folder, family]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    gaps = [float(line.split()[0]) for line in done.stdout.splitlines()]
    assert len(gaps) >= 4
    assert min(gaps) > 5 * WRONG_GAP, done.stdout


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("family", "operation", "verdict", "cause"),
    [
        ("llama", "generate-cached", "wrong", "a cache shorter than the prompt"),
        ("bamba", "tokens", "wrong", "positions given"),
        ("mamba", "chunks", "wrong", "token by token"),
        pytest.param("mamba2", "generate-turn", "wrong", "calls of the model", marks=NIGHTLY),
        pytest.param("mamba2", "crop-recorded", "limit", "is_croppable is False", marks=NIGHTLY),
        pytest.param("moshi", "tokens", "wrong", "a cache without windows", marks=NIGHTLY),
        ("falcon_h1", "select", "wrong", "reorder_cache"),
        ("lfm2", "crop-twice", "wrong", "a new cache"),
        pytest.param("gpt_neo", "generate-static", "wrong", "a dynamic cache", marks=NIGHTLY),
        pytest.param("inkling_text", "static", "wrong", "a dynamic cache", marks=NIGHTLY),
        pytest.param(
            "inkling2_text", "static-crop-recorded", "wrong", "a dynamic cache", marks=NIGHTLY
        ),
        pytest.param("gemma2", "static-crop", "limit", "is_croppable is False", marks=NIGHTLY),
        ("recurrent_gemma", "tokens", "right", ""),  # no other run of the module between the steps
        ("recurrent_gemma", "conversations", "wrong", "a new cache"),
        pytest.param("recurrent_gemma", "chunks", "wrong", "token by token", marks=NIGHTLY),
        ("recurrent_gemma", "generate-beams", "wrong", "states in modules moved"),
        ("zamba2", "tokens", "wrong", "time steps limited in each call"),
        pytest.param(
            "nemotron_h",
            "generate-cached",
            "wrong",
            "time steps limited in each call, a cache shorter than the prompt",
            marks=NIGHTLY,
        ),
        pytest.param("zamba", "chunks", "wrong", "token by token", marks=NIGHTLY),
        pytest.param("mamba", "mask-tokens", "wrong", "a mask of the new tokens", marks=NIGHTLY),
        pytest.param("lfm2", "crop-deep", "right", "", marks=NIGHTLY),
        ("bart", "pad", "limit", "the same without a cache"),
        ("llama", "pad-right-tokens", "right", ""),
        ("mamba", "pad-right-tokens", "limit", "tokens after padding on the right"),
        pytest.param("roberta", "generate", "limit", "the same without a cache", marks=NIGHTLY),
    ],
)
def test_a_wrong_result_has_its_cause(
    worker: Worker, family: str, operation: str, verdict: str, cause: str
) -> None:
    found = Found(NEWEST)
    play_family(worker, family, {operation: drawn(operation, family, 0)}, "eager", found)
    assert [(verdict, cause)] == [(cell.verdict, cell.cause) for cell in found.cells]


@NIGHTLY
@pytest.mark.skipif(not QUANTISING.is_ready(), reason="optimum-quanto and hqq are not installed")
@pytest.mark.parametrize("kind", ["quanto", "hqq"])
def test_a_cache_that_rounds_has_the_verdicts_of_one_that_does_not(kind: str) -> None:
    worker, found = Worker(QUANTISING.python), Found(NEWEST)
    names = [each for each in ROUNDED if each.startswith(kind)]
    exact = [name.replace(kind, "grouped") for name in names]
    scripts = {name: drawn(name, "llama", 0) for name in (*names, *exact)}
    play_family(worker, "llama", scripts, "eager", found)
    worker.close()
    verdicts = {cell.operation: cell.verdict for cell in found.cells}

    assert ["right", "crash", "right", "right", "wrong", "crash"] == [
        verdicts[name] for name in names
    ]
    assert [verdicts[each] for each in exact] == [verdicts[name] for name in names]


@NIGHTLY
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_request_that_waits_in_the_memory_of_the_cpu_has_the_cold_answer(
    worker: Worker, family: str
) -> None:
    found, name = Found(NEWEST), "paged-offloaded"
    play_family(worker, family, {name: drawn(name, family, 0)}, "eager", found)
    assert ["right"] == [cell.verdict for cell in found.cells]
    play_family(worker, family, {name: [["offloaded", 3]]}, "eager", found)
    assert 1 == len(found.cells)  # all requests have room, so that nothing is told


@NIGHTLY
def test_a_report_has_a_program_that_runs_in_the_release(worker: Worker, tmp_path: Path) -> None:
    found, operations = Found(NEWEST), ("tokens", "select")
    scripts = {operation: drawn(operation, "bamba", 0) for operation in operations}
    play_family(worker, "bamba", scripts, "eager", found)
    python = environment_for(NEWEST).python
    [wrong, crash] = write_reports(tmp_path, worker, python, [found], "eager")
    assert "\n```text\noff by " in wrong.read_text()
    assert "no attribute 'batch_select_indices'" in crash.read_text()


@pytest.mark.nightly
def test_a_model_of_ones_own_is_tested_by_pytest(tmp_path: Path) -> None:
    (tmp_path / "own_model.py").write_text(OWN_MODEL)
    python = environment_for(NEWEST).python
    options = ["--cachesim-transformers=own", "--cachesim-import=own_model"]
    plugin = ["-p", "no:cachesim", "-p", "_cachesim_pytest", f"--cachesim-python={python}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *options],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 31 == done.stdout.count("\nright with: positions given\n")
    assert "31 failed, 17 passed, 13 skipped" in done.stdout


@NIGHTLY
@pytest.mark.parametrize("shown", SHOWN, ids=" ".join)
def test_a_causes_program_needs_the_library_and_torch_alone(
    worker: Worker, shown: tuple[str, str]
) -> None:
    """Examples of a cause, without the worker's patches, as on the newest release's page."""
    family, operation = shown
    script = drawn(operation, family, 0)
    answer = worker.order({"family": family, "attention": "eager", "scripts": [script]})
    [result] = answer["results"]
    verdict = make_transformers.courses_of_causes()[", ".join(shown)].rpartition(" ")[2]
    assert verdict == result["verdict"]
    found = Cell(release=NEWEST, family=family, operation=operation, script=script, **result)
    program = program_of(Model.of(family, answer), script)
    printed = reports._printed(environment_for(NEWEST).python, program)
    assert (verdict != "right") == reports._shows(printed, found), printed


@NIGHTLY
@pytest.mark.parametrize(
    ("family", "operation"),
    [
        *(
            ("llama", each)
            for each in (
                "fp8",
                "fp8-reorder",
                "fork",
                "conversations",
                "mask-tokens",
                "pad-tokens",
                "pad-right",
                "pad-right-tokens",
                "generate-batch",
                "generate-chunks",
                "generate-static",
                "generate-lookup",
                "generate-assisted",
            )
        ),
        ("bart", "crossed"),
        ("bart", "crossed-reset"),
        ("bart", "crossed-crop"),
    ],
)
def test_a_program_of_a_right_answer_is_right(worker: Worker, family: str, operation: str) -> None:
    script = drawn(operation, family, 0)
    answer = worker.order({"family": family, "attention": "eager", "scripts": [script]})
    assert "right" == answer["results"][0]["verdict"]
    program = program_of(Model.of(family, answer), script)
    printed = reports._printed(environment_for(NEWEST).python, program)
    [(far, _)] = reports.OFF.findall(printed)
    assert float(far) < 1e-5, printed


@NIGHTLY
@pytest.mark.parametrize(
    ("family", "script"),
    [
        ("lfm2", [["record"], ["feed", 14], ["crop", -2], ["crop", -2], ["feed", 4]]),
        ("falcon_h1", [["rows", 3], ["feed", 9], ["select", 2, 1, 0], ["feed", 3]]),
        ("falcon_mamba", [["feed", 9], ["feed", 4]]),
        ("zamba", [["feed", 9], ["feed", 4]]),
        ("recurrent_gemma", [["feed", 9], ["fork"], ["feed", 1]]),
        ("inkling_text", [["cache", "static"], ["feed", 5], ["feed", 3]]),
        (
            "inkling2_text",
            [["cache", "static"], ["record"], ["feed", 9], ["crop", -2], ["feed", 3]],
        ),
        ("llama", [["generate", 12, "plain"], ["generate", 0, "plain"]]),
    ],
)
def test_a_printed_program_is_wrong_as_its_script_is(
    worker: Worker, family: str, script: Script
) -> None:
    order = {"family": family, "attention": "eager", "scripts": [script]}
    answer = worker.order(order)
    assert "wrong" == answer["results"][0]["verdict"]
    program = program_of(Model.of(family, answer), script)
    assert len(program.splitlines()) <= 25
    python = environment_for(NEWEST).python
    done = subprocess.run(
        [python, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    far, deviation = (float(part.rstrip(";")) for part in done.stdout.split() if part[0].isdigit())
    assert far > deviation / 1000
