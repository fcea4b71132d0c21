"""Random workloads on a simulated server, every answer held against the cold recompute."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from cachesim.engines.base import Message, Reply, Request, Ticket
from cachesim.engines.family import Profile
from cachesim.engines.mlx_lm.generate.shared import PromptCache
from cachesim.engines.mlx_lm.options import FIELDS
from cachesim.engines.mlx_lm.server.engine import MlxLm
from cachesim.engines.mlx_lm.vocabulary import Insertion
from cachesim.model.build import build
from cachesim.typed import there_is
from cachesim.units import as_tokens
from cachesim.verify.oracle import Oracle
from conformance.real.vectors.mlx_server import ColdStates, spec_of


@dataclass(frozen=True, slots=True)
class Answered:
    """One request: its reply, and whether every row of its logits is the cold one."""

    reply: Reply
    same: bool | None
    alone: bool


@dataclass(frozen=True, slots=True)
class Journey:
    """The result of a workload."""

    answers: tuple[Answered, ...]
    insertions: tuple[Insertion, ...]

    @property
    def wrong(self) -> int:
        return sum(answer.same is False for answer in self.answers)

    @property
    def unsound(self) -> int:
        return sum(insertion.state_is_key is False for insertion in self.insertions)


@dataclass(slots=True)
class Watch:
    """Holds every stored state against one computed afresh, number by number."""

    by_numbers: list[bool] = field(default_factory=list)

    def of(self, engine: MlxLm) -> None:
        layers = engine.models[""].layout.recurrent
        cold = ColdStates(engine.network, layers)
        real = sum(not shape.marks for shape in engine.models[""].network.shapes)
        real -= real // 2 if layers.paired else 0

        def look(insertion: Insertion, cache: PromptCache) -> None:
            agree = cold.agree(insertion.key, cache[:real])
            self.by_numbers.append(all(each is not False for each in agree))

        engine.server.store.watch = look


def play(
    workload: Mapping[str, Any],
    *,
    patches: tuple[str, ...] = (),
    provenance: bool = True,
    watch: Watch | None = None,
) -> Journey:
    network = build(spec_of(workload["model"]), "ring")
    more = {"tokenizer": "words", "chat_template": workload["template"], "provenance": provenance}
    profile = Profile("mlx-lm", workload["version"], patches)
    engine = MlxLm(profile, network=network, options=workload["options"] | more)
    if watch is not None:
        watch.of(engine)
    oracle = Oracle(network)
    answers = [
        answer for group in workload["steps"] for answer in _play_group(engine, oracle, group)
    ]
    insertions = tuple(event for event in engine.events if isinstance(event, Insertion))
    return Journey(tuple(answers), insertions)


def play_staggered(workload: Mapping[str, Any], pauses: Sequence[int]) -> Journey:
    """The requests of a workload one after the other, so many turns of the server apart."""
    network = build(spec_of(workload["model"]), "ring")
    more = {"tokenizer": "words", "chat_template": workload["template"]}
    engine = MlxLm(
        Profile("mlx-lm", workload["version"]), network=network, options=workload["options"] | more
    )
    requests = [request for group in workload["steps"] for request in group]
    tickets = []
    for request, pause in zip(requests, cycle(pauses), strict=False):
        tickets.append(engine.submit(_request(engine, request)))
        for _ in range(pause):
            engine.step()
    engine.run()
    engine.check_integrity()
    oracle = Oracle(network)
    answers = tuple(_judged(engine, oracle, ticket, alone=False) for ticket in tickets)
    insertions = tuple(event for event in engine.events if isinstance(event, Insertion))
    return Journey(answers, insertions)


def _judged(engine: MlxLm, oracle: Oracle, ticket: Ticket, *, alone: bool) -> Answered:
    reply = there_is(engine.reply(ticket))
    same = None
    if reply.error is None and reply.approximated is None:
        same = bool((oracle.logits(reply.prompt, reply.generated) == reply.logits).all())
    return Answered(reply, same, alone)


def _play_group(engine: MlxLm, oracle: Oracle, group: list[Any]) -> Iterator[Answered]:
    tickets = [engine.submit(_request(engine, each)) for each in group]
    engine.run()
    engine.check_integrity()
    for ticket in tickets:
        yield _judged(engine, oracle, ticket, alone=len(group) == 1)


def _request(engine: MlxLm, request: Mapping[str, Any]) -> Request:
    return Request(
        prompt=engine.tokenizer.encode(request["text"]) if "text" in request else (),
        messages=tuple(Message(**message) for message in request.get("messages", ())),
        predict=request["max_tokens"],
        reply=as_tokens(request["reply"]),
        drafts=tuple(map(as_tokens, request["drafts"])) if "drafts" in request else None,
        options={each.name: request[each.name] for each in FIELDS if each.name in request},
    )
