"""The `Family` of llama-cpp-python."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.llama_cpp_python.options import FIELDS, Options
from cachesim.engines.llama_cpp_python.releases import HISTORY, RELEASES
from cachesim.engines.llama_cpp_python.rules import Rules

FAMILY: Final[Family[Rules, Options]] = Family(
    name="llama-cpp-python",
    about="llama.cpp's Python binding: one sequence per instance, caches of whole states",
    repository="abetlen/llama-cpp-python",
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    configuration=f"{__package__}.fields",
    engine=f"{__package__}.llama:LlamaCppPython",
    releases=RELEASES,
    patches=HISTORY.patches,
    options=Options,
    fields=FIELDS,
    kin=("llama.cpp",),
    has_slots=False,
)
