"""The RAM prompt cache (`server_prompt_cache`): a list of parked conversations, oldest first."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cachesim.engines.ik_llama.matching import (
    Match,
    TextOf,
    common_prefix,
    discard,
    similarity,
    without_reasoning,
)
from cachesim.engines.ik_llama.slot import CachedPrompt
from cachesim.engines.ik_llama.state import Checkpoint, SequenceState
from cachesim.units import Count, Pos, Token


@dataclass(slots=True, kw_only=True)
class PromptEntry:
    """A parked conversation with its full state and a copy of its checkpoint list."""

    tokens: list[Token]
    n_kept_prompt: int
    n_discarded_prompt: int
    checkpoints: list[Checkpoint]
    state: SequenceState
    pos_min: Pos
    length: Count  # of the tokens when they were parked; a lookup may empty the list (an oddity)

    @property
    def size(self) -> int:
        """Bytes: the state and all checkpoints."""
        return self.state.size + sum(checkpoint.size for checkpoint in self.checkpoints)


@dataclass(slots=True, kw_only=True)
class PromptCache:
    """Entries in order of insertion; `limit` in bytes, None for no limit."""

    limit: int | None
    text_of: TextOf
    tags: tuple[str, str] | None
    entries: list[PromptEntry] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return sum(entry.size for entry in self.entries)

    def room_for(self, prompt: CachedPrompt) -> bool:
        """Drop entries that the new one contains; False when one contains it (`alloc`)."""
        tokens = discard(prompt.tokens, prompt.n_kept_prompt, prompt.n_discarded_prompt)
        kept: list[PromptEntry] = []
        for index, entry in enumerate(self.entries):
            match = common_prefix(entry.tokens, tokens, self.text_of)
            if match.right == len(tokens):
                self.entries = [*kept, *self.entries[index:]]
                return False
            if match.left != len(entry.tokens):
                kept.append(entry)
        self.entries = kept
        return True

    def match(self, entry: PromptEntry, prompt: Sequence[Token]) -> Match:
        """The common prefix of an entry and a prompt, reasoning left out of both."""
        return common_prefix(self.stripped(entry.tokens), self.stripped(prompt), self.text_of)

    def similarity(self, held: "PromptEntry | CachedPrompt", prompt: Sequence[Token]) -> np.float32:
        """The score that entries compete by: a shifted conversation meets a shifted prompt."""
        shifted = discard(self.stripped(prompt), held.n_kept_prompt, held.n_discarded_prompt)
        return similarity(self.stripped(held.tokens), shifted, self.text_of)

    def stripped(self, tokens: Sequence[Token]) -> Sequence[Token]:
        """The tokens without their reasoning blocks."""
        return without_reasoning(tokens, self.tags, self.text_of)

    def update(self) -> list[PromptEntry]:
        """Drop the oldest while there is more than one and they are too large; returns them."""
        dropped: list[PromptEntry] = []
        while self.limit is not None and len(self.entries) > 1 and self.size > self.limit:
            dropped.append(self.entries.pop(0))
        return dropped
