"""The scenario file and the JSON output, from the schemas that the program itself uses."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cachesim.play import output_schema, scenario_schema
from pages.tables import code, plain, table

SCENARIO = """\
# Keys of a scenario

A scenario is a TOML file. Unknown keys are errors, and all errors of a file are reported at once,
each with its path. `cachesim new` prints a commented file to start from; `cachesim list schema`
prints the JSON Schema that editors understand.

A prompt is written in *spans*: named runs of tokens, drawn from the seed. `S u1` is one span
after the other, `S[:50]` the first fifty tokens of one, `A.reply` what step `A` generated. A list
of token ids works too.
"""

OUTPUT = """\
# JSON output

`cachesim run FILE... --format json` prints one object. `cached`, `processed`, `checkpoints` and
`prompt_cache` are what the real server has after that step. Keys may be added, never renamed.
`cachesim list schema output` prints the JSON Schema, which also has what `--detail` adds: the
tokens of each memory, and logits.
"""


LEFT_OUT = {"detail"}
"""Keys whose content only the schema describes."""
UNBOUNDED = 2**31 - 1
"""A maximum that only keeps integers small."""


def scenario_page() -> str:
    """Every table of a scenario file."""
    return "\n\n".join([SCENARIO, *_tables(scenario_schema(), "The file")]) + "\n"


def output_page() -> str:
    """Every object of the output."""
    return "\n\n".join([OUTPUT, *_tables(output_schema(), "The object")]) + "\n"


def _tables(
    schema: Mapping[str, Any], title: str, known: dict[str, str] | None = None
) -> Iterator[str]:
    """A section for an object, then one for each object inside; equal keys are listed once."""
    known = {} if known is None else known
    yield f"## {title}"
    if "description" in schema:
        yield plain(schema["description"])
    same = known.setdefault(json.dumps(schema["properties"]), title)
    if same != title:
        yield f"The keys are those of {same}."
        return
    required = schema.get("required", ())
    rows = [
        (code(name), _kind(each) + ", optional" * (name not in required), _about(each))
        for name, each in schema["properties"].items()
    ]
    yield table(("key", "value", "meaning"), rows)
    for name, each in schema["properties"].items():
        inner = each.get("items", each)
        if inner.get("properties") and name not in LEFT_OUT:
            within = f"`{name}`" if title.startswith("The") else f"{title} `{name}`"
            yield from _tables(inner, within, known)


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(code(json.dumps(each)) for each in schema["enum"])
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " or ".join(dict.fromkeys(_kind(choice) for choice in choices))
    kind = schema.get("type", "anything")
    words = " or ".join(kind) if isinstance(kind, list) else kind
    if kind == "array":
        inner = _kind(schema.get("items", {}))
        return "objects" if inner == "object" else f"array of {inner}"
    return f"{words}{_bounds(schema)}"


def _bounds(schema: Mapping[str, Any]) -> str:
    if "minimum" in schema and schema.get("maximum", UNBOUNDED) < UNBOUNDED:
        return f", {schema['minimum']} to {schema['maximum']}"
    if schema.get("minimum"):
        return f", at least {schema['minimum']}"
    return ""


def _about(schema: Mapping[str, Any]) -> str:
    about = plain(schema.get("description", ""))
    default = schema.get("default")
    return about if default is None else f"{about} Default: {code(json.dumps(default))}."
