"""Runs inside a real release's environment: plays operations on mlx-lm's own classes.

One line of JSON in, one line out: `{"group": ..., "args": ..., "ops": [...]}` plays a sequence on
fresh objects and answers with the list of its results, in the form of the vector files. Nothing
of cachesim is imported: the files beside this one are run by their paths, and need nothing but
the standard library and the release.
"""

import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = Any
Real: TypeAlias = Any  # modules, classes and objects of the release: known only when it runs
Operation: TypeAlias = dict[str, Any]

HERE = Path(__file__).parent
CACHES = runpy.run_path(str(HERE / "class_worker_caches.py"))
STORE = runpy.run_path(str(HERE / "class_worker_store.py"))


def main() -> None:
    """Play sequences until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    mx = importlib.import_module("mlx.core")
    classes = importlib.import_module("mlx_lm.models.cache")
    for line in sys.stdin:
        sequence = json.loads(line)
        player = _player(sequence, mx, classes)
        results = []
        for op in sequence["ops"]:
            results.append(_played(player, op))
            if sequence.get("until_error") and "error" in results[-1]:
                break
        answers.write(json.dumps(results) + "\n")


def _player(sequence: Json, mx: Real, classes: Real) -> Real:
    if sequence["group"] == "trie":
        return STORE["TriePlayer"](classes)
    if sequence["group"] == "store":
        return STORE["StorePlayer"](mx, classes, sequence["args"])
    return CACHES["CachePlayer"](mx, classes)


def _played(player: Real, op: Operation) -> dict[str, Json]:
    try:
        result: dict[str, Json] = {"ret": getattr(player, f"do_{op['op']}")(op)}
    except Exception as error:
        result = {"error": type(error).__name__}
    left: dict[str, Json] = player.left_behind(op)
    return result | left


if __name__ == "__main__":
    main()
