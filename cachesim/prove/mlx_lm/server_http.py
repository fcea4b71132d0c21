"""Clients of the real HTTP server, and the two queues of it that are watched.

Runs in a release's environment. Races are serialised here: requests that are sent together are
admitted in their order, time is counted in turns of the generation thread, and a client that leaves
is gone before its next item is written.
"""

import json
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, Queue
from typing import Any

from cachesim.prove.worker_side import Json, Real

PATIENCE = 30.0
FILLER = 20


NEVER = 60
"""Turns without output and without a poll of the queue after which the thread counts as stuck."""


class Turns:
    """The budget of a slice between two polls of the queue: one turn, and they are counted.

    Before #741 a slice took half a second: there a turn takes one second of this clock.
    """

    count = 0
    seconds = 0.0

    def __iter__(self) -> Iterator[None]:
        self.count += 1
        return iter((None,))

    def time(self) -> float:
        return self.seconds

    def pass_one(self) -> None:
        """A turn is over, in a release without such a budget."""
        self.count += 1
        self.seconds += 1.0


class RequestQueue(Queue):  # type: ignore[type-arg]
    """The queue of the generation thread, which does not let an idle one sleep for long.

    Requests of a group wait until all of them are there; `later` holds what arrives after a number
    of turns of the thread, or when it is idle.
    """

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self.turns = turns
        self.shut = False
        self.idle = False
        self.stuck = False
        self.arrived: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._polled: int | None = None  # the turn of the last poll of an empty queue
        self._idling = 0
        self._deciding = threading.Lock()  # who comes in: nobody opens the gate meanwhile
        self.later: list[tuple[int, Any]] = []

    def put(self, item: Real, *_: Real, **__: Real) -> None:
        """Put a request of an HTTP thread; its number is in a field that no sampler reads."""
        _, request, args = item
        number = number_of(args)
        self._numbers[id(request)] = number
        self.arrived[number] = item

    def number_of(self, request: Real) -> int:
        return self._numbers[id(request)]

    def turned(self, *, has_output: bool) -> None:
        """A call of the batch generator ended, with or without output."""
        if has_output:
            self.turns.pass_one()
            self._idling = 0
            return
        self._idling += 1
        if self._idling >= NEVER:
            self.stuck = self.idle = True
        time.sleep(0.0005)

    def open(self, order: Sequence[tuple[int, int]]) -> None:
        """Let in requests by number and by the turn that they come in.

        All of a turn at once: a thread that has been waiting since before the gate was shut would
        run off with the first of them.
        """
        with self._deciding:
            self.turns.count = 0
            self._polled = None
            self.later = [(at, self.arrived.pop(number)) for number, at in order if at]
            self.later.sort(key=lambda arrival: arrival[0])
            with self.mutex:
                self.queue.extend(self.arrived.pop(number) for number, at in order if not at)
                self.shut = self.idle = False
                self.not_empty.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Real:  # noqa: FBT001, FBT002 - a queue has it
        """As `Queue.get`, but empty while it is shut; only an idle thread waits."""
        with self._deciding:
            shut = self.shut
            if not shut:
                # Admit requests that are due by their turn, or because the thread is idle.
                waits = timeout is not None or self._polled == self.turns.count
                self._idling = 0
                bored = waits and self.empty()
                while self.later and (bored or self.later[0][0] <= self.turns.count):
                    super().put(self.later.pop(0)[1])
                    bored = False
                self._polled = self.turns.count if self.empty() else None
                self.idle = self.idle or (waits and self.empty() and not self.later)
        if shut:
            time.sleep(0.001)
            raise Empty
        return super().get(block, None if timeout is None else min(timeout, 0.005))


def number_of(args: Real) -> int:
    """The number that a request carries; the processor that would read it is replaced."""
    return int(args.logits.repetition_context_size)


