"""`cachesim real vllm --runner`: the state that each row of a batch is computed from.

Model Runner V2's own preparation and metadata builders on a CPU, beside the rules of the simulated
runner: requests with drafts and without, what was accepted of the drafts before, prefill rows.
"""

from dataclasses import dataclass
from random import Random
from typing import Any, Final

from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.groups import cdiv
from cachesim.engines.vllm.rules import RunnerRules
from cachesim.engines.vllm.runner import speculative_offset
from cachesim.real.playing import console, table_of_numbers, watched
from cachesim.real.vllm.scheduler import SCHEDULER
from cachesim.real.worker_process import WorkerError, WorkerProcess

WORKER: Final = "cachesim.real.vllm.rows_worker"
KINDS: Final = ("delta", "ssm")
BLOCK: Final = 16
LONGEST: Final = 12  # blocks of a request

Batch = dict[str, Any]


def draw_batch(seed: int, number: int) -> Batch:
    """A batch of rows: those that decode first, as the runner orders them."""
    rng = Random(f"vllm rows {seed} {number}")
    drafts = rng.choice((1, 2, 3))
    speculating = rng.random() < 0.7  # else no request of the step has drafts
    rows = []
    for place in range(rng.randint(1, 5)):
        count = rng.randint(0, drafts) if speculating else 0
        end = rng.randint(BLOCK, BLOCK * 6)
        rows.append(
            {"tokens": 1 + count, "drafts": count, "end": end, "reading": False}
            | {"accepted": rng.randint(1, 1 + drafts), "table": _table(place)}
        )
    if rng.random() < 0.4:
        tokens = rng.randint(drafts + 2, BLOCK)
        rows.append(
            {"tokens": tokens, "drafts": 0, "end": tokens + BLOCK, "reading": True}
            | {"accepted": 1, "table": _table(len(rows))}
        )
    groups = [{"kind": "full", "block": BLOCK}, {"kind": "mamba", "block": BLOCK, "mode": "align"}]
    config = {"groups": groups, "drafts": drafts, "blocks": 100, "eagle": number % 2 == 1}
    return {"id": f"rows-{number}", "config": config, "block": BLOCK, "mode": "align", "rows": rows}


def _table(place: int) -> list[int]:
    return [1 + place * LONGEST + index for index in range(LONGEST)]


def read_by(rules: RunnerRules, kind: str, batch: Batch) -> list[int]:
    """The block that each row is computed from, by the simulated runner's rules."""
    found = []
    for row in batch["rows"]:
        known = {"accepted": row["accepted"], "drafts": row["drafts"]}
        offset = speculative_offset(rules, kind, drafting=True, **known)
        found.append(row["table"][cdiv(row["end"], batch["block"]) - 1 + offset])
    return found


@dataclass(slots=True)
class Compared:
    """How many batches the runner and the rules read alike, by kind of layer."""

    release: str
    batches: int = 0
    rows: int = 0
    agreeing: dict[str, int] | None = None
    elsewhere: int = 0  # batches that the release runs on Model Runner V1
    difference: tuple[str, str, list[int], list[int]] | None = None

    def count(self, batch: Batch, real: dict[str, Any], rules: RunnerRules) -> None:
        """Hold one batch's blocks against each other."""
        if not real["v2"]:
            self.elsewhere += 1
            return
        self.batches += 1
        self.rows += len(batch["rows"])
        found = self.agreeing = self.agreeing or dict.fromkeys(KINDS, 0)
        for kind in KINDS:
            ours = read_by(rules, kind, batch)
            found[kind] += real[kind] == ours
            if real[kind] != ours and self.difference is None:
                self.difference = (batch["id"], kind, real[kind], ours)

    def show(self) -> int:
        """The counts, and the first difference; the exit status."""
        title = f"vllm {self.release}: states read by Model Runner V2"
        shown = table_of_numbers(title, "layers", "batches", "rows", "agreeing")
        for kind, agreeing in (self.agreeing or {}).items():
            shown.add_row(kind, str(self.batches), str(self.rows), str(agreeing))
        console().print(shown)
        if self.elsewhere:
            console().print(f"{self.elsewhere} batches run on Model Runner V1: not compared")
        if self.difference is not None:
            name, kind, real, ours = self.difference
            console().print(f"first difference, {name}, {kind}: real {real}, simulated {ours}")
        return 0 if self.difference is None and self.batches else 1


def compare_rows(release: str, seed: int, numbers: range, rules: RunnerRules | None = None) -> int:
    """Play batches on a release's runner and hold the rules against it; the exit status."""
    known = FAMILY.release(release)
    core = SCHEDULER.core_of(known.name)
    core.ready()
    found = Compared(known.name)
    with WorkerProcess(
        f"vllm {known.name}", core.python, SCHEDULER.flags, WORKER, str(core.folder)
    ) as process:
        for number in watched(numbers):
            batch = draw_batch(seed, number)
            answer = process.order(batch)
            if "raised" in answer:
                msg = f"vllm {known.name}: {answer['raised']}"
                raise WorkerError(msg)
            found.count(batch, answer["results"], rules or known.rules.runner)
    return found.show()
