"""The `Family` of llama-cpp-python, and of other servers over llama.cpp's memory."""

from dataclasses import replace
from typing import Final

from cachesim.engines.family import Family, Package, Patch, Release, laying
from cachesim.engines.llama_cpp_python.options import FIELDS, Options
from cachesim.engines.llama_cpp_python.rules import (
    BEFORE,
    KEEPS_STATES,
    KOBOLD,
    KOBOLD_1_99,
    KOBOLD_1_104,
    LEAVES_LAST,
    NEWEST,
    Rules,
    RunnerRules,
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


def _keep_more(rules: Rules) -> Rules:
    runner = rules.server if isinstance(rules.server, RunnerRules) else RunnerRules()
    return replace(rules, server=replace(runner, memory=4096))


PATCHES: Final[tuple[Patch[Rules], ...]] = (
    Patch(
        name="ollama",
        server=True,
        about="Ollama's runner until 0.24, read, not run",
        fits=("0.3.36",),
        lay=laying(server=RunnerRules()),
    ),
    Patch(
        name="ollama-llamarunner",
        server=True,
        about="over `ollama`: its runner of llama.cpp's models and memory",
        fits=("0.3.36",),
        lay=laying(server=RunnerRules(llama=True)),
    ),
    Patch(
        name="ollama-memory",
        server=True,
        about="the same, windows keep 4,096 tokens (gpt-oss)",
        fits=("0.3.36",),
        lay=_keep_more,
    ),
    Patch(
        name="koboldcpp",
        server=True,
        about="KoboldCpp of autumn 2026 (1.120 or later), read, not run",
        fits=("0.3.23", "0.3.36"),
        lay=laying(server=KOBOLD),
    ),
    Patch(
        name="kobold-1.104",
        server=True,
        about="over koboldcpp: as in 1.104 (December 2025)",
        fits=("0.3.23",),
        lay=laying(server=KOBOLD_1_104),
    ),
    Patch(
        name="kobold-1.99",
        server=True,
        about="over koboldcpp: as in 1.99.4 (September 2025)",
        fits=("0.3.23",),
        lay=laying(server=KOBOLD_1_99),
    ),
)


FAMILY: Final[Family[Rules, Options]] = Family(
    name="llama-cpp-python",
    about="llama.cpp's Python binding: one sequence per instance, caches of whole states",
    repository="abetlen/llama-cpp-python",
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    configuration=f"{__package__}.fields",
    engine=f"{__package__}.servers:start",
    releases=RELEASES,
    patches=PATCHES,
    options=Options,
    fields=FIELDS,
    kin=("llama.cpp",),
    has_slots=False,
)
