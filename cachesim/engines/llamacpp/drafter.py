"""The companion context and what it proposes."""

from typing import Any, Protocol

from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.engines.llamacpp.options import Options
from cachesim.engines.llamacpp.slot import Slot
from cachesim.model.arithmetic import Network
from cachesim.units import Token


class Drafter(Protocol):
    """A companion: it follows every batch and proposes tokens."""

    context: Context

    def process(self, batch: Batch, target: Context) -> int: ...
    def draft(self, slot: Slot, most: int) -> list[Token]: ...
    def save(self, seq: int) -> Any: ...  # noqa: ANN401
    def rewind(self, seq: int, pos_max: int, saved: Any) -> None: ...  # noqa: ANN401


def open_drafter(
    options: Options,
    network: Network,
    model_draft: Any,
    target: Context,
    rules: MemoryRules,
) -> Drafter | None:
    return None
