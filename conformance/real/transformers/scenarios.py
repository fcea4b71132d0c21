"""A scenario on a release's own scheduler, cache and batch processor, beside the simulated engine.

Each call of the session to the simulated server goes to the real classes too:

    submit      a request in the queue
    step        a batch, whose tokens are the simulated reply's
    cancel      a name in the queue of cancellations

No model runs there, so no answer is proven; the end of a server is.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from cachesim.engines.base import Request, Ticket
from cachesim.engines.family import Profile
from cachesim.engines.transformers.family import FAMILY
from cachesim.engines.transformers.requests import FutureRequestState, RequestState
from cachesim.engines.transformers.server import Transformers
from cachesim.errors import ScenarioError, UpstreamAbort, UpstreamEndless
from cachesim.play.session import ABORTED, ENDLESS, Record, Session
from cachesim.prove.hunt.proof import by_metadata
from cachesim.prove.playing import Stage, StepPlayed
from cachesim.scenario.format import Scenario
from cachesim.typed import Json
from conformance.real.agreement import first_difference
from conformance.real.transformers.caches import KINDS, content_of, json_of, started, taken_of
from conformance.real.transformers.environments import environment_for

FURTHER: Final = 20
"""Batches after the last one of a server that answers nobody: all of nothing."""


class Calls:
    """Calls of a simulated server as steps of a workload, and each batch's result."""

    def __init__(self, engine: Transformers) -> None:
        self.engine = engine
        self.steps: list[Json] = []
        self.batches: list[Json] = []
        real: Any = engine
        for name in ("submit", "step", "cancel"):
            setattr(real, name, partial(getattr(self, f"_{name}"), getattr(engine, name)))
        self._prepare = engine.processor.prepare_next_batch
        real.processor.prepare_next_batch = self._prepared
        self._update = engine.processor.update_batch
        real.processor.update_batch = self._updated
        self._taken: Json = []
        self.replies: list[list[int]] = []  # prompt and tokens of each request, by its number

    def _submit(self, call: Callable[[Request], Ticket], request: Request) -> Ticket:
        ticket = call(request)
        state = self.engine.scheduler.waiting[int(ticket)]
        self._add(add=[[state.id, list(state.initial), state.most]])
        self.replies.append(list(state.initial))
        return ticket

    def _cancel(self, call: Callable[[Ticket], None], ticket: Ticket) -> None:
        self._add(cancel=[int(ticket)])
        call(ticket)

    def _step(self, call: Callable[[], bool]) -> bool:
        self._add(batches=1)
        try:
            pending = call()
        except UpstreamEndless:
            self.steps[-1]["batches"] += FURTHER
            idle = {"idle": True, **content_of(self.engine.cache, self.engine.scheduler)}
            self.batches += [json_of(idle)] * (1 + FURTHER)
            raise
        except UpstreamAbort as abort:
            self.batches.append({"raised": abort.why})
            raise
        taken = {"batch": self._taken} if pending else {"idle": False}
        content = content_of(self.engine.cache, self.engine.scheduler)
        self.batches.append(json_of({**taken, **content}))
        return pending

    def _prepared(self) -> list[FutureRequestState]:
        batch = self._prepare()
        self._taken = taken_of(batch)
        return batch

    def _updated(
        self, batch: Sequence[FutureRequestState], tokens: Sequence[int]
    ) -> list[RequestState]:
        sampling = [each.state.id for each in batch if each.has_new_token]
        for number, token in zip(sampling, tokens, strict=True):
            self.replies[number].append(token)
        return self._update(batch, tokens)

    def _add(self, **given: Json) -> None:
        self.steps.append({"add": [], "cancel": [], "batches": 0} | given)


def watched(scenario: Scenario, release: str) -> tuple[list[Record], Json, list[Json]]:
    """Run a scenario on the simulator: its steps, its calls as a workload, and its batches."""
    session = Session(scenario, Profile(FAMILY.name, release), arithmetic="ring")
    engine: Any = session.engine
    calls = Calls(engine)
    records = list(session.run())
    spec, options = session.network.spec, engine.options
    named = {kind: name for name, kind in KINDS.items()}
    workload = {
        "layers": [named[layer] for layer in spec.layers],
        "window": spec.window,
        "head_dim": spec.kv_heads * spec.head_size,
        "page": options.page_size,
        "num_blocks": options.num_blocks,
        "max_batch_tokens": options.max_batch_tokens,
        "max_requests": options.max_requests_per_batch,
        "sharing": options.allow_block_sharing,
        "scheduler": options.scheduler_type,
        "margin": None if options.safety_margin < 0 else options.safety_margin,
        "steps": calls.steps,
        "replies": calls.replies,
    }
    return records, workload, calls.batches


def play_scenario(scenario: Scenario, release: str) -> tuple[StepPlayed, ...]:
    """Run a scenario on the simulator, then on the real classes with the same tokens."""
    if scenario.engine.name != FAMILY.name:
        raise ScenarioError(f"{scenario.name} is for {scenario.engine.name}, not for {FAMILY.name}")
    records, workload, batches = watched(scenario, release)
    with started(environment_for(release).ready()) as process:
        real = process.order(workload)
    same = first_difference(real, batches) is None
    return tuple(_played(record, real, batches, same=same) for record in records)


def _played(record: Record, real: Json, simulated: Json, *, same: bool) -> StepPlayed:
    starts = [_start(batches, record.ticket) for batches in (real, simulated)]
    return StepPlayed(
        name=record.name,
        prompt_tokens=len(record.prompt),
        real=real,
        simulated=record,
        agrees=same,
        confirmed=same if record.error in (ABORTED, ENDLESS) else None,
        cells=(*starts, record.error or ""),
    )


def _start(batches: Json, ticket: Ticket | None) -> str:
    chunks = (chunk for batch in batches for chunk in batch.get("batch", ()))
    return next((str(start) for number, start, *_ in chunks if number == ticket), "")


STAGE: Final = Stage(
    family=FAMILY,
    environment_for=environment_for,
    play=play_scenario,
    heads=("cached", "simulated", "error"),
)

PROVE: Final = by_metadata(play_scenario)
