"""The program as a whole: the message and status of each exit."""

import io
import json
import re
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from cachesim.cli import run as run_module
from cachesim.cli.app import COMMANDS, FORMER, functions
from cachesim.cli.main import main
from cachesim.errors import ContractError
from cachesim.play import output_schema
from cachesim.scenario import load
from cachesim.scenario.shipped import shipped_file
from tests.fixtures import Capture, Patch
from tests.scenario.json_schema import errors

ROOT = Path(__file__).parents[2]
DENSE = "llama.cpp-three-requests-dense"
STALE = "llama.cpp-three-requests"


def spoken(capsys: Capture) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, captured.err


def as_json(command: str, capsys: Capture) -> Any:
    assert main([*command.split(), "--format", "json", "--arithmetic", "ring"]) in {0, 1}
    return json.loads(spoken(capsys)[0])


def test_all_as_expected_is_0(capsys: Capture) -> None:
    assert main(["run", STALE, "--arithmetic", "ring"]) == 0
    assert "3 runs, 3 as expected; 2 runs with a wrong answer" in spoken(capsys)[0]


def test_a_wrong_answer_nobody_expected_is_1(
    capsys: Capture, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    file = tmp_path / "unexpected.toml"
    text = shipped_file(STALE).read_text()
    file.write_text(text.partition("[[expect]]")[0])

    assert main(["run", str(file), "--arithmetic", "ring", "-p", "b9538"]) == 1
    assert "the answer is wrong, and no expectation says so" in spoken(capsys)[0]


def test_every_error_of_every_file_is_said_before_anything_runs(
    capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "a.toml").write_text('format = 1\nname = "a"\nmodl = 3')
    (tmp_path / "b.toml").write_text("[[[")

    assert main(["run", DENSE, str(tmp_path)]) == 2

    out, err = spoken(capsys)
    assert out == ""
    assert "a.toml:3: modl: unknown key 'modl'; did you mean 'model'?" in err
    assert "b.toml: is not TOML" in err


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            ContractError("7 cells for 8 tokens"),
            3,
            "7 cells for 8 tokens\ncachesim: this is a bug in cachesim",
        ),
        (KeyError("nothing"), 3, "please report it"),
        (BrokenProcessPool("abrupt"), 2, "one of its processes was ended from outside"),
        (KeyboardInterrupt(), 130, "cachesim: interrupted\n"),
    ],
)
def test_each_way_out_has_its_status_and_words_without_a_traceback(
    error: BaseException, status: int, said: str, capsys: Capture, monkeypatch: Patch
) -> None:
    def ends(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(run_module, "run", ends)
    monkeypatch.delenv("CACHESIM_TRACEBACK", raising=False)

    assert status == main(["run", DENSE])

    err = spoken(capsys)[1]
    assert said in err
    assert "Traceback" not in err
    assert status != 130 or said == err


def test_json_is_one_valid_object_and_the_same_every_time(capsys: Capture) -> None:
    first = as_json(f"run {STALE}", capsys)
    second = as_json(f"run {STALE}", capsys)

    assert errors(first, output_schema()) == []
    assert json.dumps(first) == json.dumps(second)
    assert [run["profile"] for run in first["runs"]] == [
        "llama.cpp@b9538", "llama.cpp@b11549", "llama.cpp@b11549+erase-equal",
    ]  # fmt: skip


def test_json_lines_hold_a_line_per_step_and_one_per_run(capsys: Capture) -> None:
    assert main(["run", DENSE, "--format", "jsonl", "--arithmetic", "ring"]) == 0

    lines = [json.loads(line) for line in spoken(capsys)[0].splitlines()]

    assert ["step" in line for line in lines] == [True, True, True, False] * 2
    assert lines[3]["as_expected"]


def test_a_scenario_comes_through_a_pipe(capsys: Capture, monkeypatch: Patch) -> None:
    class Pipe:
        buffer = io.BytesIO(shipped_file(DENSE).read_bytes())

    monkeypatch.setattr(sys, "stdin", Pipe)

    assert as_json("run -", capsys)["runs"][0]["scenario"] == DENSE


def test_without_verification_answers_are_null(capsys: Capture) -> None:
    steps = as_json(f"run {DENSE} --no-verify", capsys)["runs"][0]["steps"]

    assert {step["answer"] for step in steps} == {None}
    assert [step["cached"] for step in steps] == [0, 0, 20]


def test_the_reasons_add_up(capsys: Capture) -> None:
    for run in as_json(
        "run llama.cpp-24143-load-consumes-entry-hybrid llama.cpp-28302-checkpoints-thinned", capsys
    )["runs"]:
        for step in run["steps"]:
            lost = sum(each["from"] - each["to"] for each in step["why"])
            assert step["explanation"]["equal"] - step["cached"] == lost


@pytest.mark.thorough
def test_many_scenarios_in_several_processes_come_in_the_order_asked_for(capsys: Capture) -> None:
    names = [f"llama.cpp-{each}" for each in (
        "three-requests-dense", "26191-f-keep", "22083-two-chats", "28139-pinned-to-empty",
        "25070-evicts-the-entry-it-needs", "context-limit", "24143-load-consumes-entry",
    )]  # fmt: skip

    runs = as_json(" ".join(["run", *names]), capsys)["runs"]

    assert list(dict.fromkeys(run["scenario"] for run in runs)) == names


def test_another_seed_gives_other_tokens_and_the_same_counts(capsys: Capture) -> None:
    one, other = (as_json(f"run {STALE} --seed {seed}", capsys)["runs"][0] for seed in (1, 2))

    assert [s["cached"] for s in one["steps"]] == [s["cached"] for s in other["steps"]]
    assert one["steps"][2]["generated"] != other["steps"][2]["generated"]


def test_watching_without_a_terminal_prints_every_event(capsys: Capture) -> None:
    assert main(["run", STALE, "--watch", "-p", "b11549", "--arithmetic", "ring"]) == 0

    out = spoken(capsys)[0]
    assert "checkpoint 1[0..0] is restored" in out
    assert "checkpoint 1[0..0] stays" in out


def test_the_new_scenario_runs(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"

    assert main(["new", "mine", "-o", str(file)]) == 0
    assert load(file).name == "mine"
    assert main(["run", str(file), "--arithmetic", "ring"]) == 0
    assert main(["new", "mine", "-o", str(file)]) == 2
    assert "the file exists; name another with --output" in spoken(capsys)[1]


def test_diff_is_1_where_profiles_part_and_0_where_they_do_not(
    capsys: Capture, monkeypatch: Patch
) -> None:
    profiles = ["b9538", "b9538+24143"]
    monkeypatch.setenv("COLUMNS", "200")

    assert (
        main(
            [
                "compare",
                "llama.cpp-24143-load-consumes-entry-hybrid",
                "-p",
                profiles[0],
                "-p",
                profiles[1],
            ]
        )
        == 1
    )

    out = spoken(capsys)[0]
    assert "2 of 4 requests differ; the first is C" in out
    assert "the first decision that differs is in request C:" in out
    loaded = "the prompt-cache entry (703 tokens) is loaded into slot 0; it"
    assert f"{loaded} leaves the prompt cache" in out
    assert f"{loaded} stays in the prompt cache" in out
    assert main(["compare", DENSE, "-p", "b9538", "-p", "b11549", "--arithmetic", "ring"]) == 0


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"real"}))
def test_every_command_has_help_that_ends_with_an_example(command: str, capsys: Capture) -> None:
    assert main([command, "--help"]) == 0
    assert "Example: cachesim" in spoken(capsys)[0]


