"""Fields of a recorded request whose value is none that a server takes: each with what to write."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cachesim.typed import mapping

REQUESTS: Final = ("request", "body")
"""Keys of a line under which its request may be."""

MESSAGE: Final = '{"role": "user", "content": "..."}'
LISTS: Final[Mapping[str, str]] = {
    "messages": f"a list of messages like {MESSAGE}",
    "tools": 'a list of tools like {"type": "function", "function": {...}}',
    "segments": 'a list of parts like {"part": "message 1", "characters": 512, "hashes": [...]}',
}
"""Fields that are lists of objects."""

SHOWN: Final = 40
"""Most characters of a value in an error."""


def check_fields(entry: Mapping[str, Any], *, has_prompt: bool) -> None:
    """Raise ValueError for the first wrong field of a line.

    Where a line has a prompt, others' recorders may give further fields any form; but no part of
    the prompt may be lost.
    """
    for problem in _problems(entry, has_prompt=has_prompt):
        raise ValueError(problem)


def _problems(entry: Mapping[str, Any], *, has_prompt: bool) -> Iterator[str]:
    under = next((key for key in REQUESTS if isinstance(entry.get(key), dict)), "")
    request = mapping(entry.get(under)) if under else entry
    before = f"{under}." if under else ""
    for key in REQUESTS:
        value = entry.get(key)
        if not has_prompt and value is not None and not isinstance(value, dict):
            yield f'field {key} is {_short(value)}; write an object like {{"messages": [...]}}'
    for name, form in LISTS.items():
        where, place = (before + name, request) if name != "segments" else (name, entry)
        value = place.get(name)
        if isinstance(value, list) or not has_prompt:
            yield from _of_list(where, value, form)
    messages = request.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content")
        if content is not None and not isinstance(content, str | list | dict):
            yield (
                f"field {before}messages[{index}].content is {_short(content)}; write a text, or "
                'a list of parts like {"type": "text", "text": "..."}'
            )
    prompt = request.get("prompt")
    if not has_prompt and isinstance(prompt, bool | int | float):
        yield f"field {before}prompt is {_short(prompt)}; write a text or a list of token ids"


def _of_list(where: str, value: object, form: str) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, list):
        yield f"field {where} is {_short(value)}; write {form}"
        return
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            yield f"field {where}[{index}] is {_short(item)}; write {form}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
