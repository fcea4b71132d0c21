"""A report for each scenario of the site, written once for the same source."""

from pathlib import Path

import make_gallery
import pytest

from cachesim.scenario.shipped import shipped_file

NAME = "llama.cpp-three-requests"


def test_a_report_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[str] = []
    monkeypatch.setattr(make_gallery, "shipped_files", lambda: [shipped_file(NAME)])
    write = make_gallery.write_report

    def seen(scenario: Path, path: Path, mark: str) -> None:
        played.append(scenario.stem)
        write(scenario, path, mark)

    for _ in range(2):
        make_gallery.main(tmp_path, write=seen, jobs=0)

    assert [NAME] == played
    assert "gets a wrong answer" in (tmp_path / "reports" / f"{NAME}.html").read_text("utf-8")


def test_a_report_whose_scenario_is_gone_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_gallery, "shipped_files", list)
    old = tmp_path / "reports" / "gone.html"
    old.parent.mkdir()
    old.write_text("old", encoding="utf-8")

    make_gallery.main(tmp_path, jobs=0)

    assert not old.exists()
