"""Adapters (LoRA) of requests: a name, and a file with weights that is loaded under it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cachesim.errors import OptionError
from cachesim.model.adapters import Strengths

FIELD: Final = "lora"


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """The adapter of a request: its name, its file's path, the weights in it, and its load."""

    name: str = ""
    path: str = ""
    weights: str = ""
    strengths: Strengths = ()  # of each file
    load: int = 0  # number of its load, from 1 on; 0: none


class LoadedAdapters:
    """The adapters that a server has loaded, by name; each load has a number.

    A request whose adapter has another path than before, or other weights at its path, includes an
    unload and a load.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, LoRARequest] = {}
        self._count = 0

    def loaded(self, lora: LoRARequest) -> LoRARequest:
        """The adapter with the number of the load that answers the request."""
        if not lora.name:
            return lora
        lora_request = self._loaded.get(lora.name)
        if lora_request is None or replace(lora_request, load=0) != lora:
            self._count += 1
            lora_request = self._loaded[lora.name] = replace(lora, load=self._count)
        return lora_request


def maybe_get_adapters(fields: Mapping[str, Any], files: Sequence[str]) -> LoRARequest:
    """The adapter of a request, `{ name = "L", path = "v1" }`; without one, the plain model.

    With `weights = "v2"` the file at the path, of any name, holds the weights of v2: somebody
    wrote over it.
    """
    given = fields.get(FIELD)
    plain = (0.0,) * len(files)
    if given is None:
        return LoRARequest(strengths=plain)
    if not isinstance(given, Mapping) or set(given) - {"weights"} != {"name", "path"}:
        msg = f'request field {FIELD!r} is no adapter; write {{ name = "L", path = "v1" }}'
        raise OptionError(msg)
    texts = {"name": given["name"], "path": given["path"]}
    texts["weights"] = given.get("weights", texts["path"])
    for what, text in texts.items():
        if not isinstance(text, str) or not text:
            raise OptionError(f"request field {FIELD!r}: the {what} is {text!r}; write a text")
    weights = texts["weights"]
    if weights not in files:
        known = ", ".join(files) if files else "none: set option 'lora'"
        msg = f"request field {FIELD!r}: there is no file {weights!r}; there are {known}"
        raise OptionError(msg)
    return LoRARequest(**texts, strengths=tuple(float(file == weights) for file in files))
