"""Notebooks of the lessons: their code runs from top to bottom, and pictures show themselves."""

from typing import Any

import make_notebooks
import pytest

from cachesim.learn import lesson, lessons


def ran(number: int) -> list[str]:
    """The cells of a lesson's notebook, run in order: what the last line of each shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in make_notebooks.notebook(lesson(number))["cells"]:
        if cell["cell_type"] == "code":
            text = "".join(cell["source"])
            exec(compile(text, "cell", "exec"), names)
            last = names.get(text.splitlines()[-1])
            shown += [last._repr_html_()] if hasattr(last, "_repr_html_") else []
    return shown


def test_a_notebook_runs_and_shows_its_pictures() -> None:
    shown = ran(1)

    assert 3 == len(shown)
    assert all("<svg" in each and "<style" in each for each in shown)


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(2, len(lessons()) + 1))
def test_every_notebook_runs(number: int) -> None:
    assert ran(number)