class Inbox(Queue):  # type: ignore[type-arg]
    """Queue of one request from the generation thread to the HTTP thread.

    Both go in step: the next item is added when the HTTP thread is done with the last one, or has
    ended, as it does when its client is gone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.items: list[Any] = []
        self.leave: Callable[[], None] | None = None
        self.left: int | None = None  # tokens until its client leaves
        self.noticed = False
        self._thread = threading.current_thread()
        self._returned = self._done = 0

    def put(self, item: Real, *rest: Real, **more: Real) -> None:
        """Queue an item: the context of the request first, then progress and tokens."""
        token = hasattr(item, "token")
        known = bool(self.items)
        if self.left == 0 and known and item is not None and self.leave is not None:
            self.leave()
            self.noticed = True
        elif self.left and token:
            self.left -= 1
        self.items.append(item)
        super().put(item, *rest, **more)
        if known:
            ends = time.monotonic() + PATIENCE
            while self._done < len(self.items) and self._thread.is_alive():
                if time.monotonic() > ends:
                    break
                time.sleep(0.0002)

    def get(self, *rest: Real, **more: Real) -> Real:
        self._done = self._returned
        item = super().get(*rest, **more)
        self._returned += 1
        return item


FIELDS = {"folder": "model", "seed": "seed", "stop_words": "stop"}
FIELDS |= {"chat_template_kwargs": "chat_template_kwargs"}
"""Fields of a request as a client sends them."""


def call_of(request: Json, number: int, *, reports_tokens: bool) -> tuple[str, Json]:
    """Endpoint and body of a request; its number is in a field that no sampler reads."""
    chat = "messages" in request
    body = {
        "max_tokens": request["max_tokens"],
        "repetition_context_size": number,
        "stream": request.get("stream", False),
        "stream_options": {"include_usage": True},
    }
    body |= {"logprobs": True} if reports_tokens else {}
    body |= {"messages": request["messages"]} if chat else {"prompt": request["text"]}
    body |= {field: request[name] for name, field in FIELDS.items() if name in request}
    if "tools" in request:
        named = [{"name": name} for name in request["tools"]]
        body["tools"] = [{"type": "function", "function": function} for function in named]
    body |= request.get("body", {})
    return ("/v1/chat/completions" if chat else "/v1/completions"), body


class Client(threading.Thread):
    """Send a request over a socket; read its answer to the end."""

    def __init__(self, port: int, path: str, body: Json) -> None:
        super().__init__(daemon=True)
        self.status: int | None = None
        self.answer: list[Json] = []
        self._leave, self.closed = threading.Event(), threading.Event()
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        self._request = head.encode() + content
        self._port = port

    def leave(self) -> None:
        """Disconnect at once, and wait until the socket is closed."""
        self._leave.set()
        self.closed.wait(PATIENCE)

    def run(self) -> None:
        received = b""
        with socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE) as server:
            server.sendall(self._request)
            while not self._leave.is_set():
                if not select.select([server], [], [], 0.002)[0]:
                    continue
                piece = self._read(server)
                if not piece:
                    break
                received += piece
            if self._leave.is_set():  # at once, so that the next write to it fails
                server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.closed.set()
        head, _, body = received.partition(b"\r\n\r\n")
        if head:
            self.status = int(head.split(b" ")[1])
        for line in body.decode().splitlines():
            text = line.removeprefix("data: ")
            if text.startswith("{"):
                self.answer.append(json.loads(text))

    @staticmethod
    def _read(server: socket.socket) -> bytes:
        try:
            return server.recv(1 << 16)
        except ConnectionError:
            return b""

    @property
    def usage(self) -> Json:
        return next((chunk["usage"] for chunk in reversed(self.answer) if "usage" in chunk), None)

    @property
    def cached(self) -> int | None:
        return ((self.usage or {}).get("prompt_tokens_details") or {}).get("cached_tokens")

    @property
    def wire(self) -> Json:
        """Counts and tokens of the HTTP answer; empty without counts."""
        usage = self.usage
        return usage and {
            "status": self.status,
            "prompt_tokens": usage["prompt_tokens"],
            "completion_tokens": usage["completion_tokens"],
            "cached_tokens": self.cached,
            "tokens": self.tokens,
        }

    @property
    def tokens(self) -> list[int] | None:
        """The tokens of an answer without a stream; streams have none."""
        choices = self.answer[0].get("choices") if len(self.answer) == 1 else None
        logprobs = (choices or [{}])[0].get("logprobs")
        if logprobs is None:
            return None
        content = logprobs.get("content")
        return logprobs["tokens"] if "tokens" in logprobs else [entry["id"] for entry in content]
