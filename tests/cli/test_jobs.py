"""Jobs of `run`: profiles of the right engine, other flags, processes, one page."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cachesim.cli.jobs import jobs_of, setting
from cachesim.cli.main import main
from cachesim.errors import InputError, ScenarioError
from cachesim.report.html import page_of_most
from cachesim.scenario import load
from cachesim.scenario.shipped import shipped_files
from cachesim.typed import there_is
from tests.fixtures import Capture, Patch, complaint, output

STALE = "llama.cpp-three-requests"
MLX = "mlx-lm-1495-hit-does-not-refresh"


def as_json(command: str, capsys: Capture) -> Any:
    assert main([*command.split(), "--format", "json", "--arithmetic", "ring"]) in {0, 1}
    return json.loads(capsys.readouterr().out)["runs"]


def test_of_several_scenarios_each_is_played_on_profiles_of_its_own_engine(capsys: Capture) -> None:
    jobs = jobs_of(
        [STALE, MLX, "llama.cpp-24143-load-consumes-entry-hybrid"], ["b9538", "mlx-lm@0.32.2"], None
    )

    assert [
        (STALE, "llama.cpp@b9538"),
        (MLX, "mlx-lm@0.32.2"),
        ("llama.cpp-24143-load-consumes-entry-hybrid", "llama.cpp@b9538"),
    ] == [(job.scenario.name, str(job.profile)) for job in jobs]
    jobs_of([STALE, MLX], ["b9538"], None)
    assert "1 of 2 scenarios are for other engines: left out" in capsys.readouterr().err


def test_many_runs_are_counted_by_engine_and_class(capsys: Capture) -> None:
    command = (
        f"run {STALE} llama.cpp-24143-load-consumes-entry-hybrid {MLX} --arithmetic ring --brief"
    )

    shown = [line.split() for line in output(capsys, command.split()).splitlines()]
    assert [
        ["llama.cpp", "lost-reuse", "1", "4", "4"],
        ["stale-state", "1", "3", "3", "2"],
        ["mlx-lm", "lost-reuse", "1", "2", "2"],
        [],
    ] == shown[2:6]
    assert {"confirmed", "derived", "source"} < {*shown[6]}
    assert [
        "llama.cpp 2 0 0",
        "all 2 0 0",
        "",
        "9 runs, 9 as expected; 2 runs with a wrong answer, as their scenario expects",
    ] == [" ".join(line) for line in shown[9:]]


def test_a_run_that_is_not_as_expected_is_named_below_the_counts(
    capsys: Capture, tmp_path: Path
) -> None:
    text = next(path for path in shipped_files() if path.stem == STALE).read_text()
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(re.sub(r"cached += \[0, 0, 1\]", "cached = [0, 0, 2]", text))

    said = " ".join(output(capsys, f"run {wrong} --arithmetic ring --brief".split(), 1).split())
    assert "stale-state 1 3 1 2" in said
    assert "llama.cpp-three-requests on llama.cpp@b11549: C: cached is 1, expected 2" in said


@pytest.mark.parametrize("how", ["--no-verify", "--arithmetic=counts"])
def test_answers_that_are_not_judged_are_not_counted(how: str, capsys: Capture) -> None:
    shown = output(capsys, ["run", STALE, "--brief", how])
    assert "not judged" in shown.splitlines()[2]
    assert "wrong answers and" not in shown


def test_a_scenario_whose_flags_a_release_lacks_is_left_out_and_named(
    capsys: Capture, monkeypatch: Patch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = next(path for path in shipped_files() if path.stem == STALE).read_text()
    (tmp_path / "new.toml").write_text(
        text.replace("[spans]", "[engine.options]\ncheckpoint_min_step = 1\n[spans]")
    )

    assert [STALE] == [job.source for job in jobs_of([str(tmp_path), STALE], ["b9093"], None)]
    assert "new.toml: left out: engine.options.checkpoint_min_step" in capsys.readouterr().err


def test_a_profile_that_fits_nothing_is_wrong_usage() -> None:
    with pytest.raises(ScenarioError, match=r"none of the 2 scenarios .* can be run on b9539"):
        jobs_of([STALE, MLX], ["b9539"], None)


def test_one_scenario_is_played_on_another_engine_where_that_is_asked_for() -> None:
    jobs = jobs_of([STALE], ["mlx-lm@0.32.2"], None)

    assert ["mlx-lm@0.32.2"] == [str(job.profile) for job in jobs]


def test_a_flag_is_set_for_every_profile(capsys: Capture) -> None:
    plain = as_json(f"run {STALE} -p b9538", capsys)
    without = as_json(f"run {STALE} -p b9538 --set ctx-checkpoints=0", capsys)

    assert [0, 0, 1] == [step["cached"] for step in plain[0]["steps"]]
    assert [0, 0, 0] == [step["cached"] for step in without[0]["steps"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ctx-checkpoints=0", ("ctx_checkpoints", 0)),
        ("--cache-ram=-1", ("cache_ram", -1)),
        ("kv_unified = true", ("kv_unified", True)),
        ("chat_template='chatml'", ("chat_template", "chatml")),
        ("connector=store", ("connector", "store")),
        ("lora=a.gguf,b.gguf", ("lora", "a.gguf,b.gguf")),
        ("lora=", ("lora", "")),
    ],
)
def test_flags_are_written_as_a_server_takes_them_or_as_a_file_does(
    text: str, expected: tuple[str, Any]
) -> None:
    assert expected == setting(text)


@pytest.mark.parametrize("text", ["ctx_size", "=", "x=[1", "x=a b", "x='a"])
def test_what_is_no_flag_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="cannot be read; write a flag and its value"):
        setting(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("connector=store", ""),
        ("connector=stoer", "option 'connector' is 'stoer'; write one of none, store"),
        ("block_size=many", "option 'block_size' is 'many'; write a whole number"),
    ],
)
def test_a_string_needs_no_quotes_and_a_number_must_be_one(
    text: str, words: str, capsys: Capture
) -> None:
    name = "vllm-29387-same-prompt-in-one-step"
    assert (2 if words else 1) == main(["run", name, "--set", text])  # 1: its wrong answer
    assert words in " ".join(capsys.readouterr().err.split())


def test_so_many_processes_give_the_same(capsys: Capture) -> None:
    names = f"{STALE} llama.cpp-24143-load-consumes-entry-hybrid"

    assert as_json(f"run {names} --jobs 1", capsys) == as_json(f"run {names} --jobs 2", capsys)


@pytest.mark.parametrize("where", ["no/such/folder/page.html", "/dev", "\x00"])
def test_a_page_that_cannot_be_written_is_refused_before_anything_runs(
    where: str, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("cachesim.cli.run.play", lambda *_, **__: 1 / 0)

    assert "cannot be written" in complaint(capsys, ["run", STALE, "--report", where])


def test_a_finding_is_not_lost_in_a_folder_that_cannot_be_written(
    capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")

    assert main(["check", "llama.cpp@b9538", "--emit", str(tmp_path / "file")]) == 2
    assert "--emit" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.thorough
def test_a_shipped_scenario_is_copied_under_another_name(capsys: Capture, tmp_path: Path) -> None:
    for shipped in shipped_files():
        file = tmp_path / f"{shipped.stem}-mine.toml"

        assert main(["new", "mine", "--from", shipped.stem, "-o", str(file)]) == 0

        original, copy = load(shipped), load(str(file))
        assert "mine" == copy.name
        assert original.step == copy.step
    assert main(["new", "mine", "--from", "llama.cpp-three-request"]) == 2
    assert f"did you mean '{STALE}'" in capsys.readouterr().err


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_completion_script_for_every_shell(shell: str, capsys: Capture) -> None:
    script = output(capsys, ["completion", shell])
    assert all(word in script for word in ("explain", "watch", "llama.cpp"))


def test_two_values_of_a_flag_are_compared(capsys: Capture) -> None:
    command = ["compare", STALE, "-p", "b9538", "-p", "b9538", "--arithmetic", "ring"]

    assert main(command) == 0
    command[command.index("b9538")] += ",ctx-checkpoints=0"
    out = output(capsys, command, 1)
    assert "llama.cpp@b9538,ctx_checkpoints=0, request C: 0 of" in out
    assert "but with b9538,ctx_checkpoints=0: answer matches" in out
    assert "requests differ; the first is A" in out


@pytest.mark.parametrize("step", ["C", "3"])
def test_one_step_is_explained(step: str, capsys: Capture) -> None:
    command = ["run", "--explain", STALE, "-p", "b9538", "--arithmetic", "ring", "--step", step]

    out = output(capsys, command)
    assert "3. C  a prompt of 40 tokens" in out
    assert "1. A" not in out


@pytest.mark.thorough
def test_a_page_of_too_many_runs_holds_those_of_most_interest_and_says_so(
    capsys: Capture, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    page = tmp_path / "page.html"
    names = ["llama.cpp-three-requests-dense", STALE, "llama.cpp-26191-f-keep"]
    assert main(["run", STALE, "--arithmetic", "ring", "--report", str(page)]) == 0
    alone = page.stat().st_size
    assert "of most interest" not in capsys.readouterr().err
    limit = alone * 7 // 10  # less than seven runs take without any state
    monkeypatch.setitem(page_of_most.__kwdefaults__, "limit", limit)

    assert main(["run", *names, "--arithmetic", "ring", "--report", str(page)]) == 0

    printed = capsys.readouterr()
    assert "7 runs, 7 as expected" in printed.out
    held = there_is(re.search(r"with (\d) of 7 runs: those of most interest that fit", printed.err))
    assert 1 <= int(held[1]) < 7
    assert STALE in page.read_text()
    assert page.stat().st_size <= limit
