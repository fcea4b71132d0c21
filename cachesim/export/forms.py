"""The test of each engine's suite: who writes it, and how it begins."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cachesim.errors import ScenarioError
from cachesim.export import llama_cpp
from cachesim.export.case import Case
from cachesim.export.python_text import comment


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A test in the style of a suite."""

    kind: str  # pytest or unittest
    place: str  # where the suite keeps it
    write: Callable[[Case], str]


FORMS: Final[Mapping[str, Form]] = {
    "llama.cpp": Form(kind="pytest", place="tools/server/tests/unit", write=llama_cpp.pytest_of),
}
"""Engine -> the form of its tests."""


def form_of(case: Case, wanted: str) -> Form:
    """The form of an engine's tests; an error says what to write instead."""
    name = case.profile.engine
    if name not in FORMS:
        there = ", ".join(FORMS)
        raise ScenarioError(
            f"{case.scenario.name}: tests are written for {there}; for {name} write --to issue"
        )
    form = FORMS[name]
    if wanted not in {"test", form.kind}:
        raise ScenarioError(f"tests of {name} are {form.kind}: write --to {form.kind}")
    return form


def with_header(text: str, said: str) -> str:
    """The test with what is known of its runs in front."""
    return f"{comment(said)}\n{text}"
