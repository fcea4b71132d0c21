"""From a request to a task: the fields of the HTTP call, checked."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cachesim.engines.base import Request, Ticket
from cachesim.engines.byte_tokenizer import (
    FILL_MIDDLE,
    FILL_PREFIX,
    FILL_SUFFIX,
    ByteTokenizer,
)
from cachesim.engines.chat_templates import Message
from cachesim.engines.llamacpp.lora import parse_lora
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.spans import Start, message_starts, user_starts
from cachesim.engines.llamacpp.task import EMBEDDED, Task, TaskKind, TaskParams
from cachesim.engines.rope import as_rope
from cachesim.errors import OptionError, TokenError
from cachesim.units import Count, Pos, Token, Tokens, as_tokens

ASSISTANT: Final = "assistant"
SPACE: Final = "\u2581"
"""Space in the toy models' tokenizer: three bytes."""


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
    _check_count("predict", request.predict, -1)
    _check_count("completions", request.completions, 1)
    _check_count("slot", request.slot, -1)
    prompt: Tokens = request.prompt
    starts: tuple[Start, ...] = ()
    if request.messages:
        prompt, starts = _chat_prompt(request, server, fields)
    kind: TaskKind = fields.get("endpoint", "completion")
    if kind == "infill":
        suffix = _infill_suffix(fields)
        _check_known("input_suffix", suffix, server.network.spec.vocabulary)
        prompt, _ = format_prompt_infill(prompt, suffix, options.batch)
    check_tokens(request, prompt, server.network.spec.vocabulary)
    if server.rules.checkpoints.placement == "every":
        starts = ()
    if fields:
        starts = (*starts, *message_starts(prompt, fields))
    users = sorted(user_starts(starts))
    params = TaskParams(
        n_predict=fields.get("n_predict", request.predict),
        n_keep=fields.get("n_keep", options.keep),
        n_discard=fields.get("n_discard", 0),
        n_cache_reuse=fields.get("n_cache_reuse", options.cache_reuse),
        cache_prompt=fields.get("cache_prompt", request.cache_prompt and options.cache_prompt),
        lora=parse_lora(fields["lora"], options.adapters) if "lora" in fields else None,
        ignore_eos=fields.get("ignore_eos", options.ignore_eos),
        reply=request.reply,
        drafts=request.drafts,
        user_starts=frozenset(users),
        last_user_start=users[-1] if users else Pos(-1),
    )
    if kind in EMBEDDED:  # the HTTP side reads no further fields of such a request
        params = TaskParams(reply=(), cache_prompt=server.rules.requests.embeddings_reuse)
    task = Task(
        id=number,
        ticket=ticket,
        kind=kind,
        tokens=prompt,
        params=params,
        id_slot=-1 if kind in EMBEDDED else request.slot,
    )
    task.children = [
        Task(id=number + 1 + k, ticket=ticket, tokens=prompt, params=params, id_parent=number)
        for k in range(request.completions - 1)
    ]
    return task


def _check_count(name: str, value: int, least: int) -> None:
    if not value >= least:  # NaN too
        msg = f"{name} is {value}; write a whole number from {least} on"
        raise OptionError(msg)


def check_tokens(request: Request, prompt: Tokens, vocabulary: int) -> None:
    """Every token of a request lies in the vocabulary."""
    _check_known("prompt", prompt, vocabulary)
    _check_known("reply", request.reply or (), vocabulary)
    for draft in request.drafts or ():
        _check_known("drafts", draft, vocabulary)


def _check_known(what: str, tokens: Sequence[Token], vocabulary: int) -> None:
    if not tokens or as_rope(tokens) is not None:
        return  # names of tokens, which no network looks up
    if not (min(tokens) >= 0 and max(tokens) < vocabulary):  # NaN too
        wrong = next(token for token in tokens if not 0 <= token < vocabulary)
        msg = f"{what} holds token {wrong}; write tokens from 0 to {vocabulary - 1}"
        raise TokenError(msg)


INVALID: Final = "invalid_request_error"
NOT_SUPPORTED: Final = "not_supported_error"


