"""A plan is a grid of cells; what comes of it depends on nothing but the cells."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pytest

import cachesim
from cachesim.cli import UNTESTED
from cachesim.cli.main import main
from cachesim.errors import InputError
from cachesim.processes import pool_of
from cachesim.report.charts import line_chart, stacked_bars
from cachesim.report.html_document import page as html_page
from cachesim.report.sweep import as_csv, sweep_report
from cachesim.traces import sweep as sweeping
from cachesim.traces.plan import plan_of
from cachesim.traces.replay import Cell, play, row_of, scaled
from cachesim.traces.source import Source, made_requests
from cachesim.traces.sweep import (
    EVERYTHING,
    PACKAGES,
    attempt,
    code_digest,
    flat,
    key_of,
    open_store,
    play_cells,
)
from tests.fixtures import Capture, Patch, complaint, output

SMALL: Final[dict[str, Any]] = {
    "format": 1,
    "trace": [{"made": 12, "scale": 64}],
    "server": [
        {"profile": "bound"},
        {
            "profile": ["vllm@0.30.0", "vllm@0.33.0"],
            "model": ["dense", "hybrid"],
            "set": {"num_gpu_blocks_override": [60, 4000]},
        },
    ],
}


class Here(Executor):
    """Plays in this process, and counts."""

    def __init__(self, until: int | None = None) -> None:
        self.until = until
        self.played: list[Cell] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        if len(self.played) == self.until:
            raise KeyboardInterrupt
        self.played.append(args[0])
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def alone(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    return [play(cell) for cell in cells]


def one_by_one(until: int | None = None) -> tuple[Here, Callable[[], Any]]:
    """An executor that plays each cell when it is asked for the outcome before."""
    here = Here(until)

    @contextmanager
    def hands() -> Iterator[Executor]:
        yield here

    return here, hands


def test_every_list_in_a_plan_is_an_axis() -> None:
    cells = plan_of(SMALL)

    assert [
        ("bound", "hybrid", ""),
        ("vllm@0.30.0", "dense", "num_gpu_blocks_override=60"),
        ("vllm@0.30.0", "dense", "num_gpu_blocks_override=4000"),
        ("vllm@0.30.0", "hybrid", "num_gpu_blocks_override=60"),
        ("vllm@0.30.0", "hybrid", "num_gpu_blocks_override=4000"),
        ("vllm@0.33.0", "dense", "num_gpu_blocks_override=60"),
        ("vllm@0.33.0", "dense", "num_gpu_blocks_override=4000"),
        ("vllm@0.33.0", "hybrid", "num_gpu_blocks_override=60"),
        ("vllm@0.33.0", "hybrid", "num_gpu_blocks_override=4000"),
    ] == [(cell.profile, cell.model, cell.settings) for cell in cells]


@pytest.mark.parametrize(
    ("made", "names"),
    [(12, ["made:12:0"]), ([3, 4], ["made:3:0", "made:4:0"]), ("agents:9", ["made:agents:9:0"])],
)
def test_a_plan_makes_up_requests_of_chats_or_of_agents(made: Any, names: list[str]) -> None:
    cells = plan_of({**SMALL, "trace": [{"made": made}], "server": [{"profile": "bound"}]})

    assert names == [cell.source.name for cell in cells]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": 2}, "format is 2; write format = 1"),
        ({"trace": []}, r"no \[\[trace\]\]"),
        ({"trace": [{"made": 3, "file": "x"}]}, "one of the two"),
        ({"trace": [{"file": 3}]}, "trace 1: file is 3; write a path in quotes"),
        ({"trace": [{"made": "many"}]}, "trace 1: made is 'many'; write a whole number"),
        ({"trace": [{"made": "agents:-1"}]}, "made is 'agents:-1'; write a whole number"),
        ({"trace": [{"made": 3, "scale": 3}]}, "divide the trace's blocks of 512"),
        ({"trace": [{"made": 3, "scale": 0}]}, "--scale is 0"),
        ({"trace": [{"made": 3, "speed": 3}]}, "trace 1: there is no key 'speed'"),
        ({"server": [{"model": "dense"}]}, "server 1: profile is None; write a name in quotes"),
        ({"server": [{"profile": "vllm@9"}]}, "vllm@9, hybrid, no flags: "),
        ({"server": [{"profile": "vllm@0.33.0", "model": "x"}]}, "x, no flags: "),
        ({"server": [{"profile": "vllm@0.33.0", "set": {"nonsense": 1}}]}, "nonsense=1: "),
        ({"server": [{"profile": "bound", "set": {"parallel": 1}}]}, '"bound" is no server'),
        ({"sever": []}, "there is no key 'sever'"),
        ({"server": [{"profile": "vllm@0.33.0", "set": {"block_size": [[16], 32]}}]},
         r"server 1: block_size is \[\[16\], 32\]; write one value, or a list of values"),
        ({"server": [{"profile": "llama.cpp@b11549", "set": {"batch_size": 1}}]},
         "with a hybrid model does not start: llama_context::decode: the real process aborts"),
        ({"trace": [{"made": []}]}, "trace 1: made is an empty list; write one value"),
        ({"trace": [{"made": 3, "scale": []}]}, "trace 1: scale is an empty list"),
        ({"server": [{"profile": []}]}, "server 1: profile is an empty list; write one value"),
        ({"server": [{"profile": "bound", "model": []}]}, "server 1: model is an empty list"),
        ({"server": [{"profile": "vllm@0.33.0", "set": {"block_size": []}}]},
         "server 1: block_size is an empty list"),
        ({"trace": [{key: list(range(1, 5000)) for key in ("made", "first", "turn")}]}, "cells"),
        ({"server": [{"profile": "x", "set": {key: list(range(5000)) for key in "abc"}}]},
         "more than 100,000 cells"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_plan_is_said_before_anything_is_played(
    change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        [cell.source.open() for cell in plan_of({**SMALL, **change})]


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    cells = plan_of(SMALL)

    with open_store(tmp_path / "store") as store:
        assert alone(cells) == play_cells(cells, store, lambda: pool_of(2))


def test_an_interrupted_sweep_goes_on_and_plays_nothing_twice(tmp_path: Path) -> None:
    cells = plan_of(SMALL)
    first, hands = one_by_one()
    with open_store(tmp_path / "store") as store:
        play_cells(cells[:4], store, hands)

    second, hands = one_by_one()
    with open_store(tmp_path / "store") as store:
        found = play_cells(cells, store, hands)

    assert (cells[:4], cells[4:]) == (tuple(first.played), tuple(second.played))
    assert alone(cells) == found


def killed_once(cell: Cell) -> Any:
    """The first process that plays a cell ends as if somebody had killed it."""
    mark = Path(os.environ["CACHESIM_TEST_MARK"])
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt(cell)


def always_killed(_: Cell) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_takes_nothing_with_it(tmp_path: Path, monkeypatch: Patch) -> None:
    cells = plan_of(SMALL)
    monkeypatch.setenv("CACHESIM_TEST_MARK", str(tmp_path / "mark"))
    monkeypatch.setattr(sweeping, "attempt", killed_once)

    with open_store(None) as store:
        found = play_cells(cells, store, lambda: pool_of(2))

    assert (tmp_path / "mark").exists()
    assert alone(cells) == found


def test_a_cell_that_always_ends_its_process_ends_the_sweep(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sweeping, "attempt", always_killed)

    with open_store(None) as store, pytest.raises(InputError, match="ended 3 times"):
        play_cells(plan_of(SMALL)[1:2], store, lambda: pool_of(1))


def test_the_key_of_a_cell_is_what_decides_its_outcome(tmp_path: Path) -> None:
    here, there = (tmp_path / name for name in ("a.jsonl", "b.jsonl"))
    for path in (here, there):
        path.write_text('{"input_length": 5, "output_length": 1, "hash_ids": [1]}\n')
    one, same = (Cell(source=Source(name=str(p)), profile="bound") for p in (here, there))
    other = Cell(source=Source(name=str(here), scale=16), profile="bound")

    keys = [key_of(cell, cell.source.digest()) for cell in (one, same, other)]

    assert keys[0] == keys[1]
    assert keys[0] != keys[2]


def test_the_digest_of_the_code_covers_every_package_that_a_replay_loads() -> None:
    shown = "import sys, cachesim.traces.playing; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", shown], capture_output=True, text=True, check=True
    ).stdout.split()
    program = Path(cachesim.__file__).parent

    packages = {
        name.split(".")[1]
        for name in loaded
        if name.startswith("cachesim.") and (program / name.split(".")[1]).is_dir()
    }

    assert packages <= set(PACKAGES)
    assert packages >= {"engines", "model", "traces"}


def test_a_change_of_the_code_changes_its_digest(tmp_path: Path) -> None:
    def digest_of(text: str) -> str:
        (tmp_path / "rule.py").write_text(text)
        return code_digest.__wrapped__(EVERYTHING, tmp_path)

    assert digest_of("KEPT = 1\n") == digest_of("KEPT = 1\n")
    assert digest_of("KEPT = 1\n") != digest_of("KEPT = 2\n")


def test_a_digest_of_no_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no source"):
        code_digest(EVERYTHING, tmp_path)


def test_a_file_that_is_no_store_is_wrong_usage(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_text("something else, and long enough to be read as one" * 20)

    with pytest.raises(InputError, match="name another file with --store"), open_store(path):
        pass


def test_the_bound_is_the_longest_prefix_that_any_earlier_prompt_has() -> None:
    source = Source(name="made:60:3", scale=64)
    unit, requests = source.open()
    before: list[Any] = []
    equal = tokens = 0
    for _, prompt, _ in scaled(requests, unit, 64):
        known = max((prompt.common(other) for other in before), default=0)
        equal += min(known, len(prompt) - 1)
        tokens += len(prompt)
        before.append(prompt)

    found = play(Cell(source=source, profile="bound"))

    assert (equal, tokens) == (found["cached"], found["prompt_tokens"])
    assert equal > tokens // 5


PLAYED: Final = (
    "llama.cpp@b9093", "llama.cpp@b11549", "ik_llama.cpp@8337e4cd3", "mlx-lm@0.31.1",
    "mlx-lm@0.32.2", "vllm@0.33.0", "sglang@0.5.9", "sglang@0.5.23", "marconi@paper",
)  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", ["dense", "hybrid", "swa"])
@pytest.mark.parametrize("profile", PLAYED)
def test_what_is_reused_and_what_is_lost_is_all_that_was_known(profile: str, model: str) -> None:
    source = Source(name="made:60:4", scale=32)

    bound = play(Cell(source=source, profile="bound"))
    found = play(Cell(source=source, profile=profile, model=model))

    assert (60, 0) == (found["requests"], found["refused"])
    assert found["prompt_tokens"] == bound["prompt_tokens"]
    assert all(count > 0 for count in found["lost"].values())
    assert bound["cached"] + sum(bound["lost"].values()) == (
        found["cached"] + sum(found["lost"].values())
    )


def test_a_checkpoint_that_wins_tokens_back_makes_no_loss_negative() -> None:
    source = Source(name="made:60:4", scale=1)

    bound = play(Cell(source=source, profile="bound"))
    found = play(Cell(source=source, profile="llama.cpp@b11549", model="hybrid"))

    assert found["cached"] > 0
    assert all(count > 0 for count in found["lost"].values())
    assert bound["cached"] == found["cached"] + sum(found["lost"].values())


@pytest.mark.parametrize("profile", PLAYED)
def test_every_server_reuses_something_of_growing_chats(profile: str) -> None:
    found = play(Cell(source=Source(name="made:40:1", scale=32), profile=profile, model="dense"))

    assert 0 < found["cached"]


def test_a_made_trace_is_the_same_for_the_same_seed_and_remembers_few_chats() -> None:
    one, same, other = (list(made_requests(3000, seed)) for seed in (1, 1, 2))

    assert one == same
    assert one != other
    assert max(len(each.blocks) for each in one) < 260
    shared = sum(each.blocks[0] < 16 for each in one)
    assert 3000 == shared  # every chat begins with a system prompt


def test_replies_may_all_have_one_length() -> None:
    source = Source(name="made:9", scale=16, replies=1)
    unit, requests = source.open()

    assert {1} == {len(reply) for _, _, reply in scaled(requests, unit, 16, source.replies)}


class Nesting(HTMLParser):
    """Check of closed tags, and the places of marks and bars."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.marks: list[str] = []
        self.places: list[tuple[float, int]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.note(tag, dict(attrs))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.note(tag, dict(attrs))

    def note(self, tag: str, found: dict[str, str | None]) -> None:
        if tag in {"circle", "rect"}:
            self.marks.append(tag)
            x, y = found.get("cx", found.get("x")), found.get("cy", found.get("y"))
            self.places += [(float(x or 0), 720), (float(y or 0), 320)]

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop()


def rows() -> list[dict[str, Any]]:
    cells = plan_of(SMALL)
    return [row_of(cell, outcome) for cell, outcome in zip(cells, alone(cells), strict=True)]


def test_the_table_for_a_notebook_has_a_column_for_each_flag_and_cause() -> None:
    found = rows()

    table = list(csv.DictReader(io.StringIO(as_csv([flat(each) for each in found]))))

    assert len(found) == len(table)
    assert [str(each["cached"]) for each in found] == [each["cached"] for each in table]
    assert ["", "60", "4000"] == [each["set.num_gpu_blocks_override"] for each in table[:3]]
    assert all(
        {cause: str(count) for cause, count in each["lost"].items()}
        == {n[5:]: v for n, v in line.items() if n.startswith("lost.") and v}
        for each, line in zip(found, table, strict=True)
    )


def test_from_python_a_sweep_is_a_list_of_flat_rows() -> None:
    assert [flat(row) for row in rows()] == cachesim.sweep(SMALL)


LONG: Final = {"input_length": 32_000, "output_length": 3, "hash_ids": [*range(63)]}

REFUSING: Final = """
format = 1
[[trace]]
file = "long.jsonl"
[[server]]
profile = "bound"
[[server]]
profile = "llama.cpp@b11549"
model = "dense"
set = {ctx_size = 256}
"""


def test_servers_that_refuse_everything_have_tested_nothing(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("long.jsonl").write_text(json.dumps({"timestamp": 0, **LONG}) + "\n")
    Path("plan.toml").write_text(REFUSING)
    compared = ["compare", "long.jsonl", "-p", "llama.cpp@b11549", "--model", "dense"]

    assert UNTESTED == main([*compared, "--set", "ctx_size=256"])
    assert "every server refused every request; llama.cpp@b11549" in capsys.readouterr().err
    assert UNTESTED == main(["sweep", "plan.toml", "--jobs", "1"])
    assert 0 == main(compared)


def test_the_page_draws_a_line_for_each_server_and_the_bound() -> None:
    page = html_page("plan.toml", *sweep_report(rows(), "plan.toml"))

    assert 2 == page.count("<polyline")  # of five servers, four reuse alike
    assert 5 == 2 + page.partition("Knees")[0].count(" = ")
    assert "share of the prompts that is reused, over num_gpu_blocks_override" in page
    assert "<script" not in page
    for drawing in ('class="chart"', 'class="legend"'):
        assert drawing in page


def test_a_chart_is_well_formed_and_keeps_to_its_frame() -> None:
    curves = {"a <b>": [(1, 0.1), (1000, 0.5)], "c": [(10, 0.2)]}
    drawn = line_chart(curves, x="x & y", title="t", rings={"c": [10]})
    bars = stacked_bars({"one <1>": {"p": 3.0, "q": 1.0}, "two": {"q": 8.0}}, title="t")

    for text, marks in ((drawn, 2 + 1 + 1 + 1 + 1), (bars, 3 + 2 + 2)):
        seen = Nesting()
        seen.feed(text)
        assert [] == seen.open
        assert marks == len(seen.marks)
        assert all(0 <= at <= end for at, end in seen.places)


def test_curves_that_coincide_are_one_curve_with_both_names() -> None:
    points = [(1, 0.1), (10, 0.5)]
    drawn = line_chart(
        {"a": points, "b": points[::-1], "c": [(1, 0.2), (10, 0.2)]},
        x="x", title="t", rings={"b": [10]},
    )  # fmt: skip

    assert 2 == drawn.count("<polyline")
    assert 1 == drawn.count('class="knee"')
    assert ["a = b", "c"] == re.findall(r"</svg>([^<]+)</li>", drawn)


def test_a_long_label_of_a_bar_is_printed_whole_in_lines_of_its_own() -> None:
    name = "vllm@0.33.0, hybrid, " + ", ".join(f"flag_{at}=100" for at in range(12))
    drawn = stacked_bars({name: {"p": 3.0}, "two": {"p": 8.0}}, title="t")
    label = re.findall(r'<text x="0" y="(\d+)">([^<]+)</text>', drawn)

    assert name in " ".join(words for _, words in label[:-1][::-1])
    assert max(len(words) for _, words in label) <= 64
    heights = [int(at) for at, _ in label]
    assert len(heights) == len(set(heights))


def test_the_command_keeps_what_it_found_beside_the_plan(tmp_path: Path, capsys: Capture) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'format = 1\n[[trace]]\nmade = 6\n[[server]]\nprofile = "vllm@0.33.0"\nmodel = "dense"\n'
    )
    files = ["--csv", str(tmp_path / "a.csv"), "--report", str(tmp_path / "a.html")]

    assert "made:6:0: 6 requests\n" in output(capsys, ["sweep", str(plan), *files])
    assert ["a.csv", "a.html", "plan.results", "plan.toml"] == sorted(
        path.name for path in tmp_path.iterdir()
    )


def test_nothing_is_played_for_a_plan_that_cannot_be_read(tmp_path: Path, capsys: Capture) -> None:
    assert "none.toml: cannot be read" in complaint(capsys, ["sweep", str(tmp_path / "none.toml")])
    assert [] == list(tmp_path.iterdir())
