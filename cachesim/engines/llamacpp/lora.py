"""Adapters (LoRA) of llama-server: per request, for the whole server, and what the cache does.

Traps, seen on b9093, b9538 and b11549 alike. A request that brings no `lora` takes the server's
own set and keeps whatever its slot holds. So does one whose set equals what the slot's last request
had, although what was loaded into the slot since was computed under another. Neither the prompt
cache in RAM nor a slot file knows of adapters, and `POST /lora-adapters` empties nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from cachesim.engines.llamacpp import causes
from cachesim.engines.llamacpp.events import AdaptersChanged, AdaptersSet
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot
from cachesim.engines.llamacpp.task import Task
from cachesim.errors import OptionError
from cachesim.model.adapters import Strengths


def parse_lora(given: object, names: Sequence[str]) -> Strengths | None:
    """Read a set as the HTTP side does (upstream: `parse_lora_request`); None where it is empty.

    Adapters that are not named have strength 0. Trap: an empty list is as good as none at all.
    """
    if not isinstance(given, list | tuple) or not all(isinstance(each, Mapping) for each in given):
        msg = "request field 'lora' is no list of tables; write [{ id = 0, scale = 1.0 }]"
        raise OptionError(msg)
    strengths = [0.0] * len(names)
    for each in given:
        number, scale = each.get("id"), each.get("scale", 0.0)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(names):
            known = f"ids from 0 to {len(names) - 1}" if names else "no adapters: set option 'lora'"
            msg = f"request field 'lora' names adapter {number!r}; the server has {known}"
            raise OptionError(msg)
        if isinstance(scale, bool) or not isinstance(scale, int | float):
            msg = (
                f"request field 'lora': the scale of adapter {number} is {scale!r}; write a number"
            )
            raise OptionError(msg)
        strengths[number] = float(scale)
    return tuple(strengths) if given else None


def take_over(server: ServerContext, slot: Slot, task: Task) -> None:
    """A slot takes its task's adapters over (upstream: `launch_slot_with_task`).

    Only a set of the request's own that differs from the slot's empties the slot's tokens; the
    memory follows when the prompt starts.
    """
    wanted = task.params.lora
    if wanted is None:
        slot.lora = server.lora
        return
    if wanted == slot.lora:
        return
    server.emit(
        AdaptersChanged(slot=slot.id, task=task.id, n_tokens=slot.prompt.n_tokens, lora=wanted)
    )
    task.ledger.apply(causes.ADAPTERS_CHANGED, 0, slot=int(slot.id))
    slot.prompt.tokens.clear()
    slot.prompt.approximate = None
    if server.rules.slots.clear_drops_checkpoints:
        slot.prompt.checkpoints.clear()
    slot.lora = wanted


def set_lora(server: ServerContext, task: Task) -> None:
    """`POST /lora-adapters`: another set for all who bring none (`SERVER_TASK_TYPE_SET_LORA`)."""
    server.lora = task.strengths
    server.emit(AdaptersSet(lora=task.strengths))


def apply(server: ServerContext, strengths: Strengths) -> None:
    """Set the adapters of the next decode (upstream: `common_set_adapter_lora`)."""
    if server.adapters is not None:
        server.adapters.strengths = strengths


def as_field(strengths: Sequence[float]) -> list[dict[str, Any]]:
    """Strengths as a request writes them."""
    return [{"id": number, "scale": scale} for number, scale in enumerate(strengths)]