def why_refused(request: Request, task: Task, server: ServerContext) -> tuple[str, str] | None:
    """The error with which the HTTP side answers before anything is queued, and its message.

    An empty list of tokens is refused. An empty text (`prompt_string`) is not, nor is a chat that
    renders to nothing.
    """
    if [each.role for each in request.messages[-2:]] == [ASSISTANT, ASSISTANT]:
        return INVALID, "Cannot have 2 or more assistant messages at the end of the list."
    embeds = server.options.embedding
    if task.is_embedded and not (
        embeds and (task.kind != "rerank" or (server.options.pooling == "rank"))
    ):
        return NOT_SUPPORTED, f"This server was not started for {task.kind} requests"
    if task.params.n_predict < -1 and server.rules.requests.counts_are_checked:
        return INVALID, f"Field 'n_predict': -1 <= value, but got {task.params.n_predict}"
    is_text = bool(request.messages) or dict(request.options or {}).get("prompt_string")
    if not task.tokens and not is_text:
        return INVALID, '"prompt" must not be empty'
    if request.completions > len(server.slots):
        slots = len(server.slots)
        return INVALID, f"n_cmpl cannot be greater than the number of slots ({slots})"
    return None


def _infill_suffix(fields: Mapping[str, Any]) -> Tokens:
    suffix = fields.get("input_suffix", ())
    if not isinstance(suffix, list | tuple) or not all(isinstance(each, int) for each in suffix):
        msg = f"request field 'input_suffix' is {suffix!r}; write a list of token ids"
        raise OptionError(msg)
    return as_tokens(suffix)


def format_prompt_infill(prefix: Tokens, suffix: Tokens, n_batch: int) -> tuple[Tokens, Count]:
    """The prompt around a gap, and where the suffix's mark stands in it.

    Upstream: `format_prompt_infill`. What fits a batch: three quarters for the end of the prefix,
    one for the start of the suffix.

    prefix  [ dropped | 3 * (n_batch / 4) )      suffix  [ n_batch / 4 - 2 | dropped )
    prompt  [ FIM_PRE | prefix | FIM_SUF | suffix | FIM_MID )
    """
    n_prefix_take = min(len(prefix), 3 * (n_batch // 4))
    n_suffix_take = min(len(suffix), max(0, n_batch // 4 - 2))
    kept = prefix[len(prefix) - n_prefix_take :]
    prompt = (FILL_PREFIX, *kept, FILL_SUFFIX, *suffix[:n_suffix_take], FILL_MIDDLE)
    return prompt, Count(1 + n_prefix_take)


def render_chat(
    server: ServerContext, messages: Sequence[Message], fields: Mapping[str, Any]
) -> tuple[Tokens, tuple[Start, ...]]:
    r"""The prompt of a conversation, and where its messages begin.

    Upstream: `oaicompat_chat_params_parse`. The role `developer` is `system`. An assistant message
    at the end is no turn of its own: the reply goes on from it. Trap: where it is empty, releases
    since June do not even open the reply. `add_generation_prompt` false leaves the reply unopened,
    and is ignored where there is a message to continue.

        <|im_start|> user \n ... <|im_end|> \n <|im_start|> assistant \n  [ the last message )
    """
    opens = fields.get("add_generation_prompt", True)
    tools = fields.get("tools", ())
    tokenizer = ByteTokenizer(server.options.chat_template).with_arguments(tools, {})
    shown = [_as_read(each) for each in messages]
    continued = shown.pop() if shown and shown[-1].role == ASSISTANT else None
    if continued is not None:
        opens = server.rules.requests.empty_prefill_opens or bool(continued.content)
    prompt = tokenizer.apply_chat_template(shown, add_generation_prompt=opens)
    starts = [(role, Pos(count)) for role, count in tokenizer.message_starts(shown)]
    if continued is not None:
        starts.append((ASSISTANT, Pos(len(prompt))))
        prompt += tokenizer.encode(continued.content)
    return prompt, tuple(starts)


def _as_read(message: Message) -> Message:
    role = "system" if message.role == "developer" else message.role
    return Message(role=role, content=message.content.replace(" ", SPACE))


def _chat_prompt(
    request: Request, server: ServerContext, fields: Mapping[str, Any]
) -> tuple[Tokens, tuple[Start, ...]]:
    """The prompt of a chat, of which nothing else may be said (`oaicompat_chat_params_parse`)."""
    prompt, starts = render_chat(server, request.messages, fields)
    if request.prompt not in ((), prompt):
        msg = (
            "the prompt is not what the chat template makes of the messages: leave it out, or "
            "name the template with the option chat_template"
        )
        raise TokenError(msg)
    return prompt, starts
