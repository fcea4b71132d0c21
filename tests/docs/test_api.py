"""The page of the Python interface: its examples run, and it names every public name."""

import inspect
import re
from doctest import DocTestFinder, DocTestRunner
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from pages import api

import cachesim
from cachesim import testing

ROOT: Final = Path(__file__).parents[2]


def test_the_examples_run_one_after_the_other() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", api.page(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == len(api.EXAMPLES)
    names: dict[str, Any] = {"__name__": "api"}
    for block in sorted(blocks, key=list(api.EXAMPLES.values()).index):
        exec(compile(block, "api.md", "exec"), names)


def test_every_public_name_has_an_entry_that_says_something() -> None:
    page = api.page()
    for where, names in (("cachesim", cachesim.__all__), ("cachesim.testing", testing.__all__)):
        for name in names:
            entry = page.partition(f"### {where}.{name}\n")[2].partition("\n### ")[0]
            assert len(entry.split()) > 5, name


NEEDS_YOUR_CACHE: Final = {"check_live_cache", "check_memory"}
"""They check a class of the caller: the guide on one's own cache has the example."""


@pytest.mark.parametrize(
    ("package", "name"),
    [(package, name) for package in (cachesim, testing) for name in sorted(package.__all__)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_an_example_in_a_docstring_runs_as_printed(
    package: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # the examples name scenarios of the checkout
    value = getattr(package, name)
    examples = [
        example
        for example in DocTestFinder().find(value, name, module=False)  # of all methods, too
        if example.examples
    ]
    said: list[str] = []
    for example in examples:
        DocTestRunner().run(example, out=said.append)
    assert "".join(said) == ""
    if inspect.isfunction(value) and name not in NEEDS_YOUR_CACHE:
        assert examples, f"{name} has no example"


def test_help_and_dir_list_the_public_names_and_no_others() -> None:
    assert dir(cachesim) == sorted(cachesim.__all__)
