"""The page on the scenario file names every key and the limits that hold."""

import re
from pathlib import Path

from cachesim.play import scenario_schema
from cachesim.scenario import limits

PAGE = (Path(__file__).parents[2] / "docs" / "scenario-format.md").read_text()


def keys(schema: dict[str, dict[str, dict[str, object]]]) -> set[str]:
    found: set[str] = set()
    for name, each in schema.get("properties", {}).items():
        found |= {name} | keys(each) | keys(each.get("items", {}))  # type: ignore[arg-type]
    return found


def test_every_key_of_the_format_is_on_the_page() -> None:
    named = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`[^`]+`", PAGE))))

    assert keys(scenario_schema()) - named == set()


def test_the_limits_on_the_page_are_those_that_hold() -> None:
    for number in (
        limits.STEPS, limits.SPANS, limits.PROMPT_TOKENS, limits.TOTAL_TOKENS, limits.CONTEXT,
        limits.SLOTS,
    ):  # fmt: skip
        assert f"{number:,}" in PAGE

    assert limits.FILE_BYTES == 4 * 2**20
    assert limits.MEMORY == 4 * 2**30
