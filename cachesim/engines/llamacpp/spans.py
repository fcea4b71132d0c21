"""Starts of messages in a prompt: given as offsets, or found by their delimiters."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from cachesim.engines.byte_tokenizer import ByteTokenizer
from cachesim.errors import OptionError
from cachesim.units import Pos, Token, Tokens

Start: TypeAlias = tuple[str, Pos]
"""A role and the first token of its message."""


def message_starts(prompt: Tokens, fields: Mapping[str, Any]) -> tuple[Start, ...]:
    """Read `message_spans` or `message_delimiters` of a request, in the order of the prompt.

    A span says `{"role": "user", "start": 12}` with the offset of its first token; the real server
    takes byte offsets into the text, which token prompts do not have. A delimiter says
    `{"role": "user", "delimiter": [259, 262]}`, as tokens or as text. The server that the wheel of
    b11549 runs reads delimiters for chats alone, out of the template; here a request may bring them
    as it could in b11434, so that a plain prompt can have messages.
    """
    spans = [_span(each, len(prompt)) for each in fields.get("message_spans") or ()]
    found = find_delimiters(prompt, [_delimiter(d) for d in fields.get("message_delimiters") or ()])
    return tuple(sorted([*spans, *found], key=lambda start: start[1]))


def user_starts(starts: Sequence[Start]) -> tuple[Pos, ...]:
    """First tokens of user messages."""
    return tuple(pos for role, pos in starts if role == "user")


def find_delimiters(prompt: Tokens, delimiters: Sequence[tuple[str, Tokens]]) -> list[Start]:
    """Scan a prompt: at each token the first delimiter that matches begins a message.

    The scan advances by one token, so matches may overlap. Trap: a delimiter without tokens
    matches everywhere.

    Upstream: `server_tokens::find_message_spans`.
    """
    found: list[Start] = []
    for at in range(len(prompt) if delimiters else 0):
        for role, tokens in delimiters:
            if prompt[at : at + len(tokens)] == tokens:
                found.append((role, Pos(at)))
                break
    return found


def _span(given: object, n_tokens: int) -> Start:
    role, start = _fields(given, "message_spans", "start")
    if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start < n_tokens:
        msg = f"a message span starts at {start!r}; write a token offset from 0 to {n_tokens - 1}"
        raise OptionError(msg)
    return role, Pos(start)


def _delimiter(given: object) -> tuple[str, Tokens]:
    role, delimiter = _fields(given, "message_delimiters", "delimiter")
    if isinstance(delimiter, str):
        return role, ByteTokenizer().encode(delimiter)
    if isinstance(delimiter, list | tuple) and all(isinstance(each, int) for each in delimiter):
        return role, tuple(Token(each) for each in delimiter)
    msg = f"a message delimiter is {delimiter!r}; write its text or a list of tokens"
    raise OptionError(msg)


def _fields(given: object, where: str, what: str) -> tuple[str, Any]:
    if not isinstance(given, Mapping) or set(given) != {"role", what}:
        msg = f"an entry of {where!r} is {given!r}; write a table with 'role' and {what!r}"
        raise OptionError(msg)
    return str(given["role"]), given[what]
