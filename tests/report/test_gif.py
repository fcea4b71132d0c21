"""A run as a GIF: a frame for each request, and what to install where nothing can draw it."""

from pathlib import Path

import pytest

from cachesim import run_scenario
from cachesim.cli import run as run_module
from cachesim.cli.main import main
from cachesim.report.picture import decisive, story
from tests.fixtures import Capture, Patch

RUN = ("run", "llama.cpp-two-codes", "--profile", "b11549", "--picture")


def is_red(counted: tuple[int, tuple[int, int, int]]) -> int:
    count, (red, green, blue) = counted
    return count if red > 150 and max(green, blue) < 80 else 0


def test_each_frame_adds_a_request_and_the_last_one_outlines_what_is_wrong(tmp_path: Path) -> None:
    images = pytest.importorskip("PIL.Image")
    gif = pytest.importorskip("cachesim.report.gif")
    run = run_scenario("llama.cpp-two-codes", detail=True)
    gif.write_gif(decisive(story(run)), tmp_path / "run.gif")

    with images.open(tmp_path / "run.gif") as image:
        shown = []
        for number in range(image.n_frames):
            image.seek(number)
            colours = image.convert("RGB").getcolors(2**20)
            shown.append((image.info["duration"], sum(map(is_red, colours))))
    assert [*[gif.PACE] * (len(run.steps) - 1), gif.LAST] == [each for each, _ in shown]
    *before, last = (red for _, red in shown)
    assert last > 5 * max(before), "the legend alone is red in the frames before the wrong answer"


def test_the_command_replaces_a_gif_and_no_other_file(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("PIL")
    file = tmp_path / "run.gif"

    assert (0, 0) == (main([*RUN, str(file)]), main([*RUN, str(file)]))
    assert file.read_bytes().startswith(b"GIF89a")
    file.write_text("mine")
    assert 2 == main([*RUN, str(file)])
    assert "another kind of file" in capsys.readouterr().err


def test_without_pillow_the_error_says_what_to_install(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(run_module, "find_spec", lambda _: None)

    assert 2 == main([*RUN, str(tmp_path / "run.gif")])
    assert "pip install pillow" in " ".join(capsys.readouterr().err.split())
    assert [] == list(tmp_path.iterdir())
