"""The removals that a context's memory allows (`common_context_can_seq_rm`)."""

from enum import IntEnum
from typing import Final

from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.context import OK, Context
from cachesim.engines.llamacpp.memory.hybrid import HybridMemory
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory


class SeqRm(IntEnum):
    """The removable part of a sequence, under upstream's numbers."""

    NO = 0
    PART = 1
    FULL = 2
    RS = 3


PROBE: Final = 2
"""Tokens that the trial decodes."""


def seq_rm_type(context: Context) -> SeqRm:
    """The answer of `can_seq_rm` for a new context, without a trial decode.

    Recurrent rows cannot be cut, everything else can; a context that keeps some more rows goes back
    by as many. A property holds this to the trial. Trap: a batch of one token has no room for the
    trial, which ends the process before the server is up.
    """
    if context.n_batch < PROBE:
        return can_seq_rm(context)
    if context.n_rs_seq > 0 and context.rules.probe != "unknown":
        return SeqRm.RS
    recurrent = isinstance(context.memory, RecurrentMemory | HybridMemory)
    return SeqRm.FULL if recurrent else SeqRm.PART


def can_seq_rm(context: Context) -> SeqRm:
    """Find out by trying: two tokens go in, the second one is taken out, memory is cleared.

    Traps: a window cache says PART, although old positions may be missing after a cut; and later
    releases answer RS at once, without decoding and without clearing what is there.

    Upstream: `common_context_can_seq_rm`.
    """
    if context.n_rs_seq > 0 and context.rules.probe == "at-once":
        return SeqRm.RS
    context.clear(data=True)
    answer = SeqRm.NO
    if context.decode(Batch.of((0,) * PROBE, start=0)) == OK:
        if context.n_rs_seq > 0 and context.rules.probe == "after-probe":
            answer = SeqRm.RS
        else:
            answer = SeqRm.PART if context.seq_rm(0, 1, -1) else SeqRm.FULL
    context.clear(data=True)
    return answer
