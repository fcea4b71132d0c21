"""What is done with each exchange when it is over: a line in the file, and a word on why.

    passage (event loop) ── exchange ──> queue ──> session (one thread) ──> file, view

The thread is given the processor for a moment at a time, so that answers that are passing never
wait long for it; where it falls behind, clients wait after their answers, never before them.
"""

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, Final

from cachesim.logs.dialects import is_lm_studio, messages_of
from cachesim.logs.dump import Recorded, acted
from cachesim.logs.live import Live
from cachesim.logs.segments import Segment
from cachesim.logs.slot_actions import SlotAction
from cachesim.record.asking import Asker, Tokens
from cachesim.record.entry import (
    action_entry,
    entry_of,
    reply_of,
    request_in,
    with_own_texts,
    with_texts,
)
from cachesim.record.exchange import Exchange
from cachesim.record.file import RecordFile
from cachesim.record.hashing import Hasher

MOST_WAITING: Final = 256 << 20
"""Bytes of exchanges that wait to be written."""

MOST_STORED: Final = 256
"""Conversations of LM Studio's that may still be continued."""

QUOTES: Final = ("before", "after", "sentence", "advice")
"""What a parting says that quotes the prompt, or that its kind says already."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the live view."""

    number: int
    client: str
    status: int | None
    cancelled: bool
    prompt: int | None
    cached: int | None
    again: int | None
    why: str
    how: str  # how `prompt` and `cached` are known; empty where there is no prompt


