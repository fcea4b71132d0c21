"""The table of all fields of an engine's own configuration, and what a server says of them."""

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.engines import FAMILIES, Profile
from cachesim.engines.family import Family
from cachesim.engines.fields import Field, fields_of
from cachesim.errors import OptionError
from tests.fixtures import Capture, Patch

WITH_TABLE = tuple(name for name, each in FAMILIES.items() if each.configuration)

ROWS = fields_of(
    "FakeConfig",
    simulated="page_size",
    renamed={"pool": "max_total_tokens"},
    no_influence={"it only names the log": "log_name log_level"},
    differs={"blocks would be shared by ranks": "shards"},
    flags={"shards": "--num-shards"},
    flagless="log_name",
)


@pytest.fixture
def family(monkeypatch: Patch) -> Family[Any, Any]:
    """An engine with a table of a few rows."""
    module = ModuleType("fake_fields")
    vars(module).update(FIELDS=ROWS)
    monkeypatch.setitem(sys.modules, "fake_fields", module)
    made = replace(FAMILIES["sglang"], configuration="fake_fields")
    monkeypatch.setitem(FAMILIES, "sglang", made)
    return made


@pytest.mark.parametrize("engine", WITH_TABLE)
def test_what_a_row_names_as_simulated_is_an_option(engine: str) -> None:
    family = FAMILIES[engine]
    shown = {each.name for each in (*family.table(), *family.fields)}
    named = {option for field in family.upstream_fields() for option in field.options}
    assert set() == named - shown


@pytest.mark.parametrize("engine", WITH_TABLE)
def test_a_field_has_one_row(engine: str) -> None:
    rows = [(field.owner, field.name) for field in FAMILIES[engine].upstream_fields()]
    assert sorted(set(rows)) == sorted(rows)


@pytest.mark.parametrize("texts", [{}, {"simulated": "x", "differs": "all"}])
def test_a_row_has_one_of_three_texts(texts: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="set one of simulated, no_influence and differs"):
        Field("Config", "x", **texts)


def test_rows_are_sorted_and_have_upstreams_flags() -> None:
    assert [
        ("log_level", "--log-level", "no influence"),
        ("log_name", "", "no influence"),
        ("page_size", "--page-size", "simulated"),
        ("pool", "--pool", "simulated"),
        ("shards", "--num-shards", "not simulated"),
    ] == [(row.name, row.flag, row.kind) for row in ROWS]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shards", "is not simulated: blocks would be shared by ranks; leave it out"),
        ("--num-shards", "is not simulated: blocks would be shared by ranks; leave it out"),
        ("log_level", "has no influence on what is cached (it only names the log); leave it out"),
        ("pool", "is called 'max_total_tokens' here"),
    ],
)
def test_a_field_that_is_no_option_is_refused_with_the_reason(
    name: str, said: str, family: Family[Any, Any]
) -> None:
    with pytest.raises(OptionError) as caught:
        family.read(Profile("sglang", family.names()[-1]), {name: 1})
    assert f"option {name!r} (FakeConfig of sglang) {said}" in str(caught.value)


@pytest.mark.usefixtures("family")
def test_the_table_is_printed_after_the_options(capsys: Capture) -> None:
    assert 0 == main(["list", f"sglang@{FAMILIES['sglang'].names()[-1]}", "--flags"])
    text = " ".join(capsys.readouterr().out.split())
    assert "that are simulated: 2 FakeConfig: under their own names --page-size" in text
    assert "FakeConfig: as max_total_tokens --pool" in text
    assert "FakeConfig: it only names the log --log-level log_name" in text
    assert "FakeConfig: blocks would be shared by ranks --num-shards" in text
    assert text.index("chunked_prefill_size") < text.index("FakeConfig")
