"""The releases and patches of llama-cpp-python, as data."""

from typing import Final

from cachesim.engines.family import Package, Release
from cachesim.engines.history import History, Merged
from cachesim.engines.llama_cpp_python.rules import MEMORY, Rules
from cachesim.engines.llamacpp.memory.rules import B9094, B9509

PYTHON: Final = (
    ("0.3.23", "7d442abf", "a refused cut leads to a reset"),
    ("0.3.31", "f449e0553", "recurrent memory is reset unless a prompt continues it"),
    ("0.3.35", "4df29be4f", "an instance that holds exactly the prompt samples at once"),
    ("0.3.36", "0c1e57098", "a refused state leaves nothing of it in the memory"),
)
"""Each release, oldest first: its vendored llama.cpp commit, its changes."""

ALL: Final = tuple(name for name, *_ in PYTHON)

OLDEST: Final = Rules(
    memory=B9094,
    reset_clears_states=False,
    states_only_continue=False,
    embeds_unified=False,
    whole_prompt_matches=False,
)
"""The rules of 0.3.23."""

MERGED: Final[tuple[Merged, ...]] = (
    Merged(
        name="vendored-f449e0553",
        about="its llama.cpp is f449e0553, whose recurrent states roll back by a few tokens",
        landed="0.3.31",
        sets={"memory": B9509},
    ),
    Merged(
        pull=2108,
        about="a recurrent memory is reset unless a prompt continues it, and a reset clears it",
        landed="0.3.31",
        sets={"reset_clears_states": True, "states_only_continue": True},
    ),
    Merged(
        pull=2217,
        about="the sequences of an embedding instance share its cells; before, equal parts",
        landed="0.3.31",
        sets={"embeds_unified": True},
    ),
    Merged(
        pull=2306,
        about="the last token of a prompt is compared too: an instance that holds it samples",
        landed="0.3.35",
        sets={"states_only_continue": False, "whole_prompt_matches": True},
    ),
    Merged(
        name="vendored-0c1e57098",
        about="its llama.cpp is 0c1e57098, where a refused state leaves nothing of it",
        landed="0.3.36",
        sets={"memory": MEMORY},
    ),
)

HISTORY: Final = History(OLDEST, ALL, MERGED)
RELEASES: Final = tuple(
    Release(
        name=name,
        about=f"{about}; llama.cpp {commit}",
        rules=HISTORY.rules(name),
        upstream=f"v{name}",
        package=Package(name="llama-cpp-python", version=name),
    )
    for name, commit, about in PYTHON
)
