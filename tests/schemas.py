"""Whether JSON conforms to a schema of this program."""

from typing import Any


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """True if a value conforms to the schema."""
    if "enum" in schema:
        return value in schema["enum"]
    if "anyOf" in schema and not schema.get("properties"):
        return any(fits(value, each) for each in schema["anyOf"])
    kinds = schema.get("type", [])
    known: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": int | float,
        "boolean": bool,
    }
    names = [kinds] if isinstance(kinds, str) else kinds
    if names and not any(
        value is None if name == "null" else isinstance(value, known[name]) for name in names
    ):
        return False
    if isinstance(value, dict):
        rest = schema.get("additionalProperties", {})
        return all(name in value for name in schema.get("required", [])) and all(
            fits(each, schema.get("properties", {}).get(name, rest)) for name, each in value.items()
        )
    if isinstance(value, list):
        return all(fits(each, schema.get("items", {})) for each in value)
    return True


def strict(schema: Any) -> Any:
    """A schema that allows no key which it does not name."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: strict(each) for key, each in schema.items()}
    return inner | ({"additionalProperties": {"enum": []}} if "properties" in schema else {})
