"""Decisions that reports show, and causes of lost reuse.

The docstring of an event is its sentence. Each branch that lowers the number of reusable tokens has
a cause.
"""

from cachesim.engines.causes import Cause, last_computed
from cachesim.engines.events import Event, event


@event("gain")
class PrefixMatched(Event):
    """{cached} tokens are reused"""

    cached: int


@event("loss")
class EntryEvicted(Event):
    """the least recently used prompt, {tokens} tokens, is evicted"""

    tokens: int


LAST_TOKEN = last_computed("The last token of a prompt is computed for its logits.")
WHOLE_BLOCKS = Cause(
    id="whole-blocks",
    sentence="a state is kept after every {block} tokens",
    about="A prompt resumes at the last state before it diverges.",
)
