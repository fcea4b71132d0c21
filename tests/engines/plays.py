"""Plays on simulated servers: what is sent to one, call by call, and all that comes back.

A play is a line of `plays/ENGINE.jsonl`: its name, the server, and the calls in order. Prompts are
texts of tokens, `0-99 700`; a request is named by its number among those that were submitted.
`CACHESIM_UPDATE_SNAPSHOTS=1` refreshes `plays/ENGINE.txt`, which holds the answers.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from cachesim.engines.base import Engine, Message, Reply, Request, Ticket
from cachesim.errors import CachesimError, UpstreamAbort, UpstreamEndless
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec, Sizes
from cachesim.play.session import SlotFiles
from cachesim.units import as_tokens

FOLDER: Final = Path(__file__).with_name("plays")
RULE: Final = "-" * 100


def cases(file: Path) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in map(json.loads, file.read_text().splitlines())}


def answers(file: Path) -> dict[str, str]:
    """The answers that a file holds, by the name of the play."""
    parts = file.read_text().split(f"{RULE}\n")
    return dict(part.split("\n", 1) for part in parts if part)  # type: ignore[misc]


def digest(value: object) -> str:
    return sha256(json.dumps(value, default=str).encode()).hexdigest()[:12]


def in_runs(tokens: Iterable[int]) -> str:
    """Tokens as a text: `0-99 700`."""
    runs = groupby(enumerate(tokens), key=lambda pair: pair[1] - pair[0])
    found = ([token for _, token in run] for _, run in runs)
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found)


def from_runs(text: str) -> list[int]:
    found: list[int] = []
    for run in text.split():
        first, dash, last = run.partition("-")
        found += range(int(first), int(last) + 1) if dash else [int(first)]
    return found


def request_of(given: Mapping[str, Any]) -> Request:
    fields = dict(given)
    for name in ("prompt", "reply"):
        if name in fields:
            fields[name] = as_tokens(from_runs(fields[name]))
    if "drafts" in fields:
        fields["drafts"] = tuple(as_tokens(from_runs(draft)) for draft in fields["drafts"])
    if "messages" in fields:
        fields["messages"] = tuple(
            Message(role=role, content=content) for role, content in fields["messages"]
        )
    return Request(**{"prompt": ()} | fields)


def model_of(given: Mapping[str, Any]) -> ModelSpec:
    """A preset, and the fields that differ from it."""
    fields = {**given}
    if "layers" in fields:
        fields["layers"] = tuple(fields["layers"])
    if fields.get("sizes"):
        fields["sizes"] = Sizes(**fields["sizes"])
    return replace(preset(fields.pop("preset")), **fields)


def in_words(reply: Reply, *, exact: bool) -> str:
    """One reply on a line; logits by their digest where the arithmetic is exact."""
    parts = [f"cached {reply.cached}, processed {reply.processed}"]
    parts += [f"slot {reply.slot}"] if reply.slot is not None else []
    parts += [f"equal {reply.equal} with {reply.equal_with}"] if reply.equal else []
    parts += ["truncated"] if reply.truncated else []
    parts += [f"{reply.accepted} of {reply.drafted} drafts accepted"] if reply.drafted else []
    parts += [f"approximated: {reply.approximated}"] if reply.approximated else []
    parts += [f"error: {reply.error}"] if reply.error else []
    parts += [f"{len(reply.generated)} generated"]
    parts += [digest([list(map(int, reply.generated)), reply.logits.tolist()])] if exact else []
    parts += [f"why {digest([dict(loss.detail) for loss in reply.losses])}"] if reply.losses else []
    rules = (f"{loss.rule} {loss.before} to {loss.after}" for loss in reply.losses)
    return ", ".join(parts) + "".join(f"; {rule}" for rule in rules)


class Play:
    """One server, and what was sent to it."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.exact = case["arithmetic"] != "float"
        self.engine = Engine.create(
            case["profile"],
            model=model_of(case["model"]),
            options=case["options"],
            arithmetic=case["arithmetic"],
            store=SlotFiles(),
        )
        self.tickets: list[Ticket] = []
        self.told: dict[int, int] = {}

    def call(self, name: str, *given: Any) -> Iterator[str]:
        """One call, and the replies that are there after it."""
        if name == "submit":
            self.tickets.append(self.engine.submit(request_of(given[0])))
        elif name == "step":
            for _ in range(given[0]):
                self.engine.step()
        elif name == "cancel":
            self.engine.cancel(self.tickets[given[0]])
        else:
            ticket = getattr(self.engine, name)(*given)
            if isinstance(ticket, Ticket):
                self.tickets.append(ticket)
        yield from self.answered()

    def answered(self) -> Iterator[str]:
        """The replies that have come since the last call."""
        for number, ticket in enumerate(self.tickets):
            several = getattr(self.engine, "replies", None)
            one = self.engine.reply(ticket)
            found: Sequence[Reply] = several(ticket) if several else [one] if one else []
            for reply in found[self.told.get(number, 0) :]:
                yield f"{number}: {in_words(reply, exact=self.exact)}"
            self.told[number] = max(len(found), self.told.get(number, 0))

    def end(self) -> Iterator[str]:
        """The server's content and events."""
        events = [{**event.as_dict(), "sentence": ""} for event in self.engine.events]
        yield f"holds {digest(self.engine.snapshot())}, {len(events)} events {digest(events)}"


def played(case: Mapping[str, Any]) -> str:
    """All that a play answers; the error that ends it."""
    lines: list[str] = []
    try:
        play = Play(case)
    except CachesimError as error:
        return f"{type(error).__name__}: {error}\n"
    for name, *given in case["calls"]:
        try:
            lines += play.call(name, *given)
        except (CachesimError, UpstreamAbort, UpstreamEndless) as error:
            lines += [f"{name}: {type(error).__name__}: {error}", *play.answered()]
    lines += play.end()
    return "\n".join(lines) + "\n"
