"""The picture of Transformers' families is that of the verdicts beside it."""

import csv
import json
import re
from pathlib import Path

import make_transformers
import pytest

from cachesim.prove.transformers.process import Worker
from cachesim.prove.transformers.scripts import OPERATIONS, drawn
from conformance.real.transformers.causes import SHOWN
from conformance.real.transformers.commands import play_family
from conformance.real.transformers.environments import NEWEST, environment_for
from conformance.real.transformers.results import Found

CELL = {"release": "5.23.0", "family": "a", "operation": "crop", "verdict": "wrong"}


def test_the_picture_has_the_verdicts_of_its_operations_in_the_newest_release() -> None:
    kept = json.loads(make_transformers.VERDICTS.read_text(encoding="utf-8"))

    assert (NEWEST, list(OPERATIONS)) == (kept["release"], kept["operations"])
    assert make_transformers.drawn() == make_transformers.PICTURE.read_text(encoding="utf-8")


def test_the_page_has_the_counts_of_the_verdicts() -> None:
    families = json.loads(make_transformers.VERDICTS.read_text(encoding="utf-8"))["families"]
    letters = "".join(families.values()).replace(make_transformers.ABSENT, "")
    page = make_transformers.PICTURE.with_suffix(".md").read_text(encoding="utf-8")

    assert f"{len(families)} families, {len(letters):,} scripts" in page
    assert f"{letters.count('r'):,} are right, {letters.count('w'):,} silently wrong" in page


def test_families_with_the_same_verdicts_have_one_row() -> None:
    cells = [CELL, CELL | {"family": "b"}, CELL | {"family": "c", "verdict": "right"}]
    kept = make_transformers.compact([json.dumps(cell) for cell in cells])

    assert {"a": "w", "b": "w", "c": "r"} == kept["families"]
    text = make_transformers.picture(["crop"], {"a": "w", "b": "w", "c": "r"})
    assert "<title>a, b</title>" in text
    assert ">a and 1 more</text>" in text
    assert 2 == text.count('class="w"')  # a cell, and one of the legend


def test_the_page_says_what_each_reports_operation_did_in_which_releases() -> None:
    page = make_transformers.PICTURE.with_suffix(".md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(#\d+)\]\S* \| ([^|]*) \| ([^|]*) \|$", page, flags=re.MULTILINE)

    assert make_transformers.courses() == {f"{number}, {of}": course for number, of, course in rows}


def test_the_page_says_what_shows_each_cause_and_in_which_releases() -> None:
    page = make_transformers.PICTURE.with_suffix(".md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+, [\w-]+) \|.*\| ([^|]*) \|$", page, flags=re.MULTILINE)

    assert [f"{family}, {operation}" for family, operation in SHOWN] == [name for name, _ in rows]
    assert make_transformers.courses_of_causes() == dict(rows)


def test_verdicts_of_causes_are_kept_in_order_and_replaced_by_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_transformers, "CAUSES", tmp_path / "causes.csv")
    (tmp_path / "causes.csv").write_text("family,operation,release,verdict\n")
    cause = CELL | {"family": "bamba", "operation": "tokens"}
    for release, verdict in (("5.10.1", "right"), ("5.9.0", "crash"), ("5.10.1", "wrong")):
        lines = [cause | {"release": release, "verdict": verdict}, CELL]  # the last shows none
        make_transformers.keep_causes([json.dumps(line) for line in lines])

    assert {"bamba, tokens": "5.9 crash, 5.10 wrong"} == make_transformers.courses_of_causes()


def test_the_page_names_the_releases_in_which_reports_were_played() -> None:
    page = make_transformers.PICTURE.with_suffix(".md").read_text(encoding="utf-8")
    with make_transformers.REPORTS.open(newline="", encoding="utf-8") as table:
        releases = dict.fromkeys(each["release"] for each in csv.DictReader(table))

    [told] = re.findall(r"^Run: (.*)\.$", page.replace("\n(", " ("), flags=re.MULTILINE)
    assert sorted(releases, key=lambda release: tuple(map(int, release.split(".")))) == told.split(
        ", "
    )


def test_releases_with_one_verdict_are_a_range() -> None:
    verdicts = [("5.0", "refused"), ("5.1", "wrong"), ("5.2", "wrong"), ("5.3", "right")]

    assert "5.0 refused, 5.1 to 5.2 wrong, 5.3 right" == make_transformers.course(verdicts)


@pytest.mark.wheel
@pytest.mark.nightly
@pytest.mark.skipif(not environment_for(NEWEST).is_ready(), reason="torch is not installed")
def test_reports_have_the_same_verdicts_in_the_newest_release_again() -> None:
    with make_transformers.REPORTS.open(newline="", encoding="utf-8") as table:
        rows = [each for each in csv.DictReader(table) if each["release"] == NEWEST]
    worker, found = Worker(environment_for(NEWEST).python), Found(NEWEST)
    for row in rows:
        family, operation = row["family"], row["operation"]
        play_family(worker, family, {operation: drawn(operation, family, 0)}, "eager", found)
    worker.close()

    assert 8 == len(rows)
    assert [row["verdict"] for row in rows] == [cell.verdict for cell in found.cells]
