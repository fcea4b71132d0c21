"""A report for each scenario of the site, written once for the same source."""

from pathlib import Path
from typing import Any

import make_gallery
import pytest
from pages import gallery

from cachesim.play.result import Run
from cachesim.scenario import load
from cachesim.scenario.shipped import shipped_file
from tests.fixtures import Patch

NAME = "llama.cpp-three-requests"


def test_a_report_is_written_once(tmp_path: Path, monkeypatch: Patch) -> None:
    played: list[str] = []
    monkeypatch.setattr(make_gallery, "shipped_files", lambda: [shipped_file(NAME)])
    write = make_gallery.write_report

    def seen(scenario: Path, path: Path, mark: str) -> None:
        played.append(scenario.stem)
        write(scenario, path, mark)

    for _ in range(2):
        make_gallery.main(tmp_path, write=seen, jobs=0)

    assert [NAME] == played
    text = (tmp_path / "reports" / f"{NAME}.html").read_text("utf-8")
    assert "gets a wrong answer" in text
    assert f'<header class="top">\n<p class="from"><a href="../gallery.html#{NAME}">' in text


@pytest.mark.parametrize(("seconds", "arithmetic"), [(1, "float"), (600, "ring")])
def test_a_report_that_would_take_minutes_is_played_in_ring(
    seconds: int, arithmetic: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    asked: list[str] = []
    play = make_gallery.run

    def seen(*args: Any, **named: Any) -> Run:
        asked.append(named["arithmetic"])
        return play(*args, **named)

    monkeypatch.setattr(make_gallery, "seconds_of", lambda _: seconds)
    monkeypatch.setattr(make_gallery, "run", seen)
    make_gallery.write_report(shipped_file(NAME), tmp_path / "report.html", "")

    assert {arithmetic} == set(asked)


def test_a_report_whose_scenario_is_gone_is_removed(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(make_gallery, "shipped_files", list)
    old = tmp_path / "reports" / "gone.html"
    old.parent.mkdir()
    old.write_text("old", encoding="utf-8")

    make_gallery.main(tmp_path, jobs=0)

    assert not old.exists()


def test_the_former_address_of_a_report_leads_to_the_one_of_today(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    former, now = "llama.cpp-stale-neighbour", "llama.cpp-erasure-off-by-one"
    monkeypatch.setattr(make_gallery, "shipped_files", lambda: [shipped_file(now)])

    for _ in range(2):  # a second build keeps them
        make_gallery.main(tmp_path, write=lambda *_: None, jobs=0)

    assert [f"{former}.html"] == [path.name for path in (tmp_path / "reports").iterdir()]
    text = (tmp_path / "reports" / f"{former}.html").read_text("utf-8")
    assert f'content="0; url={now}.html"' in text
    assert f'<a id="{former}"></a>' in gallery.card(load(shipped_file(now)), [])
