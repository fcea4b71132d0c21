"""Enough of JSON Schema 2020-12 to hold our own output against our own schemas."""

import re
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list, tuple),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
KNOWN = {
    "$schema", "$id", "title", "description", "default", "type", "enum", "const", "anyOf",
    "minimum", "maximum", "pattern", "maxLength", "maxItems", "items", "properties", "required",
    "additionalProperties", "propertyNames", "maxProperties", "examples",
}  # fmt: skip


def is_of(value: object, name: str) -> bool:
    if isinstance(value, bool) and name != "boolean":
        return False
    return isinstance(value, TYPES[name])


def errors(value: Any, schema: dict[str, Any], path: str = "$") -> list[str]:
    """Every place where a value is not what the schema says."""
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    if "anyOf" in schema:
        branches = [errors(value, each, path) for each in schema["anyOf"]]
        return [] if not all(branches) else [f"{path}: fits none of {len(branches)}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{path}: {value!r} is not in the list"]
    if "const" in schema and value != schema["const"]:
        return [f"{path}: {value!r} is not {schema['const']!r}"]
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(is_of(value, name) for name in names):
        return [f"{path}: {value!r} is not {' or '.join(names)}"]
    if isinstance(value, dict):
        return object_errors(value, schema, path)
    if isinstance(value, list | tuple):
        found = ["too long"] if len(value) > schema.get("maxItems", len(value)) else []
        item = schema.get("items", {})
        return found + [e for i, v in enumerate(value) for e in errors(v, item, f"{path}[{i}]")]
    if isinstance(value, str):
        fits = re.search(schema.get("pattern", ""), value)
        return (
            [] if fits and len(value) <= schema.get("maxLength", len(value)) else [f"{path}: shape"]
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        return [] if low <= value <= high else [f"{path}: {value} is out of bounds"]
    return []


def object_errors(value: dict[str, Any], schema: dict[str, Any], path: str) -> list[str]:
    found = [f"{path}.{key}: missing" for key in schema.get("required", ()) if key not in value]
    if len(value) > schema.get("maxProperties", len(value)):
        found.append(f"{path}: too many names")
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
    names = schema.get("propertyNames", {})
    for key, each in value.items():
        found += errors(key, names, f"{path}({key})")
        if key in properties:
            found += errors(each, properties[key], f"{path}.{key}")
        elif rest is False:
            found.append(f"{path}.{key}: unknown")
        else:
            found += errors(each, rest, f"{path}.{key}")
    return found
