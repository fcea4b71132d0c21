"""The public Python interface: every name, its signature, its docstring, and examples."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Annotated, Final, get_args, get_origin, get_type_hints

import cachesim
from cachesim import testing
from pages.tables import code, plain, table

INTRODUCTION: Final = """\
# Python interface

Everything that `import cachesim` offers, and `cachesim.testing`. These names are stable; keys of
the JSON output are never renamed. The examples are run whenever the tests are.
"""

EXAMPLES: Final[dict[str, str]] = {
    "run_scenario": """\
from cachesim import run_scenario

scenario = {
    "format": 1,
    "name": "edited",
    "model": {"preset": "hybrid"},
    "engine": {"name": "llama.cpp", "profiles": ["b11549"]},
    "spans": {"a": 40, "b": 20},
    "step": [{"prompt": "a", "predict": 2}, {"prompt": "a[:30] b", "predict": 2}],
}
run = run_scenario(scenario, arithmetic="ring")
assert run.steps[1].answer == "same"
assert run.to_json()["steps"][1]["cached"] == run.steps[1].cached
""",
    "Step": """\
step = run.steps[1]
assert step.finding.fate == "lost"
assert [fact.word for fact in step.facts][:2] == ["match", "rule"]
assert [loss.rule for loss in step.why] == ["full-reprocessing"]
""",
    "Engine": """\
from cachesim import Engine, Request, preset
from cachesim.units import as_tokens

server = Engine.create("llama.cpp@b11549", model=preset("dense"), arithmetic="ring")
server.ask(Request(prompt=as_tokens(range(300, 340)), predict=1))
assert server.ask(Request(prompt=as_tokens(range(300, 340)), predict=1)).cached == 39
assert server.events[0].sentence.startswith("slot 0 is chosen")
""",
    "testing": """\
from hypothesis import given, settings

from cachesim import Profile, run
from cachesim.testing import scenarios


@settings(max_examples=3)
@given(scenario=scenarios("llama.cpp@b11549", models=("dense",)))
def test_a_dense_model_is_always_right(scenario):
    played = run(scenario, Profile.parse("llama.cpp@b11549"), arithmetic="ring")
    assert all(step.answer in {None, "same", "by-design"} for step in played.steps)


test_a_dense_model_is_always_right()
""",
}
"""Each goes on where the last one ended."""


PRINTED: Final = frozenset({"Run", "Step", "Finding", "Fact", "Loss", "Account", "Saved"})
"""Values that the JSON output prints field by field."""


def page() -> str:
    """The package, then its testing room."""
    return "\n\n".join([INTRODUCTION, *_package(), *_testing()]) + "\n"


def _package() -> Iterator[str]:
    yield "## cachesim"
    for name in sorted(cachesim.__all__, key=str.lower):
        yield from _entry("cachesim", name, getattr(cachesim, name))


def _testing() -> Iterator[str]:
    yield "## cachesim.testing"
    yield plain(inspect.getdoc(testing) or "").split("\n\n")[0]
    yield f"```python\n{EXAMPLES['testing']}```"
    for name in testing.__all__:
        yield from _entry("cachesim.testing", name, getattr(testing, name))


def _entry(where: str, name: str, value: object) -> Iterator[str]:
    yield f"### {where}.{name}"
    if callable(value) and not is_dataclass(value) and not isinstance(value, type):
        yield f"```text\n{_signature(name, value)}\n```"
    yield _summary(value)
    if is_dataclass(value) and name in PRINTED:
        yield "Its fields are those of the [JSON output](json-output.md)."
    elif is_dataclass(value):
        described = dict(_fields(value))
        if all(described.values()):
            yield table(("field", "content"), list(described.items()))
        else:
            yield f"Its fields: {', '.join(described)}."
    elif isinstance(value, type):
        yield from _methods(value)
    if name in EXAMPLES:
        yield f"```python\n{EXAMPLES[name]}```"


def _summary(value: object) -> str:
    """The first paragraph of a docstring."""
    return plain((inspect.getdoc(value) or "").split("\n\n")[0])


def _fields(kind: type) -> Iterator[tuple[str, str]]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        about = ""
        if get_origin(hints[field.name]) is Annotated:
            notes = get_args(hints[field.name])[1:]
            about = next((note for note in notes if isinstance(note, str)), "")
        yield code(field.name), plain(about)


def _signature(name: str, value: Callable[..., object]) -> str:
    """Types without their modules; a default stands for the type of its parameter."""
    signature = inspect.signature(value)
    short = [
        parameter
        if parameter.default is parameter.empty
        else parameter.replace(annotation=parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    text = f"{name}{signature.replace(parameters=short)}"
    text = re.sub(r"\b(collections\.abc|typing|pathlib|cachesim(\.[a-z_]+)*)\.", "", text)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _names(method: Callable[..., object]) -> str:
    """Names of a method's parameters; `help` has their types."""
    return ", ".join(name for name in inspect.signature(method).parameters if name != "self")


def _methods(kind: type) -> Iterator[str]:
    rows = [
        (code(f"{name}({_names(function_type)})"), _summary(function_type))
        for name, function_type in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and function_type.__qualname__.startswith(kind.__name__)
    ]
    if rows:
        yield table(("method", "what it does"), rows)
