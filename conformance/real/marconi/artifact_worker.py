"""Workloads on the artifact's own tree, in a process of its own.

`radix_cache_hybrid.py` and `config_tuner.py` are the artifact's, unchanged. What they import and do
not use here (SciPy's ranks, tokenizers) is empty, and the tuner's processes are plain calls.
"""

import importlib
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from cachesim.prove.worker_side import Json, Real, Stub, answer_each, own_output

VERSIONS = {"lru": 1, "tuned": 2, "weighed": 3}


class _SerialPool:
    """Stands for a pool of processes: every task is called at once."""

    def __init__(self, **_: Real) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, task: Callable[..., Real], **given: Real) -> Stub:
        found = task(**given)
        return Stub(result=lambda: found)


def load(folder: str) -> Real:
    """The artifact's module."""
    for name in ("scipy", "scipy.stats", "transformers"):
        module: Any = types.ModuleType(name)
        module.rankdata = module.AutoTokenizer = module.AutoModelForCausalLM = None
        sys.modules[name] = module
    sys.path.insert(0, folder)
    tuner: Any = importlib.import_module("config_tuner")
    tuner.ProcessPoolExecutor = _SerialPool
    tuner.as_completed = iter
    return importlib.import_module("radix_cache_hybrid")


def tree_of(node: Real) -> Json:
    """All nodes below one: their tokens and subtrees."""
    return sorted([list(child.key), tree_of(child)] for child in node.children.values())


def play(module: Real, workload: Json) -> Json:
    """Results of the tree for each request, up to the artifact's own failure."""
    tree = module.RadixCache(
        capacity_bytes=workload["capacity"],
        evict_policy_version=VERSIONS[workload["policy"]],
        eff_weight=workload["weight"],
        bootstrap_multiplier=workload["multiplier"],
    )
    results: list[Json] = []
    for number, (prompt, tokens) in enumerate(workload["requests"]):
        try:
            reused, _, branches, agreed = tree.match_prefix(prompt)
            tree.insert(tokens, number, number)
        except Exception as error:
            results.append({"raised": f"{type(error).__name__}: {error}"[:200]})
            break
        results.append(
            {
                "reused": len(reused),
                "agreed": agreed,
                "branches": bool(branches),
                "weight": float(tree.eff_weight),
                "tree": tree_of(tree.root_node),
            }
        )
    return results


def main() -> None:
    """Run workloads until the input ends."""
    answers, module = own_output(), load(sys.argv[1])
    answer_each(answers, partial(play, module))
