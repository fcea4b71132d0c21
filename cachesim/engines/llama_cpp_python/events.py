"""Events of `Llama` and its caches."""

from cachesim.engines.events import Event, event
from cachesim.units import Count


@event("plain")
class PrefixMatched(Event):
    """{n_tokens} tokens match, {remaining} are evaluated"""

    n_tokens: Count
    remaining: Count


@event("gain")
class PromptHeld(Event):
    """the whole prompt is held: {n_tokens} tokens"""

    n_tokens: Count


@event("loss")
class CutRefused(Event):
    """{n_tokens} tokens match, but the memory cannot be cut there"""

    n_tokens: Count


@event("loss")
class InstanceReset(Event):
    """the instance is reset: it held {n_tokens} tokens"""

    n_tokens: Count


@event("loss")
class MemoryCleared(Event):
    """the memory is cleared for an embedding: it held {n_tokens} tokens"""

    n_tokens: Count


@event("warn")
class DecodeFailed(Event):
    """llama_decode returned {code} after {n_tokens} tokens"""

    code: int
    n_tokens: Count


@event("gain")
class StateLoaded(Event):
    """a saved state of {n_tokens} tokens is loaded"""

    n_tokens: Count


@event("warn")
class StateRefused(Event):
    """a saved state of {n_tokens} tokens is refused, and its tokens are kept as the instance's"""

    n_tokens: Count


@event("gain")
class StateSaved(Event):
    """a state of {n_tokens} tokens is saved: {size} bytes"""

    n_tokens: Count
    size: int


@event("loss")
class StateTaken(Event):
    """a state of {n_tokens} tokens is read from disk and deleted, not used"""

    n_tokens: Count


@event("loss")
class StateEvicted(Event):
    """a state of {n_tokens} tokens is evicted: {size} bytes"""

    n_tokens: Count
    size: int

    @property
    def for_bytes(self) -> bool:
        """True: `capacity_bytes` is the limit."""
        return True


@event("plain")
class DraftVerified(Event):
    """of {drafted} drafted tokens {accepted} are accepted"""

    drafted: Count
    accepted: Count