class Session:
    """Takes exchanges, one after the other, in a thread of its own."""

    def __init__(
        self,
        file: RecordFile,
        *,
        keep_text: bool,
        asker: Asker | None,
        live: Live,
        view: Callable[[Row], None],
        complain: Callable[[str], None],
    ) -> None:
        self._file = file
        self._hasher = None if keep_text else Hasher(secrets.token_bytes(32))
        self._asker = asker
        self.live = live
        self._view = view
        self._complain = complain
        self.without_prompt: Counter[str] = Counter()  # requests, by why none could be read
        self._stored: dict[str, list[Any]] = {}  # messages, by the name of LM Studio's answer
        self._actions: list[SlotAction] = []  # since the last request with a prompt
        self._queue: SimpleQueue[Exchange | None] = SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
        self._thread.start()

    def take(self, exchange: Exchange) -> None:
        """An exchange is over."""
        with self._lock:
            self._waiting += exchange.body.size
        self._queue.put(exchange)

    @property
    def is_behind(self) -> bool:
        """Whether so much waits that nothing should be added."""
        return self._waiting > MOST_WAITING

    def close(self) -> None:
        """Write what is left."""
        self._queue.put(None)
        self._thread.join()
        self._file.close()

    def _work(self) -> None:
        while (exchange := self._queue.get()) is not None:
            try:
                self._write(exchange)
            except Exception as error:  # noqa: BLE001 - whatever it is, requests go on passing
                self._complain(  # its text may quote the prompt
                    f"request {exchange.number} could not be recorded: {type(error).__name__}"
                )
            with self._lock:
                self._waiting -= exchange.body.size

    def _write(self, exchange: Exchange) -> None:
        said = exchange.answer.close()
        exchange.cancelled = exchange.cancelled and not said.ended
        request, problem = request_in(exchange)
        exchange.number = self._file.lines
        if exchange.action is not None:
            self._write_action(exchange, exchange.action, request)
            return
        request = self._whole(exchange, request)
        entry = entry_of(exchange, request, problem)
        reply = reply_of(said)
        self._store(exchange, request, reply)
        row: Row | None = None
        if not problem:
            try:
                entry, row = self._told(exchange, entry, request, reply)
            except ValueError as error:  # no prompt in it
                entry["unread"] = str(error)[:100]
        if "segments" not in entry and "request" not in entry:
            entry["segments"] = []
            self.without_prompt[str(entry.get("unread"))] += 1
        self._keep(entry)
        if row is not None:
            self._view(row)

    def _write_action(
        self, exchange: Exchange, called: tuple[str, int], request: Mapping[str, Any]
    ) -> None:
        """A slot was saved, restored or erased: the next request finds it so."""
        entry = action_entry(exchange, called, request, self._hasher)
        action = acted(entry, number=exchange.number)
        self._actions.append(action)
        self._keep(entry)
        self._view(_row_of_action(exchange, action))

    def _whole(self, exchange: Exchange, request: dict[str, Any]) -> dict[str, Any]:
        if not is_lm_studio(exchange.path):
            return request
        before = request.get("previous_response_id")
        earlier = self._stored.get(str(before)) if before else []
        if earlier is None:
            return request  # its beginning was not recorded
        rest = {key: value for key, value in request.items() if key != "previous_response_id"}
        return messages_of(rest, earlier)

    def _store(
        self, exchange: Exchange, request: Mapping[str, Any], reply: tuple[Segment, ...]
    ) -> None:
        name = exchange.answer.said.facts.get("response_id")
        if name is None or "messages" not in request:
            return
        said = {"text": "content", "reasoning": "reasoning_content"}
        answer = {said[each.kind]: each.text for each in reply if each.kind in said}
        self._stored[str(name)] = [*request["messages"], {"role": "assistant", **answer}]
        if len(self._stored) > MOST_STORED:
            del self._stored[next(iter(self._stored))]

    def _keep(self, entry: Mapping[str, Any]) -> None:
        was_well = not self._file.problem
        if not self._file.write(entry) and was_well:
            self._complain(
                f"RECORDING STOPPED: {self._file.path}: {self._file.problem}; "
                f"{self._file.lines} requests are in it. Requests still pass through."
            )

    def _told(
        self,
        exchange: Exchange,
        entry: dict[str, Any],
        request: dict[str, Any],
        reply: tuple[Any, ...],
    ) -> tuple[dict[str, Any], Row]:
        entry["server"] = self._facts()
        own = with_own_texts(entry, request, reply)
        tokens = self._tokens(exchange, request, own)
        if tokens is not None:
            entry["tokens"] = tokens.as_dict()
            own = replace(own, runs=tokens.runs, user_starts=tokens.user_starts)
        found = self.live.add(replace(own, actions=tuple(self._actions)))
        self._actions.clear()
        entry["seen"] = {
            "begins_like": found["begins_like"],
            "characters": found["equal_characters"],
            "continues": found["continues"],
        }
        if found["parting"] is not None:
            entry["parting"] = {
                key: value
                for key, value in found["parting"].items()
                if self._hasher is None or key not in QUOTES
            }
        entry = with_texts(entry, request, reply, self._hasher)
        return entry, row_of(exchange, own, found)

    def _facts(self) -> dict[str, Any]:
        facts = {} if self._asker is None else dict(self._asker.learn())
        about = self.live.about
        given = {"profile": about.profile, "options": dict(about.options)}
        return facts | {key: value for key, value in given.items() if value}

    def _tokens(
        self, exchange: Exchange, request: Mapping[str, Any], own: Recorded
    ) -> Tokens | None:
        if self._asker is None or exchange.broken or not own.was_read:
            return None
        return self._asker.tokens_of(exchange.path, request, own)


def _row_of_action(exchange: Exchange, action: SlotAction) -> Row:
    return Row(
        number=exchange.number,
        client=exchange.client,
        status=exchange.status,
        cancelled=exchange.cancelled,
        prompt=None,
        cached=None,
        again=None,
        why=action.sentence,
        how="",
    )


def row_of(exchange: Exchange, own: Recorded, found: Mapping[str, Any]) -> Row:
    """What the live view shows of a request."""
    return Row(
        number=exchange.number,
        client=exchange.client,
        status=exchange.status,
        cancelled=exchange.cancelled,
        prompt=found["prompt_tokens"],
        cached=own.cached,
        again=found["again"],
        why=found["why"],
        how=found["how"],
    )
