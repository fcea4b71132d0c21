"""Cache operations on one family, whose model may be one's own: what the pytest plug-in runs."""

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from cachesim.prove.transformers.process import Worker
from cachesim.prove.transformers.program import Model, program_of
from cachesim.prove.transformers.scripts import OPERATIONS, drawn, text_of
from cachesim.prove.worker_process import WorkerError
from cachesim.typed import Json

PLAIN: Final = "llama"
"""Family for comparison: its own failures are no fault of the model."""


class Outcome(NamedTuple):
    """The reason why an operation fails or is skipped; empty if its answers are uncached ones."""

    failed: str = ""
    skipped: str = ""


def result_of(python: Path, module: str | None, family: str, operation: str) -> Outcome:
    """The outcome of an operation; all of a family are run at once."""
    answer = _answer(python, module, family)
    problem = _problem_of(answer)
    if problem:
        first = operation == next(iter(OPERATIONS))
        return Outcome(failed=f"{family}: {problem}") if first else Outcome(skipped=problem)
    script = drawn(operation, family, 0)
    result = _of(answer, operation)
    if result["verdict"] in ("wrong", "crash") and family != PLAIN:
        plain = _answer(python, module, PLAIN)
        if not _problem_of(plain) and _of(plain, operation)["verdict"] == result["verdict"]:
            return Outcome(skipped=f"{result['verdict']} with {PLAIN} too: not the model's")
    match result["verdict"]:
        case "wrong":
            program = program_of(Model.of(family, answer), script)
            parts = [
                f"{text_of(script)}: off by {result['gap']:.2g} deviations of the cold logits",
                f"first difference: {result['place']}" if result["place"] else "",
                f"right with: {result['cause']}" if result["cause"] else "",
                f"\n{program}" if program and not module else "",
            ]
            return Outcome(failed="\n".join(filter(None, parts)))
        case "crash":
            return Outcome(failed=f"{text_of(script)}: {result['error']}, {result['place']}")
        case "limit":
            return Outcome(skipped=f"limit: {result['cause']}")
        case "refused" | "absent":
            return Outcome(skipped=f"refused: {result['error']}")
    return Outcome()


def _problem_of(answer: Json) -> str:
    if "unbuilt" in answer:
        return f"no tiny model: {answer['unbuilt']}"
    return "" if answer["causal"] else "an uncached run depends on later tokens, or on chance"


def _of(answer: Json, operation: str) -> Json:
    return answer["results"][list(OPERATIONS).index(operation)]


@cache
def _answer(python: Path, module: str | None, family: str) -> Json:
    scripts = [drawn(operation, family, 0) for operation in OPERATIONS]
    order = {"family": family, "attention": "eager", "scripts": scripts, "import": module}
    worker = Worker(python)
    try:
        return worker.order(order)
    except WorkerError:
        reason = f"the process of {python} ended; does it have torch and transformers?"
        return {"unbuilt": reason}
    finally:
        worker.close()
