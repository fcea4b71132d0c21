"""`cachesim real marconi`: the artifact's own tree beside the simulated one."""

import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cachesim.engines.marconi.family import FAMILY
from cachesim.engines.marconi.options import MarconiOptions
from cachesim.engines.marconi.tree import Costs, Node, Tree
from cachesim.errors import ScenarioError
from cachesim.prove.worker_process import ModuleProcess
from cachesim.units import as_tokens
from conformance.real.agreement import Agreement, first_difference

WORKER: Final = "conformance.real.marconi.artifact_worker"
NEEDED: Final = ("radix_cache_hybrid.py", "config_tuner.py", "utils.py")


def real_marconi(*, artifact: Path, seed: int = 0, workloads: int = 100) -> int:
    """Run random sequences on the artifact's own tree and on the simulated one.

    Hits, branching, the tuned weight and every node must be the same after each request. The
    artifact is a folder of its repository (ruipeterpan/marconi), whose licence forbids shipping it.

    Example: cachesim real marconi --artifact ../marconi --workloads 250

    Parameters
    ----------
    artifact
        The folder with `radix_cache_hybrid.py`.
    seed
        The seed of everything drawn at random.
    workloads
        How many: each is a fresh tree and 5 to 60 requests.

    """
    missing = [name for name in NEEDED if not (artifact / name).is_file()]
    if missing:
        msg = f"{artifact} has no {missing[0]}: name a checkout of github.com/ruipeterpan/marconi"
        raise ScenarioError(msg)
    title = f"marconi's artifact and the simulated tree, seed {seed}"
    agreement = Agreement(title=title, kinds="policy")
    python, folder = Path(sys.executable), str(artifact.resolve())
    with ModuleProcess("the artifact", python, WORKER, folder) as process:
        for number in range(workloads):
            workload = draw(seed, number)
            real = process.order(workload)
            simulated = list(play(workload, len(real)))
            if real and "raised" in real[-1]:  # the artifact itself fails on it
                real, simulated = real[:-1], simulated[:-1]
            found = first_difference(real, simulated)
            agreement.add(
                workload["policy"],
                number,
                found,
                workloads=1,
                requests=len(real),
                agreeing=found is None,
            )
    return agreement.show()


def draw(seed: int, number: int) -> dict[str, Any]:
    """A capacity, a policy, and conversations that grow, branch and are sent again."""
    rng = random.Random(f"{seed}/{number}")
    costs = Costs(MarconiOptions())
    policy = rng.choice(("lru", "tuned", "weighed"))
    states = rng.choice((4, 8, 20, 1000)) * costs.state_bytes()
    requests, known = [], [[0]]
    for _ in range(rng.randint(5, 60)):
        base = rng.choice(known[-10:])
        cut = rng.choice((len(base), rng.randint(0, len(base))))
        few = rng.choice((3, 1000))
        prompt = base[:cut] + [rng.randrange(few) for _ in range(rng.randint(1, 60))]
        tokens = prompt + [rng.randrange(1000) for _ in range(rng.randint(0, 30))]
        known.append(tokens)
        requests.append([prompt, tokens])
    return {
        "capacity": states + rng.choice((0, 100, 2000)) * costs.keys_bytes(1),
        "policy": policy,
        "weight": rng.choice((0.0, 0.3, 1.5)) if policy == "weighed" else 0.0,
        "multiplier": rng.choice((1, 2, 5)),
        "requests": requests,
    }


def play(workload: Mapping[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """The first requests on the simulated tree, in the form of the artifact's results."""
    options = MarconiOptions(
        capacity_bytes=workload["capacity"],
        policy=workload["policy"],
        eff_weight=workload["weight"],
        bootstrap_multiplier=workload["multiplier"],
    )
    tree = Tree(options, FAMILY.releases[0].rules)
    for prompt, tokens in workload["requests"][:count]:
        match = tree.look_up(as_tokens(prompt))
        tree.insert(as_tokens(prompt), as_tokens(tokens))
        tree.check()
        yield {
            "reused": match.reusable,
            "agreed": match.agreed,
            "branches": match.branches,
            "weight": tree.weight,
            "tree": _nodes(tree.root),
        }


def _nodes(node: Node) -> list[Any]:
    return sorted([list(child.key), _nodes(child)] for child in node.children.values())
