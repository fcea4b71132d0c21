"""What happens to the whole server: other adapters, a new start, sleep."""

from dataclasses import dataclass

from cachesim.engines.events import Event
from cachesim.model.adapters import Strengths


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptersChanged(
    Event,
    tone="loss",
    says="slot {slot} is emptied of {n_tokens} tokens: the request brings adapters of its own",
):
    """A request's own set of adapters is not the slot's."""

    n_tokens: int
    lora: Strengths


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptersSet(
    Event, tone="plain", says="the strengths of the server's own adapters are changed"
):
    """The server's own set of adapters was replaced."""

    lora: Strengths


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRestarted(
    Event,
    tone="loss",
    says="the server is started again: slots and prompt cache are empty, slot files stay",
):
    """The process ended and another one was started with the same flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSlept(
    Event,
    tone="loss",
    says="the idle server sleeps: slots and prompt cache are empty when it wakes",
):
    """Nothing was asked for as long as `--sleep-idle-seconds` says."""
