"""The generated pages agree with the code."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import generate
import pytest
from pages import commands, events, releases, schemas

from cachesim.cli import listing
from cachesim.cli.app import COMMANDS
from cachesim.engines import Engine, Request
from cachesim.learn import lessons
from cachesim.model.presets import tiny
from cachesim.play import scenario_schema
from cachesim.units import as_tokens


def rows(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("|") and "---" not in line]


def test_pages_are_written_where_the_site_looks_for_them(site: Path) -> None:
    pages = site.parent / "docs" / "_generated"
    written = {str(path.relative_to(pages)): path.read_text() for path in pages.rglob("*.md")}

    assert set(generate.PAGES) == set(written)
    assert {f"lessons/{lesson.file}" for lesson in lessons()} < set(written)
    for name, text in written.items():
        assert text.startswith("# "), name
        assert "{{" not in text, name
        assert str(Path(__file__).parents[2]) not in text, name


def test_every_page_is_in_the_contents_of_the_site() -> None:
    docs = Path(generate.__file__).parent
    listed = (docs / "tutorials.md").read_text() + (docs / "reference.md").read_text()

    assert [name for name in generate.PAGES if f"_generated/{name[:-3]}\n" not in listed] == []


def test_every_command_is_there_with_its_help() -> None:
    page = commands.page()

    assert all(f"## cachesim {name}\n" in page for name in COMMANDS)
    assert "--arithmetic" in page
    assert "\x1b" not in page


def test_every_release_and_patch_is_there() -> None:
    page = releases.page()
    assert all(f"`{item.name.partition('@')[2]}`" in page for item in listing.releases())
    written = [re.sub(r"\]\([^)]*\)", "]", row) for row in rows(page)]
    for item in listing.patches():
        name = item.name.partition(" +")[2]
        assert any(f"`{name}`" in row or f"[#{name}]" in row for row in written), item.name


@pytest.mark.thorough
def test_events_that_happen_are_all_described() -> None:
    page = events.page()
    server = Engine.create("llama.cpp@b11549", model=tiny("hybrid"))
    server.submit(Request(prompt=as_tokens(range(270, 290)), predict=2))
    server.run()
    seen = {event.name() for event in server.events}

    assert len(seen) > 3
    assert [name for name in seen if f"| `{name}` |" not in page] == []


def keys(schema: Mapping[str, Any]) -> set[str]:
    """Every key of a scenario, also those within tables and lists."""
    found: set[str] = set()
    for name, value in schema.get("properties", {}).items():
        found |= {name} | keys(value) | keys(value.get("items", {}))
    return found


def test_every_key_of_a_scenario_is_there() -> None:
    page = schemas.scenario_page()

    assert [key for key in sorted(keys(scenario_schema())) if f"`{key}`" not in page] == []


def test_issues_that_lessons_name_are_links() -> None:
    page = generate.PAGES["lessons/5-checkpoints.md"]()

    assert (
        "llama.cpp [#22384](https://github.com/ggml-org/llama.cpp/issues/22384), [#20428](" in page
    )
    assert "ik_llama.cpp [#1888](https://github.com/ikawrakow/ik_llama.cpp/issues/1888)" in page
