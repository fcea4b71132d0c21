"""What can be removed from a context's sequences (`common_context_can_seq_rm`)."""

from enum import IntEnum
from typing import Final, TypeAlias

from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.context import OK, Context
from cachesim.engines.llamacpp.memory.create import ContextParams
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.model.arithmetic import LayerShape
from cachesim.model.spec import ModelSpec


class SeqRm(IntEnum):
    """How much of a sequence can be removed, under upstream's numbers."""

    NO = 0
    PART = 1
    FULL = 2
    RS = 3


Kind: TypeAlias = tuple[ModelSpec, tuple[LayerShape, ...], ContextParams, MemoryRules]
"""What two contexts have in common that answer alike."""

KNOWN: Final[dict[Kind, SeqRm]] = {}
"""What contexts of each kind said when the first one of them was tried out."""

MOST_KINDS: Final = 256
"""Kinds known before all are forgotten."""


def seq_rm_type(context: Context, params: ContextParams) -> SeqRm:
    """What `can_seq_rm` says of a new context, found out once for all of a kind.

    A network that keeps a ledger writes down every token that it is given, those two as well.
    """
    network = context.network
    if any(shape.ledger for shape in network.shapes):
        return can_seq_rm(context)
    kind = (network.spec, network.shapes, params, context.rules)
    if kind not in KNOWN:
        if len(KNOWN) >= MOST_KINDS:
            KNOWN.clear()
        KNOWN[kind] = can_seq_rm(context)
    return KNOWN[kind]


def can_seq_rm(context: Context) -> SeqRm:
    """Find out by trying: two tokens go in, the second one is taken out, memory is cleared.

    Traps: a window cache says PART, although old positions may be missing after a cut; and later
    releases answer RS at once, without decoding and without clearing what is there.
    """
    if context.n_rs_seq > 0 and context.rules.probe == "at-once":
        return SeqRm.RS
    context.clear(data=True)
    answer = SeqRm.NO
    if context.decode(Batch.of((0, 0), start=0)) == OK:
        if context.n_rs_seq > 0 and context.rules.probe == "after-probe":
            answer = SeqRm.RS
        else:
            answer = SeqRm.PART if context.seq_rm(0, 1, -1) else SeqRm.FULL
    context.clear(data=True)
    return answer
