"""The published schemas are what the program reads and writes."""

import json
import tomllib
from pathlib import Path

from cachesim.engines import FAMILIES
from cachesim.play import output_schema, run_scenario, scenario_schema
from cachesim.scenario import scenario_of
from tests.fixtures import Patch
from tests.scenario.json_schema import errors
from tests.scenario.stories import STORY_TOML, story

OLDER = Path(__file__).parent / "older"
DOCS = Path(__file__).parents[2] / "docs" / "schema"


def test_the_copies_under_docs_are_what_the_command_prints(monkeypatch: Patch) -> None:
    monkeypatch.delitem(FAMILIES, "fake")
    scenario = json.loads((DOCS / "scenario-1.json").read_text())
    output = json.loads((DOCS / "output-1.json").read_text())

    assert scenario == scenario_schema()
    assert output == output_schema()


def test_right_scenarios_are_valid() -> None:
    assert errors(story(), scenario_schema()) == []
    assert errors(tomllib.loads(STORY_TOML), scenario_schema()) == []


def test_what_the_schema_refuses_the_loader_refuses_too() -> None:
    wrong = story(name="a b", clas="x", step=[{"prompt": 3.5}, {"predict": -2}])

    found = errors(wrong, scenario_schema())

    assert [line.split(":")[0] for line in found] == [
        "$.name", "$.step[0].prompt", "$.step[1].predict", "$.clas",
    ]  # fmt: skip


def test_the_output_of_a_run_is_valid() -> None:
    runs = [
        run_scenario(story(), profile=f"fake@{each}", arithmetic="ring").to_json()
        for each in ("r1", "r2")
    ]

    assert errors(json.loads(json.dumps({"format": 1, "runs": runs})), output_schema()) == []


def test_what_an_older_commit_printed_is_valid_still() -> None:
    """Output and scenario of 22 November 2026; a format that refuses them has another version."""
    older = json.loads((OLDER / "output-1.json").read_text())

    assert older["runs"]
    assert [] == errors(older, output_schema())
    assert [] == errors(tomllib.loads((OLDER / "scenario-1.toml").read_text()), scenario_schema())


def test_one_more_required_key_makes_older_output_invalid() -> None:
    older = json.loads((OLDER / "output-1.json").read_text())
    schema = json.loads(json.dumps(output_schema()))
    schema["properties"]["runs"]["items"]["required"].append("seconds")

    assert errors(older, schema)


def test_every_published_schema_has_an_identity_with_its_version() -> None:
    for file in DOCS.glob("*.json"):
        name, _, version = file.stem.rpartition("-")
        assert f"urn:cachesim:schema:{name}:{version}" == json.loads(file.read_text())["$id"]


def test_every_key_of_the_file_is_described() -> None:
    def descriptions(schema: dict[str, object]) -> None:
        for name, each in schema.get("properties", {}).items():  # type: ignore[union-attr,attr-defined]
            assert each.get("description"), name
            descriptions(each)
            descriptions(each.get("items", {}))

    descriptions(scenario_schema())
    assert scenario_of(story()).name == "three-steps"
