"""Events of `Llama` and its caches, and the causes for which it evaluates tokens again."""

from typing import Final

from cachesim.engines.causes import Cause, declared, last_computed
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


REPLACED: Final = Cause(
    id="replaced",
    sentence="of {wanted} tokens that were evaluated, the instance and its cache hold {found}",
    about=(
        "An instance holds one sequence: each prompt replaces what it does not continue. A cache "
        "(`set_cache`, or the server's `--cache true`) keeps whole states up to its capacity."
    ),
)
LESS_LOADED: Final = Cause(
    id="less-loaded",
    sentence="the lookup in the cache leaves {found} of {wanted} tokens",
    about=(
        "An entry is chosen by its key, and compared by an array of tokens that is longer than its "
        "state: a token that was sampled and not evaluated, or one of an earlier prompt, counts."
    ),
)
STATE_BEHIND: Final = Cause(
    id="state-behind",
    sentence="the prompt diverges within {held} held tokens, and a recurrent state cannot rewind",
    about="Releases 0.3.24 to 0.3.31 reset the instance unless the prompt continues what it holds.",
)
CUT_REFUSED: Final = Cause(
    id="cut-refused",
    sentence="memory cannot be cut after {wanted} tokens",
    about=(
        "Recurrent and hybrid memory holds its last state only. Evaluate what all prompts share, "
        "`save_state`, and load it before each."
    ),
)
LAST_TOKEN: Final = last_computed(
    "A prompt's last token is evaluated, since 0.3.32 unless the instance holds exactly the prompt."
)

CAUSES: Final = declared(globals())
