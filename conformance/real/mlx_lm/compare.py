"""mlx-lm's own server beside the simulator: the same random requests, field by field."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Final, TypeAlias

from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.prove.mlx_lm.process import RealProcess
from cachesim.prove.mlx_lm.server import WORKER, RealMlxServer
from cachesim.prove.playing import Difference, Override, Workload, overrides_of
from cachesim.prove.worker_side import differences
from conformance.real.agreement import Agreement, differing_defaults
from conformance.real.fit import Played
from conformance.real.mlx_lm.classes import played_of
from conformance.real.mlx_lm.server_workloads import draw_workload
from conformance.real.vectors.mlx_server import mismatch

TRIALS: Final = 60


Draw: TypeAlias = Callable[[str, int, int], Workload]
"""The workload of a release, a seed and a number."""


def count(agreement: Agreement, line: Workload, found: Difference | None) -> None:
    """Add a workload; requests after a difference count as disagreeing."""
    requests = sum(map(len, line["steps"]))
    answers = [request["answer"] for group in line["results"] for request in group["requests"]]
    insertions = [each for group in line["results"] for each in group["inserted"]]
    agreement.add(
        line["model"]["family"],
        line,
        found,
        workloads=1,
        requests=requests,
        agreeing=requests if found is None else found.step,
        wrong_answers=answers.count("diverged"),
        wrong_states=sum(
            any(layer["state_is_key"] is False for layer in insertion["layers"])
            for insertion in insertions
        ),
    )


def compare_server(
    release: str,
    seed: int,
    workloads: int,
    *,
    first: int = 0,
    draw: Draw = draw_workload,
    record: Callable[[Played[MlxRules]], None] = lambda _: None,
) -> Agreement:
    """Random workloads on the real server and on the simulator; the first difference is shrunk."""
    agreement = Agreement(title=f"mlx-lm {release}: server, seed {seed}", kinds="model")
    with RealMlxServer(release) as real:
        for number in range(first, first + workloads):
            workload = draw(release, seed, number)
            line = real.play(workload)
            found = mismatch(line)
            is_first = found is not None and agreement.difference is None
            count(agreement, line, found)
            record(played_of(line, sum(map(len, line["steps"])), mismatch))
            if is_first and found is not None:
                agreement.difference = shrunk(workload, found, lambda w: mismatch(real.play(w)))
    return agreement


def shrunk(
    workload: Workload, found: Difference, check: Callable[[Workload], Difference | None]
) -> tuple[Workload, Difference]:
    """A smaller workload that still differs: fewer groups, fewer requests, no options."""
    for _ in range(TRIALS):
        for smaller in _smaller(workload):
            again = check(smaller)
            if again is not None:
                workload, found = smaller, again
                break
        else:
            break
    return workload, found


def _smaller(workload: Workload) -> Iterator[Workload]:
    steps = workload["steps"]
    for index in reversed(range(len(steps))):
        if len(steps) > 1:
            yield workload | {"steps": steps[:index] + steps[index + 1 :]}
    for index, group in enumerate(steps):
        for place in range(len(group)):
            if len(group) > 1:
                fewer = deepcopy(steps)
                del fewer[index][place]
                yield workload | {"steps": fewer}
    for name in workload["options"]:
        if name.endswith(("draft_model", "draft_tokens")):
            continue  # requests bring drafts
        fewer_options = {k: v for k, v in workload["options"].items() if k != name}
        yield workload | {"options": fewer_options}


OVERRIDES: Final[Mapping[str, str]] = {
    "port": "any free port",
    "simulator: chat_template": "empty is the tokenizer's own, which is chatml in these tools",
}
"""Flags, and defaults of the simulator's options, that differ from the parser's -> why."""


PRETENDED: Final = {
    "the model": (
        "that of the command line",
        "a tiny one of the same class with random weights, and a tokenizer of words",
        "caches and stores know shapes and tokens alone",
    ),
    "the sampler": (
        "make_sampler, by a request's temperature",
        "a sampler that returns the reply of the workload",
        "a workload does not depend on weights; log probabilities are the model's own",
    ),
    "TimeBudget": (
        "seconds of prefill or decoding before the generation thread looks for requests",
        "a count of turns, which a workload names",
        "which turn a request is read in would be chance",
    ),
    "Queue": (
        "requests in the order in which HTTP threads get there",
        "requests in the order of the workload",
        "the order would be chance",
    ),
    "LRUPromptCache": (
        "the store",
        "the same, watched",
        "what is inserted and fetched is written down, and nothing else is done",
    ),
}
"""Settings without a flag: a server's default, ours, why no result depends on it."""


def overrides(release: str) -> list[Override]:
    """Flags that differ: of the server, and of the simulator's defaults."""
    with RealProcess(release, WORKER) as real:
        started, used = real.order({"settings": {}})
    rows = (*differences(started, used), *differing_defaults(FAMILY, release, started))
    return overrides_of(rows, OVERRIDES, PRETENDED)
