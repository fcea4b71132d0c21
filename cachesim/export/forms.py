"""The test of each engine's suite: who writes it, and how it begins."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cachesim.engines.family import Profile
from cachesim.errors import InputError, ScenarioError
from cachesim.export import llama_cpp, mlx_lm, vllm
from cachesim.export.case import Case, case_of
from cachesim.export.proof import can_run, prove
from cachesim.export.python_text import comment
from cachesim.files import free_name
from cachesim.scenario.format import Scenario, Seen, Shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A test in the style of a suite."""

    kind: str  # pytest or unittest
    place: str  # where the suite keeps it
    write: Callable[[Case], str]


FORMS: Final[Mapping[str, Form]] = {
    "llama.cpp": Form(kind="pytest", place="tools/server/tests/unit", write=llama_cpp.pytest_of),
    "ik_llama.cpp": Form(kind="pytest", place="tools/server/tests/unit", write=llama_cpp.pytest_of),
    "mlx-lm": Form(kind="unittest", place="tests", write=mlx_lm.unittest_of),
    "vllm": Form(kind="pytest", place="tests/v1/core", write=vllm.pytest_of),
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


NOT_RUN: Final = "Not run: nobody has seen this test fail or pass yet."


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A test with what is known of its runs in front."""

    slug: str
    text: str
    said: str  # of its runs
    as_said: bool  # no run was another one than the simulation says


def exported(
    scenario: Scenario, release: str = "", *, to: str = "test", runs: bool | None = None
) -> Exported:
    """A scenario as a test, run red and green; `runs` None: where the environment exists."""
    case = case_of(scenario, release)
    text, proof = form_of(case, to).write(case), None
    if runs or (runs is None and can_run(case)):
        proof = prove(case, text)
        proof = None if proof.red is proof.green is None else proof  # no release has a package
    said = NOT_RUN if proof is None else proof.sentence(case)
    return Exported(
        slug=case.slug,
        text=f"{comment(said)}\n{text}",
        said=said,
        as_said=proof is None or proof.holds,
    )


def written_finding(scenario: Scenario, step: str, profile: Profile, folder: Path) -> Iterator[str]:
    """A finding of a search as a test in a folder, in two lines for the reader."""
    accused = Shows(before=Seen(profile=str(profile), step=step))
    try:
        test = exported(replace(scenario, shows=accused))
    except InputError as error:
        yield f"  not exported: {error}"
        return
    path = free_name(folder / f"test_{test.slug}.py")
    path.write_text(test.text, encoding="utf-8")
    yield f"  as a test: {path}"
    yield f"    {test.said}"
