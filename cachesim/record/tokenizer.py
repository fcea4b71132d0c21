"""Exact tokens and message starts of a prompt, by requests to the server.

llama-server has `/props`, `/apply-template` and `/tokenize`; they answer beside the requests that
are at work. The tokens stay in memory. The line gets runs: "the first 412 tokens are those of
request 3, then come 57 that are new".

    request 3   t0 .. t411 | t412 ..             text 6
    request 4   t0 .. t411 | u0 .. u56           [[6, 0, 412], [8, 412, 469]]
"""

import asyncio
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from aiohttp import ClientError, ClientSession, ClientTimeout

from cachesim.engines.tokens import Rope, Run, common_numbers
from cachesim.record.converted import chat_of
from cachesim.typed import Json
from cachesim.units import Array
from cachesim.why.read.dump import Recorded

PATIENCE: Final = 10.0
"""Seconds until a query times out."""

FAILURES: Final = 3
"""Number of failed queries after which none is sent."""

MOST_CACHED: Final = 64
"""Prompts with cached tokens."""

LONGEST: Final = 4 << 20
"""Most characters of a prompt that is queried."""

TEMPLATED: Final = (
    "messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs",
    "add_generation_prompt", "reasoning_format", "response_format", "json_schema", "grammar",
    "continue_final_message", "enable_thinking", "chat_template", "reasoning_effort",
)  # fmt: skip
"""Fields of a chat that its template reads."""

UNSTAMPED: Final = 8929
"""The first release here whose server overwrites a billing header's stamp (llama.cpp#21793)."""

ONE, OTHER, THIRD = "ONE", "OTHER", "THIRD"


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a prompt, as runs of named texts."""

    runs: tuple[Run, ...]
    user_starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CachedPrompt:
    """A prompt with its tokens, and those of its reply."""

    tokens: Array
    rope: Rope


class ServerTokenizer:
    """Queries to a server, called from the recording thread and run on the event loop."""

    def __init__(
        self, upstream: str, session: ClientSession, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._upstream = upstream
        self._session = session
        self._loop = loop
        self._failures = 0
        self._cached: deque[CachedPrompt] = deque(maxlen=MOST_CACHED)
        self._mark: Array | None = None  # what a user's message begins with; empty: not known
        self._is_supported: bool | None = None
        self.facts: dict[str, Any] = {}

    def properties(self) -> dict[str, Any]:
        """Read the server's properties."""
        if self._is_supported is None:
            props = self._request("GET", "/props", None)
            self._is_supported = isinstance(props, dict) and "default_generation_settings" in props
            if isinstance(props, dict) and self._is_supported:
                settings = props["default_generation_settings"]
                self.facts = {
                    "build": str(props.get("build_info", ""))[:80],
                    "slots": props.get("total_slots"),
                    "n_ctx": settings.get("n_ctx") if isinstance(settings, dict) else None,
                    "model": str(props.get("model_path", "")).replace("\\", "/").rsplit("/", 1)[-1],
                }
        return self.facts

    def tokens_of(self, path: str, request: Mapping[str, Any], own: Recorded) -> Tokens | None:
        """The tokens of a request; None if the server cannot count them, or contradicts itself."""
        if own.characters > LONGEST or self._failures >= FAILURES:
            return None
        self.properties()
        if not self._is_supported:
            return None
        text = self._text(path, request)
        if text is None:
            return None
        ids = self._tokenized(text)
        if ids is None:
            return None
        if own.prompt_tokens is not None and own.prompt_tokens != len(ids):
            return None
        starts = self._user_starts(ids) if request.keys() & {"messages", "input"} else ()
        best, equal = None, 0
        for prompt in reversed(self._cached):
            shared = common_numbers(prompt.tokens, ids)
            if shared > equal:
                best, equal = prompt, shared
        rope = best.rope[:equal] if best is not None else Rope()
        rope += Rope([(2 * own.number, equal, len(ids))])
        runs = tuple(rope.runs)
        self._cached.append(self._with_reply(own, ids, rope))
        return Tokens(runs, starts)

    def _text(self, path: str, request: Mapping[str, Any]) -> str | list[int] | None:
        build = re.match(r"b?(\d+)", str(self.facts.get("build", "")))
        normalizes = build is None or int(build[1]) >= UNSTAMPED
        chat = chat_of(path, request, normalizes=normalizes)
        if chat is not None:
            fields: dict[str, Any] = {key: chat[key] for key in TEMPLATED if key in chat}
            shown = self._request("POST", "/apply-template", fields)
            text = shown.get("prompt") if isinstance(shown, dict) else None
            return text if isinstance(text, str) else None
        prompt = request.get("prompt")
        if path.endswith(("/completion", "/completions")) and isinstance(prompt, str):
            return prompt
        if isinstance(prompt, list) and all(type(token) is int for token in prompt):
            return prompt
        return None

    def _tokenized(self, text: str | list[int], *, first: bool = True) -> Array | None:
        """The tokens of a text; `first`: of one at a prompt's start."""
        if isinstance(text, list):
            return np.asarray(text, dtype=np.int64)
        body = {"content": text, "add_special": first, "parse_special": True}
        answer = self._request("POST", "/tokenize", body)
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        try:
            ids = np.asarray(tokens, dtype=np.int64)
        except (TypeError, ValueError, OverflowError):
            return None
        return ids if ids.ndim == 1 else None

    def _with_reply(self, own: Recorded, ids: Array, rope: Rope) -> CachedPrompt:
        rope = rope.copy()
        texts = [segment for segment in own.reply if segment.kind == "text"]
        if own.generated and len(texts) == len(own.reply) == 1:
            found = self._tokenized(texts[0].text, first=False)
            if found is not None:
                reply = found[: own.generated]
                rope += Rope.of(2 * own.number + 1, len(reply))
                ids = np.concatenate([ids, reply])
        return CachedPrompt(ids, rope)

    def _user_starts(self, ids: Array) -> tuple[int, ...]:
        if self._mark is None:
            roles = (("user", ONE), ("assistant", OTHER), ("user", THIRD))
            messages = [{"role": role, "content": text} for role, text in roles]
            shown = self._request("POST", "/apply-template", {"messages": messages})
            text = shown.get("prompt") if isinstance(shown, dict) else None
            mark = _mark_in(text) if isinstance(text, str) else ""
            found = self._tokenized(mark, first=False) if mark else None
            self._mark = np.zeros(0, dtype=np.int64) if found is None else found
        if not len(self._mark) or len(self._mark) > len(ids):
            return ()
        windows = np.lib.stride_tricks.sliding_window_view(ids, len(self._mark))
        return tuple(int(at) for at in np.flatnonzero((windows == self._mark).all(axis=1)))

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Json:
        if self._failures >= FAILURES:
            return None
        future = asyncio.run_coroutine_threadsafe(self._answer(method, path, body), self._loop)
        try:
            return future.result(timeout=PATIENCE + 1)
        except (ClientError, TimeoutError, OSError, ValueError, RuntimeError):
            future.cancel()
            self._failures += 1
            return None

    async def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> Json:
        async with self._session.request(
            method, f"{self._upstream}{path}", json=body, timeout=ClientTimeout(total=PATIENCE)
        ) as answer:
            if answer.status != 200:
                return None
            return await answer.json(content_type=None)


def _mark_in(text: str) -> str:
    """The text before the first user's message that also precedes the second."""
    first, _, rest = text.partition(ONE)
    between = rest.partition(OTHER)[2].partition(THIRD)[0]
    size = 0
    while size < min(len(first), len(between)) and first[-size - 1] == between[-size - 1]:
        size += 1
    return first[len(first) - size :] if size else ""
