"""The page of the Python interface: its examples run, and it names every public name."""

import re
from typing import Any

from pages import api

import cachesim
from cachesim import testing


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
