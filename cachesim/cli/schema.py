"""`cachesim list schema`: the JSON Schemas, for editors and checkers."""

import json
import sys
from collections.abc import Callable
from typing import Any, Final

from cachesim.cli import AS_EXPECTED
from cachesim.errors import InputError
from cachesim.lab.logs.schema import requests_schema, why_schema
from cachesim.play import output_schema, scenario_schema

SCHEMAS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "scenario": scenario_schema,
    "output": output_schema,
    "why": why_schema,
    "requests": requests_schema,
}


def schema_command(what: str) -> int:
    """Print one of the schemas."""
    if what not in SCHEMAS:
        msg = f"there is no schema of {what!r}; there are {', '.join(SCHEMAS)}"
        raise InputError(msg)
    sys.stdout.write(json.dumps(SCHEMAS[what](), indent=2) + "\n")
    return AS_EXPECTED
