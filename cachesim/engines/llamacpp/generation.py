"""Taking the next token of a slot, and deciding whether it was the last one."""

from typing import Final

from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot
from cachesim.units import Array, Token

END_OF_GENERATION: Final = frozenset({Token(2), Token(260)})
"""The toy vocabulary's `</s>` and `<|im_end|>`."""


def next_token(server: ServerContext, slot: Slot, row: Array, *, ahead: int = 0) -> Token:
    """The forced token of a reply, or the greedy one; `ahead` tokens are not taken yet."""
    reply, index = slot.running.params.reply, len(slot.generated) + ahead
    if reply is not None and index < len(reply):
        return reply[index]
    return server.network.sample(row)


def process_token(server: ServerContext, slot: Slot, token: Token, row: Array) -> bool:
    """Note a token; False if it ended the request (upstream: `process_token`)."""
    slot.generated.append(token)
    slot.rows.append(row)
    slot.sampled = token
    stop = stop_reason(server, slot, token)
    if stop:
        server.finish(slot, stop)
    return not stop


def stop_reason(server: ServerContext, slot: Slot, token: Token) -> str:
    """Why generation ends after this token, tested in upstream's order; empty: it goes on."""
    if not server.shifts_context and len(slot.prompt.tokens) + 1 >= slot.n_ctx:
        slot.truncated = True
        return "limit"
    left = budget_left(server, slot)
    if left is not None and left <= 0:
        return "limit"
    params = slot.running.params
    if token in END_OF_GENERATION and not params.ignore_eos and params.reply is None:
        return "eos"
    return ""


def budget_left(server: ServerContext, slot: Slot) -> int | None:
    """How many tokens may still be generated; None without a limit (upstream: `has_budget`).

    The end of a forced reply ends the generation too.

    Trap: a number below -1 is a limit as well, and ends the reply with its first token.
    """
    params = slot.running.params
    most = params.n_predict if params.n_predict != -1 else server.options.predict
    if params.reply is not None and not -1 != most < len(params.reply):
        most = len(params.reply)
    return None if most == -1 else most - len(slot.generated)
