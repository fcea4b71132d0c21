"""From a request to a task: the fields of the HTTP call, checked."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cachesim.engines.base import Request, Ticket
from cachesim.engines.byte_tokenizer import ByteTokenizer
from cachesim.engines.chat_templates import Message
from cachesim.engines.llamacpp.lora import parse_lora
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.spans import Start, message_starts, user_starts
from cachesim.engines.llamacpp.task import Task, TaskParams
from cachesim.engines.rope import as_rope
from cachesim.errors import OptionError, TokenError
from cachesim.units import Pos, Token, Tokens

ASSISTANT: Final = "assistant"
SPACE: Final = "\u2581"
"""What the tokenizer of the toy models reads a space as: three bytes."""


def to_task(
    request: Request,
    fields: Mapping[str, Any],
    *,
    number: int,
    ticket: Ticket,
    server: ServerContext,
) -> Task:
    """Read a completion request as the HTTP side does; `fields` are its further ones, checked."""
    options = server.options
    _check_counts(request)
    prompt: Tokens = request.prompt
    starts: tuple[Start, ...] = ()
    if request.messages:
        prompt, starts = _chat_prompt(request, server)
    check_tokens(request, prompt, server.network.spec.vocabulary)
    if server.rules.checkpoints.placement == "every":
        starts = ()
    starts = (*starts, *message_starts(prompt, fields))
    users = sorted(user_starts(starts))
    params = TaskParams(
        n_predict=request.predict,
        n_keep=fields.get("n_keep", options.keep),
        n_discard=fields.get("n_discard", 0),
        n_cache_reuse=fields.get("n_cache_reuse", options.cache_reuse),
        cache_prompt=request.cache_prompt and options.cache_prompt,
        lora=parse_lora(fields.get("lora", ()), options.adapters),
        ignore_eos=fields.get("ignore_eos", options.ignore_eos),
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


def why_refused(request: Request, task: Task, server: ServerContext) -> str:
    """Why the HTTP side answers 400 before anything is queued; empty where it does not.

    An empty list of tokens is refused. An empty text (`prompt_string`) is not, nor is a chat that
    renders to nothing.
    """
    if [each.role for each in request.messages[-2:]] == [ASSISTANT, ASSISTANT]:
        return "Cannot have 2 or more assistant messages at the end of the list."
    is_text = bool(request.messages) or dict(request.options or {}).get("prompt_string")
    if not task.tokens and not is_text:
        return '"prompt" must not be empty'
    if request.completions > len(server.slots):
        return f"n_cmpl cannot be greater than the number of slots ({len(server.slots)})"
    return ""


def render_chat(
    server: ServerContext, messages: Sequence[Message]
) -> tuple[Tokens, tuple[Start, ...]]:
    r"""The prompt of a conversation, and where its messages begin.

    Upstream: `oaicompat_chat_params_parse`. The role `developer` is `system`. An assistant message
    at the end is no turn of its own: the reply goes on from it. Trap: where it is empty, releases
    since June do not even open the reply.

        <|im_start|> user \n ... <|im_end|> \n <|im_start|> assistant \n  [ the last message )
    """
    tokenizer = ByteTokenizer(server.options.chat_template)
    shown = [_as_read(each) for each in messages]
    continued = shown.pop() if shown and shown[-1].role == ASSISTANT else None
    opens = server.rules.requests.empty_prefill_opens or continued is None or continued.content
    prompt = tokenizer.apply_chat_template(shown, add_generation_prompt=bool(opens))
    starts = [(role, Pos(count)) for role, count in tokenizer.message_starts(shown)]
    if continued is not None:
        starts.append((ASSISTANT, Pos(len(prompt))))
        prompt += tokenizer.encode(continued.content)
    return prompt, tuple(starts)


def _as_read(message: Message) -> Message:
    role = "system" if message.role == "developer" else message.role
    return Message(role=role, content=message.content.replace(" ", SPACE))


def _chat_prompt(request: Request, server: ServerContext) -> tuple[Tokens, tuple[Start, ...]]:
    prompt, starts = render_chat(server, request.messages)
    if request.prompt not in ((), prompt):
        msg = (
            "the prompt is not what the chat template makes of the messages: leave it out, or "
            "name the template with the option chat_template"
        )
        raise TokenError(msg)
    return prompt, starts
