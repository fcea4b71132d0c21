"""Token counts in the answers of servers with their own API, under OpenAI's names.

    Ollama        {"prompt_eval_count": 26, "prompt_eval_cached_count": 20, "eval_count": 9, ...}
    SGLang        {"text": "...", "meta_info": {"prompt_tokens": 26, "cached_tokens": 20, ...}}
    KoboldCpp     {"results": [{"text": "...", "prompt_tokens": 26, "completion_tokens": 9}]}
    LM Studio     {"output": [...], "stats": {"input_tokens": 26, "total_output_tokens": 9}}

KoboldCpp and LM Studio report no cached tokens, Ollama only in its newest releases.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cachesim.typed import mapping

NAMES: Final[Mapping[str, tuple[str, str, str]]] = {
    "": ("prompt_eval_count", "prompt_eval_cached_count", "eval_count"),
    "meta_info": ("prompt_tokens", "cached_tokens", "completion_tokens"),
    "results": ("prompt_tokens", "", "completion_tokens"),
    "stats": ("input_tokens", "", "total_output_tokens"),
}
"""Key of the counts, with the names of prompt, cached and generated tokens in it."""


def usage_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of an answer's object as OpenAI's `usage`; empty without any."""
    found: dict[str, Any] = {}
    for place, (prompt, cached, generated) in NAMES.items():
        fields = answer if not place else _first(answer.get(place))
        counts = {"prompt_tokens": fields.get(prompt), "completion_tokens": fields.get(generated)}
        found |= {key: value for key, value in counts.items() if isinstance(value, int) and value}
        if cached and isinstance(fields.get(cached), int):
            found["prompt_tokens_details"] = {"cached_tokens": fields[cached]}
    return found


def _first(value: object) -> Mapping[str, Any]:
    return mapping(value[0] if isinstance(value, list) and value else value)


def texts_of(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Kind and text that an answer's object adds to the reply.

    SGLang's `text` is not here: each event of its stream repeats all that came before.
    """
    for key, kind in (("thinking", "reasoning"), ("response", "text"), ("token", "text")):
        if isinstance(answer.get(key), str):
            yield kind, answer[key]
    results = _first(answer.get("results"))
    if isinstance(results.get("text"), str):
        yield "text", results["text"]


def is_last(answer: Mapping[str, Any]) -> bool:
    """True for the last object of a stream of Ollama, KoboldCpp or LM Studio."""
    ended = "token" in answer and bool(answer.get("finish_reason"))
    return ended or answer.get("done") is True or answer.get("type") == "chat.end"


def is_lm_studio(path: str) -> bool:
    """True for the path of LM Studio's own chat, whose conversations are kept by the server."""
    return path.rstrip("/").endswith("/api/v1/chat")


def messages_of(request: Mapping[str, Any], earlier: list[Any]) -> dict[str, Any]:
    """A request of LM Studio's own chat as messages for the template."""
    system = request.get("system_prompt")
    first: list[Any] = []
    if isinstance(system, str) and system:
        first = [{"role": "system", "content": system}]
        earlier = [each for each in earlier if each["role"] != "system"]
    given = request.get("input")
    content = [_part(each) for each in given] if isinstance(given, list) else given
    rest = {key: value for key, value in request.items() if key not in {"input", "system_prompt"}}
    return {**rest, "messages": [*first, *earlier, {"role": "user", "content": content}]}


def _part(part: object) -> Mapping[str, Any]:
    fields = mapping(part)
    if isinstance(fields.get("content"), str):
        return {"type": "text", "text": fields["content"]}
    return fields
