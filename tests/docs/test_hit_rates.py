"""The counts in the tables of `docs/mlx-lm-hit-rates.md` are those of the scenarios they name."""

import re
from pathlib import Path

import pytest

from cachesim.play import run
from cachesim.scenario import load
from cachesim.scenario.checks import full_profile
from cachesim.scenario.shipped import shipped_file

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mlx-lm-hit-rates.md").read_text(encoding="utf-8")

PROFILES = {
    "main after #906": ("after-906",),
    "with #923 (and with #929)": ("after-906+923", "after-906+929"),
    "0.31.1 and later main": ("0.31.1", "0.31.1-main"),
    "with #1006": ("0.31.1-main+1006",),
    "0.32.2": ("0.32.2",),
}
"""The tables' name of a profile."""


def rows(heading: str) -> dict[str, tuple[str, ...]]:
    """The first table after a heading: profile -> its other columns."""
    part = PAGE.partition(heading)[2].partition("|---")[2]
    found = {}
    for line in part.splitlines()[1:]:
        if not line.startswith("|"):
            break
        name, *others = (cell.strip() for cell in line.strip("|").split("|"))
        found[name] = tuple(others)
    return found


@pytest.mark.parametrize(
    ("heading", "scenario", "prompts"),
    [
        ("## #929 on #923", "mlx-lm-929-hit-rates", (42, 100, 168)),
        ("## #1006: 0 % to 98 %", "mlx-lm-1006-shared-system-prompt", (417,) * 5),
    ],
)
def test_a_table_of_hit_rates_holds_what_its_scenario_gives(
    heading: str, scenario: str, prompts: tuple[int, ...]
) -> None:
    loaded = load(shipped_file(scenario))
    table = rows(heading)
    assert table
    for name, (cached, answers, *_) in table.items():
        for release in PROFILES[name]:
            done = run(loaded, full_profile("mlx-lm", release), arithmetic="ring")
            assert prompts == tuple(step.prompt_tokens for step in done.steps)
            shown = [part.strip() for part in re.sub(r"\*|\(.*?\)", "", cached).split(",")]
            counted = [
                f"{round(100 * (step.cached or 0) / step.prompt_tokens)} %"
                if "%" in text
                else str(step.cached)
                for text, step in zip(shown, done.steps, strict=True)
            ]
            assert shown == counted
            wrong = [step.answer == "diverged" for step in done.steps]
            assert ("wrong" in answers) == any(wrong)