@pytest.mark.parametrize("kind", ["scenarios", "engines", "releases", "patches", "presets"])
def test_every_list_has_a_line_for_each_thing(kind: str, capsys: Capture) -> None:
    assert main(["list", kind]) == 0
    assert spoken(capsys)[0].strip()


@pytest.mark.thorough
def test_the_program_itself_ends_quietly_when_its_reader_goes() -> None:
    command = f"{sys.executable} -m cachesim list schema | head -1"

    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=False, cwd=ROOT
    )

    assert done.stdout == "{\n"
    assert done.stderr == ""


def test_diff_ends_with_what_differs(capsys: Capture) -> None:
    words = ["llama.cpp-three-requests", "--arithmetic", "ring"]
    assert 1 == main(["compare", "-p", "b9538", "-p", "b9538+erase-equal", *words])
    table = spoken(capsys)[0].partition("what differs:")[2]
    rows = [" ".join(line.split()) for line in table.splitlines()]

    assert "C cached 1 0" in rows
    assert "C answer WRONG matches" in rows
    assert "B checkpoints 1[0..0] 36[35..35]" in rows
    assert not any(row.startswith("A ") for row in rows)


def test_diff_says_that_only_what_is_kept_differs(capsys: Capture) -> None:
    assert 1 == main(["compare", "-p", "b9538", "-p", "b11549", *["llama.cpp-three-requests"]])
    assert "only what is kept; every request is answered alike" in spoken(capsys)[0]


