"""The `Family` of llama-cpp-python."""

from typing import Final

from cachesim.engines.family import Family, Package, Release
from cachesim.engines.llama_cpp_python.options import FIELDS, Options
from cachesim.engines.llama_cpp_python.rules import (
    BEFORE,
    KEEPS_STATES,
    LEAVES_LAST,
    NEWEST,
    Rules,
)

_PYTHON: Final = (
    ("0.3.23", "7d442abf", KEEPS_STATES, "a refused cut leads to a reset"),
    ("0.3.31", "f449e0553", LEAVES_LAST, "recurrent memory is reset unless a prompt continues it"),
    ("0.3.35", "4df29be4f", BEFORE, "an instance that holds exactly the prompt samples at once"),
    ("0.3.36", "0c1e57098", NEWEST, "a refused state leaves nothing of it in the memory"),
)
"""Each release: its vendored llama.cpp commit, its rules, its changes."""

RELEASES: Final = tuple(
    Release(
        name=name,
        about=f"{about}; llama.cpp {commit}",
        rules=rules,
        upstream=f"v{name}",
        package=Package(name="llama-cpp-python", version=name),
    )
    for name, commit, rules, about in _PYTHON
)


FAMILY: Final[Family[Rules, Options]] = Family(
    name="llama-cpp-python",
    about="llama.cpp's Python binding: one sequence per instance, caches of whole states",
    repository="abetlen/llama-cpp-python",
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    configuration=f"{__package__}.fields",
    engine=f"{__package__}.llama:LlamaCppPython",
    releases=RELEASES,
    options=Options,
    fields=FIELDS,
    kin=("llama.cpp",),
    has_slots=False,
)
