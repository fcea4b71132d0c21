"""Chat templates: how a list of messages becomes one text.

Three are enough for what people report: the plain one, one that drops the reasoning of earlier
turns (the most frequent cause of a miss, across all engines), and one that refuses a conversation
without a user message (which defeats servers that render a system message alone to find its end).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cachesim.errors import TemplateError

TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"
THINK_START: Final = "<think>"
THINK_END: Final = "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A turn of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The chat template of a family of models."""

    name: str
    about: str
    show: Callable[[Sequence[Message]], tuple[tuple[str, str], ...]]
    generation_prompt: str
    thinks: bool = False


def turn(role: str, content: str) -> str:
    """A message between its marks."""
    return f"{TURN_START}{role}\n{content}{TURN_END}\n"


def without_reasoning(content: str) -> str:
    """The text behind the closing think mark; all of it where there is none."""
    return content.rpartition(THINK_END)[2].lstrip("\n")


def show_as_written(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    """Every message as the client sent it."""
    return tuple((each.role, turn(each.role, each.content)) for each in messages)


def show_without_old_reasoning(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    """Assistant messages before the last user message lose their reasoning (as Qwen 3 does)."""
    asked = [index for index, each in enumerate(messages) if each.role == "user"]
    last_user = asked[-1] if asked else -1
    return tuple(
        (each.role, turn(each.role, without_reasoning(each.content)))
        if each.role == "assistant" and index < last_user
        else (each.role, turn(each.role, each.content))
        for index, each in enumerate(messages)
    )


def show_if_a_user_speaks(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    """The messages as written; one from a user is required (as by Qwen 3.5)."""
    if not any(each.role == "user" for each in messages):
        msg = "the chat template 'needs-user' found no user message; add one with role = \"user\""
        raise TemplateError(msg)
    return show_as_written(messages)


PLAIN_PROMPT: Final = f"{TURN_START}assistant\n"

TEMPLATES: Final = {
    each.name: each
    for each in (
        Template(
            name="chatml",
            about="every message between its marks, as the client sent it",
            show=show_as_written,
            generation_prompt=PLAIN_PROMPT,
        ),
        Template(
            name="strip-reasoning",
            about="drops the reasoning of assistant turns before the last user message",
            show=show_without_old_reasoning,
            generation_prompt=f"{PLAIN_PROMPT}{THINK_START}\n",
            thinks=True,
        ),
        Template(
            name="needs-user",
            about="refuses a conversation without a user message",
            show=show_if_a_user_speaks,
            generation_prompt=PLAIN_PROMPT,
        ),
    )
}