def test_a_story_keeps_one_scale_and_folds_what_every_request_brings(capsys: Capture) -> None:
    main(["run", "--explain", "llama.cpp-three-requests", "-p", "b11549", "--arithmetic", "ring"])
    out = spoken(capsys)[0]

    assert 1 == len(set(re.findall(r" x(\d+)$", out, re.MULTILINE)))
    assert 3 == out.count("routine: cache-search-begun, task-launched, slot-released")
    assert "the request starts in slot 0" not in out
    assert "kept by" in out
    assert "restored" in out
    assert "prompt       ^+++++++++" in out


LOG = "docs/examples/hybrid.log"


@pytest.mark.parametrize(
    ("former", "now"),
    [
        (f"explain {STALE} -p b9538 --step C", f"run {STALE} -p b9538 --explain --step C"),
        (f"tune {LOG} --format json", f"why --tune {LOG} --format json"),
        ("hunt llama.cpp", "check llama.cpp --prove"),
        ("replay made:9 -p vllm@0.33.0", "compare made:9 -p vllm@0.33.0"),
        (f"show {STALE} --raw", f"list {STALE} --raw"),
        ("schema output", "list schema output"),
        ("schema", "list schema"),
        (
            f"diff b9538 b9538+erase-equal {STALE} --set-one ctx_checkpoints=0 --arithmetic ring",
            f"compare {STALE} -p b9538,ctx_checkpoints=0 -p b9538+erase-equal",
        ),
    ],
    ids=lambda line: line.split()[0],
)
def test_a_former_command_names_the_present_one_and_works_as_before(
    former: str, now: str, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(ROOT)
    was = main(former.split()), *spoken(capsys)
    present = main(now.split()), *spoken(capsys)

    assert present[:2] == was[:2]
    notice, _, rest = was[2].partition("\n")
    name = former.split(maxsplit=1)[0]
    assert f"cachesim: `cachesim {name}` is now `cachesim {now.split(maxsplit=1)[0]}" in notice
    assert present[2] == rest


def test_a_list_of_all_commands_names_fourteen_and_no_former_one(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    listed = re.findall(r"^│ (\w+) ", spoken(capsys)[0], re.MULTILINE)

    assert [*COMMANDS] == listed
    assert 14 == len(listed)
    assert not {*FORMER, "diff", "completion"} & {*listed}


def test_the_list_of_all_commands_prints_the_first_line_of_each_help() -> None:
    for name, command in functions():
        assert (command.__doc__ or "").splitlines()[0] == COMMANDS[name][1], name


@pytest.mark.parametrize(
    "words",
    [["check", "--prove", "llama.cpp@b11549"], ["check", "llama.cpp@b11549"]],
    ids=lambda each: each[0],
)
def test_a_search_whose_findings_cannot_be_kept_does_not_begin(
    words: list[str], capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("a file")

    assert main([*words, "--emit", str(tmp_path / "taken")]) == 2
    assert f"--emit {tmp_path / 'taken'}: cannot be written to" in spoken(capsys)[1]


def test_results_of_a_sweep_that_cannot_be_kept_name_the_flag(
    capsys: Capture, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('format = 1\n[[trace]]\nmade = 3\n[[server]]\nprofile = "bound"\n')

    assert main(["sweep", str(plan), "--store", str(tmp_path / "no" / "folder")]) == 2
    assert "name another file with --store" in spoken(capsys)[1]
