"""From a request to a task: the fields of the HTTP call, checked."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from cachesim.engines.base import Request, Ticket
from cachesim.engines.byte_tokenizer import ByteTokenizer
from cachesim.engines.llamacpp.rules import Placement
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.spans import Start, message_starts, user_starts
from cachesim.engines.llamacpp.task import Task, TaskParams
from cachesim.engines.rope import as_rope
from cachesim.errors import OptionError, TokenError
from cachesim.units import Pos, Token, Tokens

FIELDS: Final[tuple[str, ...]] = (
    "n_keep",
    "n_discard",
    "n_cache_reuse",
    "ignore_eos",
    "message_delimiters",
    "message_spans",
)

KNOWS: Final[Mapping[str, tuple[Placement, ...]]] = {
    "message_delimiters": ("user-starts",),  # #24176
    "message_spans": ("last-user", "user-starts"),  # #22929; offsets are ours for token prompts
}
HAD_BY: Final = {"message_delimiters": "b11549", "message_spans": "b9538, b11549"}


def to_task(request: Request, *, number: int, ticket: Ticket, server: ServerContext) -> Task:
    """Read a completion request as the HTTP side does."""
    options = server.options
    _check_counts(request)
    fields = dict(request.options or {})
    for name in fields:
        _check_field(name, server.rules.checkpoints.placement)
    prompt: Tokens = request.prompt
    starts: tuple[Start, ...] = ()
    if request.messages:
        prompt, starts = render_chat(request, ByteTokenizer(options.chat_template))
    check_tokens(request, prompt, server.network.spec.vocabulary)
    if server.rules.checkpoints.placement == "every":
        starts = ()
    starts = (*starts, *message_starts(prompt, fields))
    users = sorted(user_starts(starts))
    params = TaskParams(
        n_predict=request.predict,
        n_keep=_whole(fields, "n_keep", options.keep, least=-1),
        n_discard=_whole(fields, "n_discard", 0, least=0),
        n_cache_reuse=_whole(fields, "n_cache_reuse", options.cache_reuse, least=0),
        cache_prompt=request.cache_prompt and options.cache_prompt,
        ignore_eos=bool(fields.get("ignore_eos", options.ignore_eos)),
        reply=request.reply,
        drafts=request.drafts,
        user_starts=frozenset(users),
        last_user_start=users[-1] if users else Pos(-1),
    )
    task = Task(id=number, ticket=ticket, tokens=prompt, params=params, id_slot=request.slot)
    task.children = [
        Task(id=number + 1 + k, ticket=ticket, tokens=prompt, params=params, id_parent=number)
        for k in range(request.completions - 1)
    ]
    return task


def _check_counts(request: Request) -> None:
    for name, value, least in (
        ("predict", request.predict, -1),
        ("completions", request.completions, 1),
        ("slot", request.slot, -1),
    ):
        if value < least:
            msg = f"{name} is {value}; write a whole number from {least} on"
            raise OptionError(msg)


def check_tokens(request: Request, prompt: Tokens, vocabulary: int) -> None:
    """Every token of a request lies in the vocabulary."""
    forced: Sequence[Token] = request.reply or ()
    drafted = [token for draft in request.drafts or () for token in draft]
    for what, tokens in (("prompt", prompt), ("reply", forced), ("drafts", drafted)):
        if as_rope(tokens) is not None:
            continue  # names of tokens, which no network looks up
        if tokens and not (min(tokens) >= 0 and max(tokens) < vocabulary):
            wrong = next(token for token in tokens if not 0 <= token < vocabulary)
            msg = f"{what} holds token {wrong}; write tokens from 0 to {vocabulary - 1}"
            raise TokenError(msg)


def render_chat(request: Request, tokenizer: ByteTokenizer) -> tuple[Tokens, tuple[Start, ...]]:
    """The prompt of a conversation, and where its messages begin."""
    prompt = tokenizer.apply_chat_template(request.messages)
    if request.prompt not in ((), prompt):
        msg = (
            "the prompt is not what the chat template makes of the messages: leave it out, or "
            "name the template with the option chat_template"
        )
        raise TokenError(msg)
    starts = tokenizer.message_starts(request.messages)
    return prompt, tuple((role, Pos(count)) for role, count in starts)


def _check_field(name: str, placement: Placement) -> None:
    if name not in FIELDS:
        near = get_close_matches(name, FIELDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(FIELDS)}"
        msg = f"a llama.cpp request has no field {name!r}; {hint}"
        raise OptionError(msg)
    if placement not in KNOWS.get(name, (placement,)):
        msg = f"this release has no request field {name!r}; the releases that have it are "
        raise OptionError(msg + HAD_BY[name])


def _whole(fields: Mapping[str, Any], name: str, default: int, *, least: int) -> int:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        msg = f"request field {name!r} is {value!r}; write a whole number from {least} on"
        raise OptionError(msg)
    return value
