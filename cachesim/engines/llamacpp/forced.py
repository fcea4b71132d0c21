"""Replies that are known beforehand, where no network computes: many turns taken as one.

    slot 0   [ prompt )[ sampled, reply .............. | the last token: a turn of its own )
    slot 1   [ prompt )[ sampled, reply ...........                                  )
                        the same number of turns for all

While every slot at work only generates, and none of them ends, a turn of the loop changes nothing
but the tokens that are held. The turn in which the first of them may end is taken as always.
"""

from cachesim.engines.llamacpp.events import BatchDecoded
from cachesim.engines.llamacpp.generation import budget_left
from cachesim.engines.llamacpp.memory.advance import Advance
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot, SlotState
from cachesim.engines.rope import Rope, as_rope


def pass_over_replies(server: ServerContext) -> None:
    """Take all turns at once that only write down what is known."""
    target = server.contexts.target
    if target.computes or server.may_draft or server.queue:
        return
    busy = [slot for slot in server.slots if slot.is_processing]
    turns = min((_turns(server, slot) for slot in busy), default=0)
    turns = min(turns, server.most_turns)
    if turns < 2:
        return
    runs = [Advance(int(slot.id), int(slot.prompt.n_tokens), turns) for slot in busy]
    if not target.advance(runs, piece=1):
        return
    row = target.logits(0)
    for slot in busy:
        reply = as_rope(slot.running.params.reply) or Rope()
        first = slot.n_decoded
        slot.prompt.tokens += [slot.sampled]
        slot.prompt.tokens += reply[first : first + turns - 1]
        slot.generated += reply[first : first + turns]
        slot.rows += [row] * turns
        slot.sampled = slot.generated[-1]
    slots = tuple(int(slot.id) for slot in busy)
    server.emit(BatchDecoded(n_tokens=turns * len(busy), slots=slots))


def _turns(server: ServerContext, slot: Slot) -> int:
    if slot.state is not SlotState.GENERATING or slot.draft:
        return 0
    left = budget_left(server, slot)
    if left is None or as_rope(slot.running.params.reply) is None:
        return 0
    return min(left, slot.n_ctx - 1 - slot.prompt.n_tokens) - 1
