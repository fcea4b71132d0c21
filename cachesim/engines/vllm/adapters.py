"""Adapters (LoRA) of requests: a name that goes into the ids of blocks, and a file that computes.

    load  L from v1    P under L     ids of P and "L"
    load  L from v2    P under L     the same ids: blocks that v1 computed

Trap: an adapter that is loaded again under its name has another file and the same name, and only
the name is part of the ids (`_gen_lora_extra_hash_keys`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachesim.errors import OptionError
from cachesim.model.adapters import Strengths

FIELD: Final = "lora"


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """The adapter of one request (`LoRARequest`): its name, and the file that it has by then."""

    name: str = ""
    strengths: Strengths = ()

    def keyed(self, salt: object) -> object:
        """Extra keys of a request's block hashes. Follows `generate_block_hash_extra_keys`."""
        return (salt, self.name) if self.name else salt


def read(fields: Mapping[str, Any], files: Sequence[str]) -> LoRARequest:
    """The adapter that a request names, `{ name = "L", path = "v1" }`; none is the plain model.

    Stands for `load_lora_adapter` before the request too. Upstream: `_maybe_get_adapters`.
    """
    given = fields.get(FIELD)
    plain = (0.0,) * len(files)
    if given is None:
        return LoRARequest("", plain)
    if not isinstance(given, Mapping) or set(given) != {"name", "path"}:
        msg = f'request field {FIELD!r} is no adapter; write {{ name = "L", path = "v1" }}'
        raise OptionError(msg)
    name, path = given["name"], given["path"]
    if not isinstance(name, str) or not name:
        msg = f"request field {FIELD!r}: the name is {name!r}; write a text"
        raise OptionError(msg)
    if path not in files:
        known = ", ".join(files) if files else "none: set option 'lora'"
        msg = f"request field {FIELD!r}: there is no file {path!r}; there are {known}"
        raise OptionError(msg)
    return LoRARequest(name, tuple(float(each == path) for each in files))
