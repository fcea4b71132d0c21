"""The engine that the documentation names as a template works in every command."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachesim.cli.main import main
from cachesim.engines import FAMILIES
from cachesim.engines.family import register
from tests.fake.family import FAKE
from tests.fixtures import Capture, Patch, complaint

Command = Callable[..., str]

RECORDED = Path(__file__).parents[1] / "docs" / "examples" / "recorded.jsonl"

STORY = """
format = 1
name = "story"
model = {preset = "dense"}
engine = {name = "fake", profiles = ["r1", "r2", "r2+7", "r3"]}
spans = {S = 20, a = 5, b = 5}
[[step]]
prompt = "S a"
[[step]]
prompt = "S b"
[[step]]
prompt = "S b"
"""

PLAN = """
format = 1
[[trace]]
made = 20
[[server]]
profile = "bound"
[[server]]
profile = ["fake@r1", "fake@r2", "fake@r2+7"]
model = ["dense", "hybrid"]
set = {ctx_size = [4096, 8192]}
"""


@pytest.fixture(name="command")
def _command(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> Iterator[Command]:
    """Runs a command in a folder with a scenario and a plan; what it prints on one line."""
    register(FAKE)
    (tmp_path / "story.toml").write_text(STORY)
    (tmp_path / "plan.toml").write_text(PLAN)
    monkeypatch.chdir(tmp_path)

    def run(words: str, status: int = 0) -> str:
        found = main(words.split())
        printed = capsys.readouterr()
        assert status == found, printed.out + printed.err
        assert "Traceback" not in printed.err
        return " ".join(printed.out.split())

    yield run
    del FAMILIES["fake"]


@pytest.mark.parametrize("profile", ["fake@r1", "fake@r2", "fake@r2+7", "fake@r3"])
@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_a_trace_is_replayed(command: Command, profile: str, form: str) -> None:
    assert profile in command(f"compare made:20 -p {profile} --model dense --format {form}")


def test_no_release_reuses_more_of_a_trace_than_can_be(command: Command) -> None:
    rows = json.loads(command("compare made:60 -p fake@r1 -p fake@r2 --format json --turn 3"))

    bound, one, two = (row["cached"] for row in rows)
    assert bound > one > two > 0
    assert 0 < rows[2]["lost"]["forgetful"]


def test_sampled_answers_of_a_trace_are_right_where_the_server_is(command: Command) -> None:
    assert "4 answers are the same" in command("compare made:40 -p fake@r2 --verify 4")
    assert "0 answers are the same" in command("compare made:40 -p fake@r3 --verify 4", status=1)


@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_a_grid_is_swept(command: Command, form: str) -> None:
    printed = command(f"sweep plan.toml --jobs 1 --format {form} --csv t.csv --report t.html")

    assert "fake@r2+7" in printed
    assert 14 == len(Path("t.csv").read_text().splitlines())
    assert "fake@r1" in Path("t.html").read_text()


@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_a_scenario_runs(command: Command, form: str) -> None:
    assert "fake@r3" in command(f"run story.toml --format {form} --report page.html", status=1)
    assert "fake@r2+7" in Path("page.html").read_text()
    command(f"run story.toml --profile fake@r1 --format {form}")


def test_what_is_reused_is_what_the_template_is_made_to_reuse(command: Command) -> None:
    runs = json.loads(command("run story.toml --format json", status=1))["runs"]

    assert {
        "fake@r1": ([0, 20, 24], "same"),
        "fake@r2": ([0, 10, 12], "same"),
        "fake@r2+7": ([0, 20, 24], "same"),
        "fake@r3": ([0, 20, 24], "diverged"),
    } == {
        run["profile"]: ([step["cached"] for step in run["steps"]], run["steps"][-1]["answer"])
        for run in runs
    }


def test_a_scenario_is_explained_and_compared(command: Command) -> None:
    assert "tokens held is forgotten" in command("run --explain story.toml --profile fake@r2")
    assert "fake@r3" in command("compare story.toml", status=1)
    assert "2 cached 20 10" in command("compare story.toml -p fake@r1 -p fake@r2", status=1)
    assert "no difference in any step" in command("compare story.toml -p fake@r1 -p fake@r2+7")


def test_the_first_bad_release_is_found(command: Command) -> None:
    assert "first bad release: r3, after r2" in command("bisect story.toml", status=1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_random_workloads_are_searched(command: Command, jobs: int) -> None:
    few = f"--examples 6 --seed 1 --jobs {jobs}"

    assert "fake@r1" in command(f"check fake@r1 --examples 2 --jobs {jobs}")
    assert "WRONG ANSWER" in command(f"check fake@r3 {few} --emit found", status=1)
    (scenario, *_) = sorted(Path("found").glob("*.toml"))
    assert "fake@r3" in command(f"run {scenario} --profile fake@r3 --format json", status=1)
    assert "fake@r2 reuses" in command(f"check fake@r1 --against fake@r2 {few}")


@pytest.mark.thorough
def test_a_hunt_writes_a_report_that_runs(command: Command) -> None:
    assert "wrong answer" in command("check --prove fake@r3 --minutes 0.1 --emit reports", status=1)

    report = min(Path("reports").glob("*.md")).read_text()
    (printed,) = re.findall(r"cachesim (run .*)", report)
    words = printed.replace("run ", "run reports/")
    assert "diverged" in command(f"{words} --format json", status=1)


def test_what_reads_other_servers_only_refuses_it_in_words(
    command: Command, capsys: Capture
) -> None:
    assert 2 == main(["why", "--tune", "story.toml"])
    assert "tune sweeps the settings of llama.cpp, not fake" in capsys.readouterr().err
    refused = complaint(capsys, ["why", "story.toml", "--profile", "fake@r1"])
    assert "story.toml: no log of a known server" in refused
    assert "explained by `cachesim run story.toml`" in refused
    assert 2 == main(["real", "fake"])
    command(f"why {RECORDED} --profile fake@r1")


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("list fake", "fake"),
        ("list fake@r3", "skips"),
        ("list schema", "scenario"),
        ("list schema output", "runs"),
    ],
)
def test_it_is_listed_shown_and_completed(command: Command, words: str, printed: str) -> None:
    assert printed in command(words)
