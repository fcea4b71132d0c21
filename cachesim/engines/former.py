"""Former profiles, which still run: servers that were patches of the engine below them, and patches
that said the same as a merged change taken back.
"""

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
    "mlx-lm@0.31.3": {
        "omlx": "omlx@2026-09",
        "omlx-2762": "omlx@2026-09+2762",
        "omlx-4096": "omlx@2026-09+blocks-4096",
        "omlx-no-boundaries": "omlx@2026-09+blocks-4096+no-boundaries",
        "vllm-mlx": "vllm-mlx@0.6.0",
        "vllm-mlx-mllm": "vllm-mlx@0.6.0+mllm",
        "vllm-mlx-718": "vllm-mlx@0.5.0",
        "vllm-mlx-order": "vllm-mlx@0.6.0+order",
        "vllm-mlx-whole": "vllm-mlx@0.6.0+whole",
        "rapid-mlx": "rapid-mlx@0.12.5",
        "rapid-mlx-unlisted": "rapid-mlx@0.12.5+unlisted",
        "mlx-engine": "lm-studio@before-352+one-request",
        "mlx-engine-batched": "lm-studio@before-352",
        "mlx-engine-disk": "lm-studio@after-352",
        "mlx-engine-disk-4096": "lm-studio@after-352+context-4096",
    },
    "mlx-lm@0.32.2": {
        "ollama": "ollama@0.33.0+drafter",
        "ollama-no-drafter": "ollama@0.33.0",
        "ollama-lazy": "ollama@0.32.5",
    },
}
"""Engine and release -> its former patch, or several -> the profile of today."""


TAKEN_BACK: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": {
        "no-39273": "39273",
        "no-44409": "44409",
        "no-46281": "states-without-margin",
        "no-55601": "55601",
    },
    "sglang": {"no-27291": "27291", "no-31643": "31643"},
}
"""Engine -> the former name of a patch -> the merged change that it took back."""


def signed(engine: str, patches: Sequence[str], own: Sequence[str]) -> list[str]:
    """Patches with the change that a former one took back; its `own` patches are still laid."""
    back = TAKEN_BACK.get(engine, {})
    return [f"-{back[name]}" if name in back and name not in own else name for name in patches]


def former_patches(engine: str) -> dict[str, str]:
    """Each former patch of an engine -> the profile that had it."""
    return {
        name: f"{at}+{name}"
        for at, rows in FORMER.items()
        if at.partition("@")[0] == engine
        for row in rows
        for name in row.split("+")
    }


def today(engine: str, release: str, patches: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The server's profile that a former one names, and the other patches; None without one.

    Each patch laid all rules of its server: of several the last one counts.
    """
    known = former_patches(engine)
    theirs = [patch for patch in patches if patch in known]
    if not theirs:
        return None
    rows = FORMER.get(f"{engine}@{release}", {})
    server = rows.get("+".join(theirs)) or rows.get(theirs[-1])
    if server is None:
        msg = f"patch {theirs[-1]!r} does not fit {engine}@{release}; it fits {known[theirs[-1]]}"
        raise ProfileError(msg)
    return server, tuple(patch for patch in patches if patch not in known)
