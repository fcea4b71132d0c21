"""A request of a trace, in any format."""

from dataclasses import dataclass

from cachesim.engines.tokens import Run
from cachesim.errors import InputError


class TraceError(InputError):
    """An invalid trace; the message names the line."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request of a trace.

    blocks   7        9        12           an id stands for its block and all before it
    sizes    512      512      86           silent: as many as the trace's blocks have
    """

    time: float  # milliseconds since the trace began, in any unit of the trace
    length: int  # tokens of the prompt
    output: int  # tokens of the reply
    blocks: tuple[int, ...]
    sizes: tuple[int, ...] | None = None
    runs: tuple[Run, ...] = ()  # the prompt, where its texts are known
    reply: tuple[Run, ...] = ()
    kept: tuple[tuple[int, int], ...] = ()  # prompt and reply as blocks, where the reply is known
    silent: bool = False  # the trace has no length for its reply: one token is assumed
    seconds: bool = False  # the trace's own timestamps count seconds
    rank: int = 0  # the data-parallel rank that computed it
