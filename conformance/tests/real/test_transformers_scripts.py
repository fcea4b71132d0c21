"""Scripts of cache operations on Transformers' models: drawn, played and reduced without torch."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

from cachesim.errors import OptionError
from cachesim.prove.transformers import one_family, parts_worker
from cachesim.prove.transformers import process as worker_module
from cachesim.prove.transformers.program import Model, program_of
from cachesim.prove.transformers.script_worker import Play
from cachesim.prove.transformers.scripts import (
    NAMED,
    OPERATIONS,
    drawn,
    shrunk,
    smaller,
    text_of,
)
from cachesim.prove.worker_process import WorkerError
from conformance import real_engines
from conformance.real.transformers import commands, reports
from conformance.real.transformers.causes import CAUSES, SHOWN, cause_of
from conformance.real.transformers.environments import NEWEST, environment_for
from conformance.real.transformers.results import (
    LIMITS,
    Cell,
    Found,
    show,
    show_causes,
    show_changes,
)
from tests.fixtures import Capture, Patch

MODEL = {"fields": {}, "key": "past_key_values", "own": False, "positions": True}
"""A model in a worker's answer."""

SCRIPT = [["feed", 14], ["record"], ["feed", 3], ["crop", -2], ["feed", 4]]


class Stub:
    """A worker whose answers are given by family."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers

    def order(self, wanted: Mapping[str, Any]) -> Any:
        answer = self.answers[wanted["family"]]
        if answer is None:
            raise WorkerError("transformers ended")
        return answer


@pytest.mark.parametrize("operation", [*OPERATIONS, *NAMED])
def test_a_script_is_drawn_from_its_seed_and_has_steps_that_the_worker_plays(
    operation: str,
) -> None:
    script = drawn(operation, "llama", 0)
    assert script == drawn(operation, "llama", 0)
    assert all(hasattr(Play, f"do_{name}") for name, *_ in script)


def test_backends_of_quantised_caches_are_installed_where_their_operations_are_named(
    monkeypatch: Patch,
) -> None:
    asked: list[bool] = []

    def environment(_: str, *, quantises: bool) -> Any:
        asked.append(quantises)
        return SimpleNamespace(ready=Path)

    monkeypatch.setattr(commands, "environment_for", environment)
    monkeypatch.setattr(commands, "families_of", lambda *_, **__: [])
    for operation in ([], ["grouped"], ["grouped", "hqq-select"]):
        commands.real_transformers(operation=operation)

    assert [False, False, True] == asked
    assert {"optimum-quanto", "hqq"} <= {*environment_for(NEWEST, quantises=True).requirements}


def test_scripts_of_another_family_or_seed_are_others() -> None:
    assert drawn("chunks", "llama", 0) != drawn("chunks", "mamba2", 0)
    assert drawn("chunks", "llama", 0) != drawn("chunks", "llama", 1)


def test_a_script_is_reduced_to_the_steps_and_numbers_that_fail() -> None:
    def fails(script: list[list[Any]]) -> bool:
        fed = sum(given[0] for name, *given in script if name == "feed")
        return ["record"] in script and fed > 4

    assert "record, feed 1, feed 4" == text_of(shrunk(SCRIPT, fails))


def test_every_simpler_script_is_another_one() -> None:
    simpler = list(smaller(SCRIPT))
    assert SCRIPT not in simpler
    assert len(simpler) == len({text_of(each) for each in simpler})


def test_results_are_counted_and_families_without_results_are_named(capsys: Capture) -> None:
    results = [
        {"verdict": "wrong", "gap": 0.5, "place": "layer 0, DynamicLayer.keys"},
        {"verdict": "refused", "error": "RuntimeError: no", "place": "cache_utils.py:1"},
    ]
    worker: Any = Stub(
        {
            "a": {"causal": True, "results": results},
            "b": {"unbuilt": "KeyError: 'x'"},
            "c": {"causal": False},
            "d": None,
        }
    )
    found, scripts = Found("5.23.0"), {"crop": SCRIPT, "fork": SCRIPT[:1]}
    for family in "abcd":
        commands.play_family(worker, family, scripts, "eager", found)
    assert [("crop", "wrong"), ("fork", "refused")] == [
        (each.operation, each.verdict) for each in found.cells
    ]
    show(found, "title")
    printed = capsys.readouterr().out
    assert "1 families, 2 checks" in printed
    assert "a cold run depends on later tokens: c" in printed
    assert "not built: b: KeyError: 'x'" in printed
    assert "not built: d: the process ended" in printed


def test_two_families_are_played_at_once_and_results_have_the_families_order() -> None:
    both = Barrier(2, timeout=60)

    class Waiting(Stub):
        def order(self, wanted: Mapping[str, Any]) -> Any:
            if wanted["family"] in "ab":
                both.wait()  # until the other one is played, too
            return super().order(wanted)

    result = {"verdict": "right", "gap": 0.0, "place": ""}
    answers = {each: {"causal": True, "results": [result]} for each in "abce"} | {"d": None}
    workers: Any = [Waiting(answers), Waiting(answers)]
    found = Found("5.23.0")
    commands.play_families(workers, {each: {"crop": SCRIPT} for each in "abcde"}, "eager", found)
    assert [*"abce"] == [each.family for each in found.cells]
    assert {"d": "the process ended"} == found.unbuilt


def test_the_smallest_script_is_printed_with_its_place(capsys: Capture) -> None:
    wrong = {"verdict": "wrong", "gap": 0.25, "place": "layer 1, DynamicLayer.keys"}
    worker: Any = Stub({"a": {"results": [wrong], **MODEL}})
    cell = Cell(
        release="5.23.0", family="a", operation="crop", script=[["feed", 2], ["crop", -1]], **wrong
    )
    commands.show_smallest(worker, cell, "eager")
    expected = "a, crop: crop -1: off by 0.25 deviations; first difference in layer 1, Dynamic"
    assert capsys.readouterr().out.replace("\n", " ").startswith(expected)


def cell(family: str, operation: str, verdict: str, **more: str) -> Cell:
    """A result without a script."""
    release = more.pop("release", "2")
    return Cell(
        release=release, family=family, operation=operation, verdict=verdict, script=[], **more
    )


def test_wrong_results_are_listed_by_what_makes_them_right_and_crashes_by_their_error(
    capsys: Capture,
) -> None:
    cells = [
        cell("a", "fork", "wrong", cause="positions given"),
        cell("b", "crop", "wrong", cause="positions given"),
        cell("b", "fork", "wrong"),
        cell("a", "crop", "limit", cause="is_croppable is False"),
        cell("a", "pad", "crash", error="KeyError: 12"),
        cell("b", "pad", "crash", error="KeyError: 13"),
    ]
    show_causes(Found("2", cells))
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [
        "wrong positions given 2 fork, crop a, b",
        "crash KeyError: n 2 pad a, b",
        "wrong not known 1 fork b",
        "limit is_croppable is False 1 crop a",
    ] == rows[1:5]
    documented = "limit, is_croppable is False: documented by Cache.is_croppable in cache_utils.py"
    assert " ".join(rows[5:]).startswith(documented)


def test_each_limit_of_a_script_has_its_documentation_or_a_reason() -> None:
    source = worker_module.WORKER.read_text(encoding="utf-8")
    told = re.findall(r'"limit", "cause": "([^"]+)"|self\.limit = "([^"]+)"', source)

    assert {*LIMITS} == {one or other for one, other in told}


def test_results_that_change_are_listed_with_the_releases_in_which_they_do(capsys: Capture) -> None:
    verdicts = {"1": ("right", "wrong"), "2": ("wrong", "wrong"), "3": ("wrong", "wrong")}
    show_changes(
        [
            Found(
                release,
                [
                    cell("a", "crop", first, release=release),
                    cell("b", "crop", second, release=release),
                ],
            )
            for release, (first, second) in verdicts.items()
        ]
    )
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "1 right, 2 wrong 1 crop a" == rows[-1]


@pytest.mark.parametrize(
    ("printed", "has_program"),
    [
        ("off by 0.5; deviation of the cold logits: 1.5", True),
        ("off by 1e-15; deviation of the cold logits: 1.5", False),
        ("refused: a crop\noff by 0.5; deviation of the cold logits: 1.5", True),
        ("AttributeError: 'Output' object has no attribute 'cache'", False),
        ("expected [3, 4] got [3, 4] \nexpected [5, 6] got [5, 7] ", True),
        ("expected [3, 4] got [3, 4] \nexpected [5, 6] got [5, 6] ", False),
    ],
)
def test_a_report_has_a_program_that_shows_the_cause(
    tmp_path: Path, monkeypatch: Patch, printed: str, has_program: bool
) -> None:
    monkeypatch.setattr(reports, "_printed", lambda *_: printed)
    wrong = answered("wrong", cause="token by token", place="layer 0, L.keys")
    worker: Any = Stub({"a": wrong | {"results": wrong["results"][:1]}})
    script = [["feed", 2], ["crop", -1], ["feed", 1]]
    cells = [
        Cell(
            release="2",
            family=family,
            operation="crop",
            verdict="wrong",
            script=script,
            cause="token by token",
        )
        for family in "ab"
    ]
    python = Path("python")
    [path] = reports.write_reports(tmp_path, worker, python, [Found("2", cells)], "eager")
    text = path.read_text()
    assert "01-crop-a.md" == path.name
    assert text.startswith("# Wrong logits: right with token by token\n\ntransformers 2, eager")
    assert "\n\nReleases: 2 wrong.\n\n" in text
    assert "off by 2 deviations of the cold logits; the first difference is in layer 0" in text
    assert has_program == (
        "```python\nimport torch" in text and f"prints\n\n```text\n{printed}" in text
    )
    assert text.endswith("Operations: crop\n\nFamilies: a, b\n")


def test_a_report_has_the_error_of_a_program_that_printed_before() -> None:
    program = "print('refused'); raise RuntimeError('sizes')"
    assert "refused\nRuntimeError: sizes" == reports._printed(Path(sys.executable), program)


@pytest.mark.parametrize("unknown", [0, 1])
@pytest.mark.parametrize(("later", "status"), [("right", 0), ("wrong", 1)])
def test_the_newest_release_is_played_beside_the_newest_known_one(
    later: str, status: int, unknown: int, monkeypatch: Patch
) -> None:
    played = []

    def play(_worker: object, _family: str, _scripts: object, _how: str, found: Found) -> None:
        played.append(found.release)
        verdict = later if found.release == "9.0.0" else "right"
        found.cells.append(cell("a", "crop", verdict, release=found.release))

    monkeypatch.setattr(commands, "versions_of", lambda _: ("9.0.0", commands.NEWEST))
    monkeypatch.setattr(commands, "environment_for", lambda _, **__: SimpleNamespace(ready=Path))
    monkeypatch.setattr(commands, "families_of", lambda *_, **__: ["a"])
    monkeypatch.setattr(commands, "play_family", play)
    monkeypatch.setattr(commands, "judge_wheel", lambda *_: unknown)
    assert max(status, unknown) == commands.real_transformers(newest=True)
    assert [commands.NEWEST, "9.0.0"] == played


def test_the_newest_known_release_is_not_played_against_itself(
    monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setattr(commands, "versions_of", lambda _: (commands.NEWEST, "5.22.2"))
    monkeypatch.setattr(commands, "judge_wheel", lambda *_: 0)
    assert 0 == commands.real_transformers(newest=True)
    assert "is the newest release" in capsys.readouterr().out


def answered(verdict: str, **more: Any) -> dict[str, Any]:
    result = {"verdict": verdict, "gap": 2.0, "place": "", "cause": "", "error": ""} | more
    results = [result] * len(OPERATIONS)
    return {"causal": True, "results": results, **MODEL}


@pytest.mark.parametrize(
    ("mine", "plain", "failed", "skipped"),
    [
        (answered("right"), answered("right"), "", ""),
        (answered("wrong", cause="a new cache"), answered("right"), "right with: a new cache", ""),
        (answered("wrong"), answered("wrong"), "", "wrong with llama too"),
        (answered("crash", error="KeyError: 1"), answered("right"), "KeyError: 1", ""),
        (answered("limit", cause="no crop"), answered("right"), "", "limit: no crop"),
        (answered("refused", error="no"), answered("right"), "", "refused: no"),
        ({"unbuilt": "no"}, answered("right"), "mine: no tiny model: no", ""),
        ({"causal": False}, answered("right"), "depends on later tokens", ""),
    ],
)
def test_a_familys_own_wrong_answers_and_crashes_fail(
    monkeypatch: Patch, mine: dict[str, Any], plain: dict[str, Any], failed: str, skipped: str
) -> None:
    answers = {"mine": mine, "llama": plain}
    monkeypatch.setattr(one_family, "_answer", lambda _python, _module, family: answers[family])
    outcome = one_family.result_of(Path("python"), None, "mine", "tokens")
    assert (bool(failed), bool(skipped)) == (bool(outcome.failed), bool(outcome.skipped))
    assert failed in outcome.failed
    assert skipped in outcome.skipped


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"release": ["newest"]}, "--release 'newest' is no release of transformers; write one as"),
        ({"operation": ["cut"]}, "--operation cut is unknown; there are tokens, prefill"),
        ({"attention": "flash"}, "--attention flash is unknown; write eager or sdpa"),
    ],
)
def test_wrong_usage_has_a_sentence(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        commands.real_transformers(**words)


def test_older_releases_get_the_hub_that_they_need() -> None:
    assert "huggingface_hub<2" in environment_for("5.14.1").requirements
    assert "huggingface_hub<2" not in environment_for("5.15.0").requirements


def test_continuous_batching_before_5_21_gets_what_tells_the_memory_of_a_cpu() -> None:
    assert "psutil" in environment_for("5.20.2").requirements
    assert "psutil" not in environment_for("5.21.0").requirements


def test_a_night_sets_up_each_environment_of_the_newest_release() -> None:
    wanted = {f"transformers{each}-{NEWEST}" for each in ("", "-serve", "-quantised")}
    assert wanted <= {each.name for each in real_engines.beside(every=True)}
    assert not wanted & {each.name for each in real_engines.beside()}


def test_each_cause_has_an_operation_that_shows_it_and_those_alone_are_played(
    monkeypatch: Patch,
) -> None:
    played: set[tuple[str, str]] = set()

    def play(_: object, family: str, scripts: Mapping[str, Any], *__: object) -> None:
        played.update((family, operation) for operation in scripts)

    known = [family for family, _ in SHOWN]
    monkeypatch.setattr(commands, "environment_for", lambda _, **__: SimpleNamespace(ready=Path))
    monkeypatch.setattr(commands, "families_of", lambda _, __, wanted, **___: wanted or known)
    monkeypatch.setattr(commands, "play_family", play)
    assert 0 == commands.real_transformers(causes=True)
    assert played == set(SHOWN)
    assert {cause.title for cause in CAUSES} == {each.title for each in SHOWN.values()}
    played.clear()
    commands.real_transformers(causes=True, operation=["paged"])
    assert {"paged"} == {operation for _, operation in played}


@pytest.mark.parametrize(
    ("family", "cause", "place", "titled"),
    [
        ("mamba", "token by token", "", "Mamba-1 starts from a state of zeros"),
        ("another", "token by token", "", ""),
        ("recurrent_gemma", "token by token", "", "RecurrentGemma's convolution"),
        ("recurrent_gemma", "token by token, a new cache", "", "RecurrentGemma keeps its state"),
        ("bamba", "positions given", "", "Bamba counts positions from 0"),
        ("another", "positions given", "", ""),
        ("another", "a new cache", "layer 0, DynamicSlidingWindowLayer.keys", "A second `crop`"),
    ],
)
def test_a_cause_is_given_to_families_whose_source_was_read(
    family: str, cause: str, place: str, titled: str
) -> None:
    found = cause_of(cell(family, "crop-twice", "wrong", cause=cause, place=place))
    assert titled == ("" if found is None else found.title[: len(titled)])


def test_a_single_crop_does_not_have_the_cause_of_a_second_one() -> None:
    place = "layer 0, DynamicSlidingWindowLayer.keys"
    single = cell("another", "crop-recorded", "wrong", cause="a new cache", place=place)
    assert cause_of(single) is None


LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "head_dim": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "eos_token_id": None,
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_program_is_valid_and_has_at_most_25_lines(operation: str) -> None:
    program = program_of(Model("llama", LLAMA, positions=True), drawn(operation, "llama", 0))

    compile(program, operation, "exec")
    assert len(program.splitlines()) <= 25


def test_a_program_keeps_float32_where_a_router_computes_in_it() -> None:
    script = drawn("static-crop-recorded", "inkling2_text", 0)
    program = program_of(Model("inkling2_text", {}, positions=True), script)
    assert ("float32" in program, "double" in program) == (True, False)


def test_most_operations_have_a_program() -> None:
    model = Model("llama", LLAMA, positions=True)
    without = [
        operation for operation in OPERATIONS if not program_of(model, drawn(operation, "llama", 0))
    ]

    assert ["offloaded", "generate-offloaded", "generate-mtp"] == without


def test_a_report_names_the_releases_in_which_its_cause_was_measured() -> None:
    first = next(cause for cause in CAUSES if cause.shown == ("llama", "generate-cached"))

    assert (
        "llama, generate-cached on 26 releases: 4.57.6 crash, 5.3.0 wrong (each verdict from that "
        "release on)."
    ) == reports._measured(first)


def test_a_process_whose_time_was_over_as_it_built_a_model_plays_no_other_family(
    monkeypatch: Patch,
) -> None:
    """An import that was ended would be missing there."""
    started: list[str] = []

    class Process:
        def __init__(self, name: str, _: list[str], **_more: object) -> None:
            started.append(name)

        def order(self, wanted: Mapping[str, Any]) -> Any:
            return {"unbuilt": wanted["reason"]}

        def __exit__(self, *_: object) -> None:
            """Nothing to end."""

    monkeypatch.setattr(worker_module, "JsonProcess", Process)
    worker = worker_module.Worker(Path("python"))
    for reason in ("KeyError: 'x'", "Timeout: not done after 25 seconds", "KeyError: 'x'"):
        worker.order({"family": "a", "reason": reason})

    assert 2 == len(started)


def test_a_line_that_raises_is_named_without_a_machine_s_folders(tmp_path: Path) -> None:
    def place(file: str) -> str:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        code = compile("\n1 / 0", str(tmp_path / file), "exec")
        with pytest.raises(ZeroDivisionError) as caught:
            exec(code)
        return parts_worker.about(caught.value)["place"]

    assert place("worker.py") == "worker.py:2"
    assert place("lib/site-packages/transformers/cache_utils.py") == (
        "transformers/cache_utils.py:2"
    )
