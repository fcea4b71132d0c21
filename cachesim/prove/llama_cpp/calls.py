"""Steps as HTTP calls of llama-server, and its answers as outcomes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from cachesim.errors import CachesimError
from cachesim.play.session import AS_TEXT
from cachesim.prove.llama_cpp.gguf import text_of
from cachesim.prove.llama_cpp.workload import Outcome
from cachesim.scenario.format import Step, Turn
from cachesim.typed import JsonObject
from cachesim.units import Token, as_tokens

PLAIN_WORD: Final = re.compile(r"\[(\d+)\]")
"""The text of a token that greedy decoding may yield."""

GREEDY: Final[Mapping[str, Any]] = {
    "temperature": 0,
    "ignore_eos": True,
    "return_tokens": True,
    "response_fields": ["tokens", "timings", "id_slot", "truncated", "completion_probabilities"],
}


SECONDS_OF_PATIENCE: Final = 0.03
"""Seconds after which a client disconnects, in the middle of its reply."""


class RealServerError(CachesimError):
    """The real server could not be started, or its answer is invalid."""


class NotStartedError(RealServerError):
    """The real server ended as it started, or refused its flags."""


def call_for(group: Sequence[Step], *, probabilities: int = 0) -> JsonObject:
    """The HTTP call that runs a group of steps."""
    first = group[0]
    if first.do == "set-lora":
        return {"path": "/lora-adapters", "body": first.options.get("lora", [])}
    if first.do != "complete":
        action = first.do.removeprefix("slot-")
        named = {"filename": first.file} if first.file else {}
        return {"path": f"/slots/{first.slot}?action={action}", "body": named}
    endpoint = first.options.get("endpoint", "completion")
    if endpoint == "rerank":
        documents = [text_of(step.ids[step.query :]) for step in group]
        query = text_of(first.ids[: first.query])
        return {"path": "/rerank", "body": {"query": query, "documents": documents}}
    if endpoint == "embedding":
        rows = [list(step.ids) for step in group]
        return {"path": "/embedding", "body": {"content": rows if len(rows) > 1 else rows[0]}}
    prompts = [text_of(step.ids) if step.options.get(AS_TEXT) else list(step.ids) for step in group]
    body: JsonObject = {
        **GREEDY,
        "n_predict": first.predict,
        **({} if first.cache_prompt else {"cache_prompt": False}),
        "n_probs": probabilities,
        **{name: value for name, value in first.options.items() if name not in OURS},
    }
    if first.completions > 1:
        body["n_cmpl"] = first.completions
    if "tools" in first.options:
        body["tools"] = [_tool(tool) for tool in first.options["tools"]]
        body["tool_choice"] = "none"
    if endpoint == "infill":
        after = first.suffix if isinstance(first.suffix, tuple) else ()
        gap = {"input_prefix": text_of(first.ids), "input_suffix": text_of(after)}
        return {"path": "/infill", "body": body | gap}
    if first.forced and isinstance(first.reply, tuple):
        # A grammar that allows these tokens and no others; log probabilities ignore it.
        body["grammar"] = "root ::= " + " ".join(f"<[{token}]>" for token in first.reply)
    if first.leaves:
        body["stream"] = True
    if first.slot >= 0:
        body["id_slot"] = first.slot
    if first.messages:
        del body["response_fields"]
        messages = [_message(message, parts=first.parts) for message in first.messages]
        if first.messages[-1].role == "assistant":  # in parts it is continued in another way
            messages[-1] = asdict(first.messages[-1])
        path, body = "/v1/chat/completions", body | {"messages": messages}
    else:
        path, body = "/completion", body | {"prompt": prompts if len(prompts) > 1 else prompts[0]}
    patience = {"abandon": SECONDS_OF_PATIENCE} if first.leaves else {}
    return {"path": path, "body": body, **patience}


OURS: Final = (AS_TEXT, "endpoint", "tools")
"""Fields of a request with other names over HTTP."""


def _message(message: Turn, *, parts: bool) -> JsonObject:
    plain = asdict(message)
    if parts and message.content:
        plain["content"] = [{"type": "text", "text": e} for e in message.content.split("\n")]
    return plain


def _tool(name: str) -> JsonObject:
    shape = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": shape}}


def outcomes_of(group: Sequence[Step], answer: JsonObject) -> tuple[Outcome, ...]:
    """The outcome of each step of a group, read from its answer."""
    body = answer["body"]
    if answer["status"] != 200:
        return tuple(Outcome(error=str(body["error"]["type"])) for _ in group)
    if group[0].do != "complete":
        return (Outcome(slot=group[0].slot),)
    if group[0].options.get("endpoint") in {"embedding", "rerank"}:
        return tuple(Outcome(slot=None, truncated=None) for _ in group)
    replies = body if isinstance(body, list) else [body]
    if group[0].completions > 1:
        replies = replies[:1]
    if len(replies) != len(group):
        raise RealServerError(f"the real server answered {len(replies)} of {len(group)} prompts")
    return tuple(map(_outcome, replies))


def _outcome(reply: JsonObject) -> Outcome:
    """An answer; a chat's reply is text, without a slot.

    Since June a reply that continues a message repeats that message.
    """
    timings, choices = reply["timings"], reply.get("choices")
    if choices is None:
        tokens = reply["tokens"]
    else:
        words = PLAIN_WORD.findall(choices[0]["message"]["content"] or "")
        tokens = [int(number) for number in words[-timings["predicted_n"] :]]
    return Outcome(
        cached=timings["cache_n"],
        processed=timings["prompt_n"],
        reply=as_tokens(tokens),
        slot=reply["id_slot"] if choices is None else None,
        truncated=reply["truncated"] if choices is None else None,
        drafted=timings.get("draft_n", 0),
        accepted=timings.get("draft_n_accepted", 0),
        top=tuple(
            {Token(logprob["id"]): logprob["logprob"] for logprob in token["top_logprobs"]}
            for token in reply.get("completion_probabilities", ())
        ),
    )
