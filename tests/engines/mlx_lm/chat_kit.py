"""Toy conversations: a server, messages of counted words, and what came of it."""

from cachesim.engines.base import Message
from cachesim.model.presets import tiny

ATTN = tiny("dense")
HYB = tiny("hybrid-delta")


def text(count: int, first: int) -> str:
    return " ".join(f"w{first + i}" for i in range(count))


def system(count: int = 10, first: int = 0) -> Message:
    return Message(role="system", content=text(count, first))


def user(count: int, first: int) -> Message:
    return Message(role="user", content=text(count, first))


def said(template: str = "chatml") -> Message:
    """What the client sends back of a reply."""
    first = 90 if template == "think" else 92
    return Message(role="assistant", content=text(3, first))


def tool(count: int, first: int) -> Message:
    return Message(role="tool", content=text(count, first))
