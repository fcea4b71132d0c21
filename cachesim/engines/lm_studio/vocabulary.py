"""Events and a cause of LM Studio's mlx-engine, beside those of mlx-lm's caches."""

from typing import Final

from cachesim.engines.causes import Cause
from cachesim.engines.events import Event, event
from cachesim.units import Count


@event()
class RecordChange(Event):
    """A record of a chunk was written to disk, or removed."""

    start: Count
    n_tokens: Count
    cache_type: str
    nbytes: int


@event("gain")
class RecordStored(RecordChange):
    """the {cache_type} record of tokens {start} to {n_tokens} is written to disk"""


@event("loss")
class RecordEvicted(RecordChange):
    """the {cache_type} record of tokens {start} to {n_tokens} is evicted from disk"""


RECORD_MISSING: Final = Cause(
    id="record-missing",
    sentence=(
        "{matched} matching tokens are on disk; {used} of them have all records, and leave a token "
        "to feed"
    ),
    about="mlx-engine keeps states where a prefill step ended, or every 256 tokens of a reply.",
)
