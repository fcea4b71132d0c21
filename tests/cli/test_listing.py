"""`cachesim list` and `show`: a line for each item, and complete files."""

import csv
import json
import random
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import pytest

from cachesim.cli.main import main
from cachesim.cli.symptoms import DATA, ranked
from cachesim.engines import FAMILIES
from cachesim.engines.facts import causes_of
from cachesim.errors import InputError
from cachesim.scenario import load
from cachesim.scenario.shipped import shipped_files, shipped_folder
from cachesim.typed import there_is
from cachesim.why.explain.rewrites import REWRITES
from tests.fixtures import Capture, Patch, output

KINDS = ("scenarios", "engines", "releases", "patches", "causes", "presets")
STALE = "llama.cpp-three-requests"


@pytest.mark.parametrize("columns", ["0", "1", "40", "80"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_list_in_a_pipe_has_one_whole_line_for_each_thing(
    kind: str, columns: str, capsys: Capture, monkeypatch: Patch
) -> None:
    entries = json.loads(output(capsys, ["list", kind, "--format", "json"]))
    monkeypatch.setenv("COLUMNS", columns)

    lines = output(capsys, ["list", kind]).splitlines()
    assert len(entries) == len(lines) > 2
    for entry, line in zip(entries, lines, strict=True):
        assert line.startswith(entry["name"])
        assert entry["about"] in line
        assert entry["upstream"] in line


def test_a_list_on_a_terminal_shows_where_a_line_was_cut(
    capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")

    out = output(capsys, ["list", "patches"])
    assert "…" in out


def test_a_cause_is_shown_for_every_engine_that_has_it(capsys: Capture) -> None:
    assert main(["list", "slot-busy"]) == 0
    out = " ".join(output(capsys, ["list", "ik_llama.cpp memory-depth"]).split())
    assert 1 == out.count("llama.cpp slot-busy")
    assert "printed as: slot {slot} is busy with another request" in out
    assert 1 == out.count("memory-depth")


def test_one_item_is_json_where_that_is_asked_for(capsys: Capture) -> None:
    for name in ("hybrid", "b11549", "erase-equal", "memory-depth"):
        shown = json.loads(output(capsys, ["list", name, "--format", "json"]))
        assert all(name in each["name"] for each in shown), name
        assert shown
    file = tomllib.loads(output(capsys, ["list", STALE, "--raw"]))
    assert file == json.loads(output(capsys, ["list", STALE, "--format", "json"]))


def test_a_page_is_written_beside_json(capsys: Capture, tmp_path: Path) -> None:
    for number, what in enumerate(("engines", "hybrid", STALE)):
        page = tmp_path / f"{number}.html"
        output(capsys, ["list", what, "--format", "json", "--report", str(page)])
        assert page.stat().st_size > 1_000


def test_the_list_of_scenarios_says_what_the_files_say(capsys: Capture) -> None:
    entries = json.loads(output(capsys, ["list", "--format", "json"]))
    read = [load(path) for path in shipped_files()]
    assert [(each.name, each.kind or "", each.source.issue) for each in read] == [
        (entry["name"], entry["about"], entry["upstream"]) for entry in entries
    ]


def test_a_shipped_scenario_is_shown_as_toml_that_is_the_same_again(capsys: Capture) -> None:
    file = next(path for path in shipped_files() if path.stem == STALE)

    shown = output(capsys, ["list", STALE])
    raw = output(capsys, ["list", STALE, "--raw"])

    assert file.read_text() == raw
    assert tomllib.loads(raw) == tomllib.loads(shown)


@pytest.mark.parametrize("width", ["0", "1", "19"])
def test_help_is_printed_where_nobody_knows_the_width(
    width: str, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("COLUMNS", width)

    assert "Commands" in output(capsys, ["--help"])


def test_every_shipped_file_is_named_after_its_scenario() -> None:
    for path in shipped_files():
        assert path.stem == load(Path(path)).name


def test_a_symptom_finds_the_scenarios_that_sound_like_it(capsys: Capture) -> None:
    assert 0 == main(
        ["list", "scenarios", "--symptom", "coming back erases the cached conversation"]
    )

    assert "llama.cpp-24143" in capsys.readouterr().out.splitlines()[0]


# `list scenarios --symptom` finds a report's scenario by the words of its thread.

TABLE: Final = Path(__file__).with_name("symptoms.csv")
"""Queries in the words of threads, written before their ranking was looked at."""

HELD_BACK: Final = 30
"""Size of their random sample that did not choose the weights."""

LATER: Final = Path(__file__).with_name("symptoms_blind.csv")
"""Queries written later, from other threads; no weight is chosen by them either."""

FRESH: Final = Path(__file__).with_name("symptoms_fresh.csv")
"""Twenty more, in the words of threads read after the weights were set; seven of them replaced
queries whose reports got no scenario, before the ranking was looked at."""

LEAST: Final = {
    "first": 21,
    "in three": 26,
    "not tuned on, first": 38,
    "not tuned on, in three": 48,
    "fresh, first": 15,
    "fresh, in three": 17,
}
"""Found of 30, 60 and 20, among 260 scenarios; a new scenario may come before the right one.

It was 49 of the 60 before causes, changes of clients and pages were in the index too: a word that
they use counts as less rare.

Eleven threads of the later queries had no line in `threads.csv` when the queries were written;
before these lines were added, from the threads, it was 47 of 60. The fresh ones were counted before
any of their own threads that are cited since had a line.

Measured on the tuned thirty alone, none of these was better: stems of 4, 6 or 7 letters, suffixes
stripped in place of stems, other weights of the fields, other k1 and b, grams of 3 to 5 letters
beside words, a factor for the share of the words that are found, one scenario per thread first."""


def places(table: Path) -> list[int]:
    """For each query: how many scenarios are named before the first that cites its report."""
    cited: dict[str, set[str]] = {}
    for source, name in ((load(file).source, file.stem) for file in shipped_files()):
        for issue in (source.issue, *source.also):
            cited.setdefault(issue, set()).add(name)
    found = []
    with table.open(encoding="utf-8", newline="") as queries:
        for row in csv.DictReader(queries):
            hits = ranked(row["query"])
            names = [hit.entry.name for hit in hits if hit.entry.kind == "scenario"]
            before = (names.index(each) for each in cited[row["report"]] if each in names)
            found.append(min(before, default=len(names)))
    return found


def test_of_a_hundred_and_ten_reports_so_many_are_found_among_the_first_three() -> None:
    found = places(TABLE)
    held_back = set(random.Random(47).sample(range(len(found)), HELD_BACK))
    tuned = [each for number, each in enumerate(found) if number not in held_back]
    others = [found[number] for number in held_back] + places(LATER)
    fresh = places(FRESH)
    counted = {
        "first": sum(each < 1 for each in tuned),
        "in three": sum(each < 3 for each in tuned),
        "not tuned on, first": sum(other < 1 for other in others),
        "not tuned on, in three": sum(other < 3 for other in others),
        "fresh, first": sum(each < 1 for each in fresh),
        "fresh, in three": sum(each < 3 for each in fresh),
    }

    assert (30, 60, 20) == (len(tuned), len(others), len(fresh))
    assert [] == [name for name, least in LEAST.items() if counted[name] < least]


PUBLIC: Final = {
    "symptoms_public": (60, 54),
    "symptoms_public_fresh": (30, 25),
    "symptoms_second_reader": (80, 66),
}
"""Descriptions in the words of threads that no page and no scenario cites, with the entries that
answer each, written before its ranking was looked at; how many find one among the first three.

Of the sixty, 47 did at the first count, and 56 do: causes and names of servers got words of
reporters. The thirty were written then, to see whether that helps others too: 27. Before causes,
changes of clients and pages were in the index, it was 22 of the sixty.

The second reader did not write the index. Of the first sixty, 40 were found (34 by a stricter
reading), and 52 are; of the twenty written then 13, and 16."""


def test_a_symptom_may_begin_with_the_name_of_a_flag(capsys: Capture) -> None:
    printed = output(capsys, ["list", "scenarios", "--symptom", "--cache-ram is not enforced"])

    assert "21690" in printed or "2320" in printed


@pytest.mark.parametrize("table", PUBLIC)
def test_a_description_from_a_thread_finds_what_answers_it(table: str) -> None:
    with TABLE.with_name(f"{table}.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    first = {row["query"]: [h.entry.name for h in ranked(row["query"])[:3]] for row in rows}
    found = [
        row["report"]
        for row in rows
        if any(fnmatch(n, fit) for n in first[row["query"]] for fit in row["fits"].split(";"))
    ]

    total, least = PUBLIC[table]
    assert total == len(rows)
    assert len(found) >= least


def test_each_kind_of_rewrite_and_each_page_of_the_index_is_there() -> None:
    assert set(REWRITES) == set(DATA["clients"])
    causes = {
        f"{family.name} {cause.id}"
        for family in FAMILIES.values()
        for cause in causes_of(family.name)
    }
    assert set() == set(DATA["causes"]) - causes
    assert [] == [
        page for page in DATA["pages"] if not (Path(__file__).parents[2] / page).is_file()
    ]


def test_a_symptom_that_nothing_fits_is_said_to_fit_nothing(capsys: Capture) -> None:
    assert 0 == main(["list", "scenarios", "--symptom", "docker container cannot find libcuda"])
    assert capsys.readouterr().out.startswith("Nothing here fits well")

    assert 0 == main(["list", "scenarios", "--symptom", "my system prompt has today's date"])
    first = capsys.readouterr().out.splitlines()[0].split()
    assert ["%", "client", "clock"] == first[1:4]
    assert int(first[0]) > 50


def test_a_symptom_needs_a_word_that_tells_something() -> None:
    with pytest.raises(InputError, match="no word to search for in 'it is the'"):
        ranked("it is the")


def test_each_line_on_a_thread_is_of_one_that_a_scenario_cites() -> None:
    sources = [load(file).source for file in shipped_files()]
    cited = {issue for source in sources for issue in (source.issue, *source.also)}
    folder = there_is(shipped_folder())
    with (folder / "threads.csv").open(encoding="utf-8", newline="") as table:
        threads = [row["thread"] for row in csv.DictReader(table)]

    assert set() == set(threads) - cited
    assert sorted(set(threads)) == threads
