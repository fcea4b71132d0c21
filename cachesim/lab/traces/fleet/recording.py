"""The KV events of simulated servers, written as real ones publish them.

    router receives   stored (keys)                      removed (keys)
    a line has        BlockStored, with the key before   BlockRemoved

A replica is a data-parallel rank; the hash of a block is the key of its prefix, on all the same.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from cachesim.lab.traces.fleet.fleet import Fleet
from cachesim.lab.traces.fleet.router import Arrival, Dispatcher, Replica, Router, prefix_keys
from cachesim.lab.traces.fleet.serving import play_fleet
from cachesim.lab.traces.replay import Cell
from cachesim.typed import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording(Router):
    """A router whose events are written too."""

    name: ClassVar[str] = "recording"
    follows: ClassVar[str] = "KVEventBatch of vLLM and SGLang"

    inner: Router
    write: Callable[[str], object]

    def start(self, replicas: Sequence[Replica]) -> Dispatcher:
        return _Recorder(self.inner.start(replicas), replicas, self.write)

    def as_text(self) -> str:
        return self.inner.as_text()


class _Recorder(Dispatcher):
    needs_events = True

    def __init__(
        self, inner: Dispatcher, replicas: Sequence[Replica], write: Callable[[str], object]
    ) -> None:
        super().__init__(replicas)
        self._inner, self._write = inner, write
        self._parents: dict[int, int | None] = {}
        self._sent: list[int] = [0 for _ in replicas]

    def choose(self, arrival: Arrival) -> int:
        number = self._inner.choose(arrival)
        text = arrival.prompt.copy()
        text += arrival.reply
        before: int | None = None
        for key in prefix_keys(text, self.replicas[number].unit):
            self._parents.setdefault(key, before)
            before = key
        return number

    def stored(self, replica: int, keys: Sequence[int], time: float) -> None:
        """Keys of one event follow each other, but for those that were held already."""
        events, chain = list[Json](), list[int]()
        for key in [*keys, None]:
            if chain and (key is None or self._parents.get(key) != chain[-1]):
                events.append(
                    {
                        "type": "BlockStored",
                        "block_hashes": chain,
                        "parent_block_hash": self._parents.get(chain[0]),
                        "token_ids": [],
                        "block_size": self.replicas[replica].unit,
                        "lora_id": None,
                        "medium": "GPU",
                    }
                )
                chain = []
            chain += [] if key is None else [key]
        self._send(replica, events, time)
        if self._inner.needs_events:
            self._inner.stored(replica, keys, time)

    def removed(self, replica: int, keys: Sequence[int], time: float) -> None:
        event = {"type": "BlockRemoved", "block_hashes": [*keys], "medium": "GPU"}
        self._send(replica, [event] if keys else [], time)
        if self._inner.needs_events:
            self._inner.removed(replica, keys, time)

    def left(self, replica: int) -> None:
        self._send(replica, [{"type": "AllBlocksCleared"}], 0.0)
        self._inner.left(replica)

    def prefilled(self, arrival: Arrival, replica: int) -> None:
        self._inner.prefilled(arrival, replica)

    def finished(self, arrival: Arrival, replica: int) -> None:
        self._inner.finished(arrival, replica)

    def _send(self, replica: int, events: list[Json], time: float) -> None:
        if events:
            batch = {
                "ts": time / 1000,
                "events": events,
                "data_parallel_rank": replica,
                "seq": self._sent[replica],
            }
            self._sent[replica] += 1
            self._write(json.dumps(batch, separators=(",", ":")) + "\n")


def record_events(cell: Cell, path: Path) -> None:
    """Run a cell again, and write the KV events of its servers."""
    fleet = cell.fleet or Fleet.of(1, "round-robin")
    with path.open("w", encoding="utf-8") as file:
        router = Recording(inner=fleet.router, write=file.write)
        play_fleet(replace(cell, fleet=replace(fleet, router=router)))
