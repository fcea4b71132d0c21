"""Former profiles of the servers that were patches of the engine below them; they still run."""

from collections.abc import Mapping, Sequence
from typing import Final

from cachesim.errors import ProfileError

FORMER: Final[Mapping[str, Mapping[str, str]]] = {
    "llama-cpp-python@0.3.23": {
        "koboldcpp": "koboldcpp@1.115.1",
        "kobold-1.104": "koboldcpp@1.104",
        "kobold-1.99": "koboldcpp@1.99.4",
    },
    "llama-cpp-python@0.3.36": {
        "koboldcpp": "koboldcpp@1.120",
        "ollama": "ollama-runner@0.24",
        "ollama-llamarunner": "ollama-runner@0.24+llamarunner",
        "ollama-memory": "ollama-runner@0.24+memory",
        "ollama+ollama-llamarunner+ollama-memory": "ollama-runner@0.24+llamarunner+memory",
    },
}
"""Engine and release -> its former patch, or several -> the profile of today."""


def today(engine: str, release: str, patches: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The server's profile that a former one names, and the other patches; None without one.

    Each patch laid all rules of its server: of several the last one counts.
    """
    known = {
        name: f"{at}+{name}"
        for at, rows in FORMER.items()
        if at.partition("@")[0] == engine
        for row in rows
        for name in row.split("+")
    }
    theirs = [each for each in patches if each in known]
    if not theirs:
        return None
    rows = FORMER.get(f"{engine}@{release}", {})
    server = rows.get("+".join(theirs)) or rows.get(theirs[-1])
    if server is None:
        msg = f"patch {theirs[-1]!r} does not fit {engine}@{release}; it fits {known[theirs[-1]]}"
        raise ProfileError(msg)
    return server, tuple(each for each in patches if each not in known)
