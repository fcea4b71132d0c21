"""What befalls checkpoints: made, asked, restored, erased, kept, cut and dropped."""

from dataclasses import dataclass
from typing import Final

from cachesim.engines.events import Event, Tone

ERASED: Final = "is erased. Rule: erase if {rule}. Here {numbers} is true"
"""What is said of a checkpoint that does not pass the erasure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEvent(Event):
    """Something befalls a checkpoint; these are its numbers."""

    pos_min: int
    pos_max: int
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpared(
    CheckpointEvent,
    tone="warn",
    says=(
        "checkpoint {n_tokens}[{pos_min}..{pos_max}] stays, though only {shared} of its "
        "tokens match. Rule: erase if {rule}. Here {numbers} is false"
    ),
):
    """A checkpoint passed the erasure, yet holds more than what the new prompt shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChecked(CheckpointEvent):
    """One checkpoint in the search; `refused` names the test it failed, or is empty."""

    threshold: int
    pos_next: int
    refused: str
    numbers: str

    def loudness(self) -> Tone:
        return "loss" if self.refused else "plain"

    @property
    def sentence(self) -> str:
        shown = f"checkpoint {self.n_tokens}[{self.pos_min}..{self.pos_max}]"
        if not self.refused:
            return f"{shown} qualifies"
        return f"{shown} is refused if {self.refused}; here {self.numbers}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRestored(
    CheckpointEvent,
    tone="gain",
    says="checkpoint {n_tokens}[{pos_min}..{pos_max}] is restored ({n_past} tokens usable)",
):
    """The memory went back to a saved state."""

    n_past: int
    size: int
    made_by: int  # the task that saved it


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointErased(
    CheckpointEvent,
    tone="plain",
    says=f"checkpoint {{n_tokens}}[{{pos_min}}..{{pos_max}}] {ERASED}",
):
    """A checkpoint that does not fit the new prompt goes."""

    n_swa: int
    pos_next: int
    size: int
    rule: str
    numbers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKept(CheckpointSpared):
    """The rule of this release kept it."""

    pos_next: int
    shared: int
    rule: str
    numbers: str
    made_by: int  # the task that saved it


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCut(
    CheckpointEvent,
    tone="warn",
    says=(
        "checkpoint {n_tokens}[{pos_min}..{pos_max}] is relabelled "
        "{cut_tokens}[{cut_min}..{cut_max}]; the state that it saved is not cut"
    ),
):
    """A checkpoint beyond the new prompt's prefix gets smaller numbers, and keeps its state."""

    cut_min: int
    cut_max: int
    cut_tokens: int
    pos_next: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDropped(
    Event,
    tone="loss",
    says="checkpoint {n_tokens}[{pos_min}..{pos_max}] is dropped ({reason})",
):
    """A checkpoint goes because the list is full, another is close, or equal."""

    reason: str  # "full", "too-close", "superseded"
    pos_min: int
    pos_max: int
    n_tokens: int
    size: int

    def loudness(self) -> Tone:
        return "plain" if self.reason == "superseded" else "loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCreated(
    Event,
    tone="gain",
    says="checkpoint {n_tokens}[{pos_min}..{pos_max}] is saved, {index} of at most {most}",
):
    """A state was saved along the prompt."""

    index: int
    most: int
    pos_min: int
    pos_max: int
    n_tokens: int
    size: int
