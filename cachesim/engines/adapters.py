"""Adapters (LoRA) of requests: a name, and a file with weights that is loaded under it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachesim.errors import OptionError
from cachesim.model.adapters import Strengths

FIELD: Final = "lora"


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """The adapter of a request: its name, its file, and the strength of each file."""

    name: str = ""
    path: str = ""
    strengths: Strengths = ()


def maybe_get_adapters(fields: Mapping[str, Any], files: Sequence[str]) -> LoRARequest:
    """The adapter of a request, `{ name = "L", path = "v1" }`; without one, the plain model.

    Includes the `load_lora_adapter` before the request.
    """
    given = fields.get(FIELD)
    plain = (0.0,) * len(files)
    if given is None:
        return LoRARequest(strengths=plain)
    if not isinstance(given, Mapping) or set(given) != {"name", "path"}:
        msg = f'request field {FIELD!r} is no adapter; write {{ name = "L", path = "v1" }}'
        raise OptionError(msg)
    name, path = given["name"], given["path"]
    if not isinstance(name, str) or not name:
        raise OptionError(f"request field {FIELD!r}: the name is {name!r}; write a text")
    if path not in files:
        known = ", ".join(files) if files else "none: set option 'lora'"
        raise OptionError(f"request field {FIELD!r}: there is no file {path!r}; there are {known}")
    return LoRARequest(name, path, tuple(float(each == path) for each in files))
