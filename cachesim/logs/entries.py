"""What is said of one recorded request: its numbers, where it parts, and why it was reprocessed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachesim.engines.causes import Loss
from cachesim.engines.words import counted
from cachesim.logs.cures import cure_of
from cachesim.logs.dump import Recorded
from cachesim.logs.parting import Kin, Parting
from cachesim.logs.player import Replayed
from cachesim.logs.prompts import Prompt
from cachesim.logs.rewrites import CONVERSATIONS
from cachesim.logs.slot_actions import ADVICE, SLOT_TAKEN, SlotAction

RETOKENISED: Final = "reply-retokenised"
KEEP_TOKENS: Final = (
    "Nothing in the text: it is unchanged. `/completion` with `return_tokens` returns the sampled "
    "tokens, and takes them as a prompt."
)


@dataclass(frozen=True, slots=True)
class Understood:
    """A request, and what it has to do with earlier ones."""

    prompt: Prompt
    kin: Kin
    continues: Recorded | None
    earlier: Prompt | None  # the prompt of the one that it continues
    parting: Parting | None
    taken: SlotAction | None = None  # what took the one that it continues out of its slot


def entry_of(understood: Understood, played: Replayed) -> dict[str, Any]:
    """One request: the server's numbers, the replay's, and what lies between."""
    prompt, kin, parting = understood.prompt, understood.kin, understood.parting
    request = prompt.recorded
    total = len(prompt.rope) if request.prompt_tokens is None else request.prompt_tokens
    again = _again_of(understood)
    agrees = None if request.cached is None else played.cached == request.cached
    return {
        "number": request.number,
        "line": request.line,
        "prompt_tokens": request.prompt_tokens,
        "cached": request.cached,
        "processed": request.processed,
        "slot": request.slot,
        "cancelled": request.cancelled,
        "continues": number_of(understood.continues),
        "begins_like": number_of(kin.begins_like),
        "equal_characters": kin.equal,
        "characters": request.characters,
        "equal": prompt.equal,
        "again": again,
        "tokens_after": None if parting is None else max(0, total - prompt.equal),
        "known": {
            "prompt_tokens": "unknown" if request.prompt_tokens is None else "printed",
            "cached": "unknown" if request.cached is None else "printed",
            "processed": "unknown" if request.processed is None else "printed",
            "tokens_after": "unknown" if parting is None else prompt.how,
            "equal": prompt.how,
        },
        "how": prompt.how,
        "replayed": {"cached": played.cached, "processed": played.processed},
        "agrees": agrees,
        "losses": [each.as_dict() for each in played.losses] if agrees is not False else [],
        "parting": None if parting is None else parting.as_dict(),
        "slot_taken": _taken_of(understood, again),
        "retokenised": _retokenised(understood, played, again),
        "why": why_of(understood, played, again),
    }


def number_of(request: Recorded | None) -> int | None:
    """The number of a request, if there is one."""
    return None if request is None else request.number


def _again_of(understood: Understood) -> int | None:
    """Tokens that an earlier request had already made the server read, and that were reprocessed.

    earlier   [ equal ][ clock ][ the rest, as before ]
    later     [ equal ][ clock ][ the rest, as before ][ new ]
    again               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    """
    prompt, earlier, parting = understood.prompt, understood.earlier, understood.parting
    cached = prompt.recorded.cached
    if cached is None:
        return None
    if earlier is None:
        return 0
    reach = prompt.equal
    if understood.kin.begins_like is understood.continues:
        reach = min(reach, _computed(earlier))
    if parting is not None and parting.kind not in CONVERSATIONS:
        reach = max(reach, min(len(prompt.rope), len(earlier.rope)))
    return max(0, reach - cached)


def _computed(earlier: Prompt) -> int:
    """Tokens of a prompt and its reply that went through the network: the last sampled did not."""
    return len(earlier.rope) + max(0, len(earlier.reply) - 1)


def why_of(understood: Understood, played: Replayed, again: int | None) -> str:
    """One line: what the client changed, else the engine's rule, else that nothing was lost."""
    request, continues = understood.prompt.recorded, understood.continues
    if not request.was_read:
        return f"the server refused it: status {request.status}"
    if understood.parting is not None:
        return understood.parting.sentence
    if continues is None:
        return "a new conversation"
    taken = _taken_of(understood, again) or _retokenised(understood, played, again)
    if taken is not None:
        return f"continues request {continues.number}: {taken}"
    return f"continues request {continues.number}{_engine(understood, played, again)}"


def _taken_of(understood: Understood, again: int | None) -> str | None:
    """That the slot of the request that this one continues was erased or filled, if that cost."""
    taken = understood.taken
    if taken is None or not again or understood.parting is not None:
        return None
    return f"slot {taken.slot}, which held it, {taken.past}"


def _retokenised(understood: Understood, played: Replayed, again: int | None) -> str | None:
    """The end of reuse inside the earlier reply, where tokens are known and no rule explains it.

    earlier   [ prompt ][ reply ]        the tokens that were sampled
    later     [ prompt ][ reply ][ ... ] the same text, as the tokenizer cuts it
    cached    ^^^^^^^^^^^^^^
    """
    prompt, earlier = understood.prompt, understood.earlier
    cached = prompt.recorded.cached
    if earlier is None or cached is None or not again or understood.parting is not None:
        return None
    inside = cached - len(earlier.rope)
    at_its_end = cached >= _computed(earlier)
    if prompt.how != "computed" or played.cached == cached or inside <= 0 or at_its_end:
        return None
    return (
        f"reuse ends after {counted(inside, 'token')} of the reply of request "
        f"{earlier.recorded.number}: its text, tokenised again, need not give the sampled tokens"
    )


def _engine(understood: Understood, played: Replayed, again: int | None) -> str:
    cached, equal = understood.prompt.recorded.cached, understood.prompt.equal
    if cached is None:
        return "; the answer does not report cached tokens"
    if cached > equal:
        return f", and {cached - equal:,} tokens more were reused from what is not recorded"
    if not again:
        return ""
    if played.cached is None:
        return f"; {again:,} tokens were processed again, and no replay shows by which rule"
    loss = largest(played.losses) if played.cached == cached else None
    return f": {loss.sentence}" if loss is not None else "; the replay does not show why not all"


def largest(losses: tuple[Loss, ...]) -> Loss | None:
    """The cause that lowered the number most."""
    return max(losses, key=lambda each: each.before - each.after, default=None)


def cause_of(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a request is counted under: the client's rewrite, or the engine's rule."""
    parting = found["parting"]
    if parting is not None:
        return {
            "kind": parting["kind"],
            "part": parting["part"],
            "by": "neither" if parting["kind"] in CONVERSATIONS else "the client",
            "example": parting["sentence"],
            "advice": parting["advice"],
        }
    if found["slot_taken"] is not None:
        return {
            "kind": SLOT_TAKEN,
            "part": "",
            "by": "the client",
            "example": found["slot_taken"],
            "advice": ADVICE,
        }
    if found["retokenised"] is not None:
        return {
            "kind": RETOKENISED,
            "part": "",
            "by": "the server",
            "example": found["retokenised"],
            "advice": KEEP_TOKENS,
        }
    if not found["again"] or not found["losses"]:
        return None
    loss = max(found["losses"], key=lambda each: each["from"] - each["to"])
    return {
        "kind": loss["rule"],
        "part": "",
        "by": "the server",
        "example": loss["sentence"],
        "advice": cure_of(loss["rule"]).advice,
    }
