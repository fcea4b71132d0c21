"""Small servers for the probe: counts of a simulated engine, logits that are hashes of the prompt.

A server speaks one dialect, may add noise to its logits, may have a planted bug (`context`: the
tokens that its answer is computed from), and may misbehave (`fault`: what it does instead).
"""

import json
import os
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from cachesim import Engine, Request, preset
from cachesim.model.build import build

VOCABULARY = 512
Tokens = tuple[int, ...]
Context = Callable[[Tokens, int, "Model"], Tokens]
Fault = Callable[["Fake", int], str]


class Model:
    """A simulated engine without a network, and logits from hashes."""

    def __init__(
        self, profile: str, model: str, context: Context, noise: float, **options: Any
    ) -> None:
        network = build(preset(model), "counts")
        self.created = partial(Engine.create, profile, model=network, options=options)
        self.engine = self.created()
        self.context, self.noise = context, noise
        self.lock = threading.Lock()
        self.slots = options.get("parallel", 1)
        self.random = np.random.default_rng(0)
        self.reuses = 0
        self.weights = 0
        self.shift = 0.0  # of all log probabilities
        self.decodes_apart = False  # tokens are decoded by other kernels than prompts
        self.previous: Tokens = (1, 2, 3)  # the request before

    def reply(self, prompt: Tokens, reply: Tokens, predict: int, **how: Any) -> Any:
        """Cached count, tokens and log probabilities; the refusal where it refuses."""
        with self.lock:
            tokens: list[int] = []
            for at in range(predict):  # those of the cold answer, which the engine keeps
                best = int(np.argmax(self.logits(prompt + tuple(tokens), noise=0)))
                tokens.append(reply[at] if reply else best)
            asked = Request(prompt=prompt, predict=predict, reply=tuple(tokens), **how)
            ticket = self.engine.submit(asked)
            self.engine.run()
            done = self.engine.reply(ticket)
            if done is None or done.error:
                return "no answer" if done is None else done.error
            cached = done.cached or 0
            self.reuses += cached > 0
            used = self.context(prompt, cached, self) if cached else prompt
            self.previous = prompt
            self.shift = self.shift if cached else 0.0
            other = (1,) if self.decodes_apart else ()
            rows = [
                self.logits(used + tuple(tokens[:at]) + (other if at else ()), self.noise)
                + self.shift
                for at in range(predict)
            ]
            return cached, tokens, rows

    def logits(self, tokens: Tokens, noise: float) -> Any:
        seed = zlib.crc32(np.asarray(tokens, dtype=np.int64).tobytes(), self.weights)
        raw = 2 * np.random.default_rng(seed).normal(size=VOCABULARY)
        raw = raw + noise * self.random.normal(size=VOCABULARY)
        return raw - np.log(np.exp(raw - raw.max()).sum()) - raw.max()


def sound(prompt: Tokens, _: int, __: Model) -> Tokens:
    return prompt


def well_behaved(_: "Fake", __: int) -> str:
    return ""


class _Silent(ThreadingHTTPServer):
    """Prints nothing of a client that leaves: the log of a fake is its last words alone."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request, client_address


class Fake:
    """A running server; `requests` counts what it was sent."""

    def __init__(
        self, dialect: str, model: Model, fault: Fault = well_behaved, port: int = 0
    ) -> None:
        self.dialect, self.model, self.fault = dialect, model, fault
        self.requests = 0
        self.erased = 0
        self.key = ""  # that each request has to name
        self.bodies: list[Any] = []
        self.server = _Silent(("127.0.0.1", port), handler_of(self))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def fake(
    dialect: str,
    profile: str,
    *,
    model: str = "dense",
    context: Context = sound,
    noise: float = 0.0,
    fault: Fault = well_behaved,
    **options: Any,
) -> Iterator[Fake]:
    one = Fake(dialect, Model(profile, model, context, noise, **options), fault)
    try:
        yield one
    finally:
        one.close()


def handler_of(fake: Fake) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def say(self, found: Any, status: int = 200) -> None:
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(OSError):  # the client is gone
                self.wfile.write(data)

        def denied(self) -> bool:
            allowed = not fake.key or self.headers["Authorization"] == f"Bearer {fake.key}"
            if not allowed:
                self.say({"error": {"message": "Invalid API Key"}}, 401)
            return not allowed

        def do_GET(self) -> None:
            if self.denied():
                return
            known = GETS[fake.dialect](fake)
            path = self.path.partition("?")[0]
            self.say(known[path]) if path in known else self.say({}, 404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
            if self.denied():
                return
            if "erase" in self.path or "reset" in self.path or "flush" in self.path:
                fake.erased += 1
                self.say({})
                return
            path, answer = POSTS[fake.dialect]
            if self.path != path:
                self.say({}, 404)
                return
            fake.requests += 1
            fake.bodies.append(body)
            done = fake.fault(fake, fake.requests)
            if done == "drop":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b'{"half')
                self.close_connection = True
            elif done == "hang":
                threading.Event().wait(3)
                self.close_connection = True
            elif done == "refuse":
                self.say({"error": "generation thread died"}, 404)
            elif done == "deny":
                self.say({"error": {"message": "too many requests"}}, 429)
            elif done == "broken":
                self.say({"error": "out of memory"}, 500)
            elif done == "nonsense":
                self.send_response(200)
                self.send_header("Content-Length", "5")
                self.end_headers()
                self.wfile.write(b"<html")
            elif done == "crash":
                self.close_connection = True
                threading.Thread(target=fake.close, daemon=True).start()
            else:
                found = answer(fake, body)
                self.say({"error": {"message": found}}, 400) if isinstance(
                    found, str
                ) else self.say(found)

    return Handler


def _top(row: Any, count: int) -> list[tuple[int, float]]:
    return [(int(at), float(row[at])) for at in np.argsort(-row)[:count]]


def _llama(fake: Fake, body: Any) -> Any:
    reply = tuple(int(part.strip("<[]>")) for part in body.get("grammar", "").split()[2:])
    done = fake.model.reply(
        tuple(body["prompt"]),
        reply,
        body["n_predict"],
        cache_prompt=body["cache_prompt"],
        slot=body.get("id_slot", -1),
    )
    if isinstance(done, str):
        return done
    cached, tokens, rows = done
    return {
        "tokens": tokens,
        "content": "",
        "id_slot": 0,
        "tokens_evaluated": len(body["prompt"]),
        "timings": {"cache_n": cached, "prompt_n": len(body["prompt"]) - cached},
        "completion_probabilities": [
            {"top_logprobs": [{"id": t, "logprob": p} for t, p in _top(row, body["n_probs"])]}
            for row in rows
        ],
    }


def _vllm(fake: Fake, body: Any) -> Any:
    if max(body["prompt"]) >= VOCABULARY:
        return "token id out of range"
    salt = body.get("cache_salt")
    options = {"cache_salt": salt} if salt else {}
    done = fake.model.reply(tuple(body["prompt"]), (), body["max_tokens"], options=options)
    if isinstance(done, str):
        return done
    cached, tokens, rows = done
    top = [{f"token_id:{t}": p for t, p in _top(row, body["logprobs"])} for row in rows]
    usage = {
        "prompt_tokens": len(body["prompt"]),
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    choice = {"text": "", "token_ids": tokens, "logprobs": {"top_logprobs": top}}
    return {"choices": [choice], "usage": usage}


def _sglang(fake: Fake, body: Any) -> Any:
    if max(body["input_ids"]) >= VOCABULARY:
        return "token id out of range"
    key = body.get("extra_key")
    options = {"extra_key": key} if key else {}
    count = body["sampling_params"]["max_new_tokens"]
    done = fake.model.reply(tuple(body["input_ids"]), (), count, options=options)
    if isinstance(done, str):
        return done
    cached, tokens, rows = done
    tops = [[[p, t, None] for t, p in _top(row, body["top_logprobs_num"])] for row in rows]
    meta = {
        "cached_tokens": cached,
        "prompt_tokens": len(body["input_ids"]),
        "output_top_logprobs": tops,
        "output_token_logprobs": [[0.0, token, None] for token in tokens],
    }
    return {"text": "", "meta_info": meta}


def _text(fake: Fake, body: Any) -> Any:
    """Words w0 to w511, as mlx_lm.server has them: without a switch for the cache."""
    ids = [int(part[1:]) if part[1:].isdigit() else 0 for part in body["prompt"].split()]
    done = fake.model.reply(tuple(ids), (), body["max_tokens"])
    if isinstance(done, str):
        return done
    cached, _, rows = done
    content = [
        {"top_logprobs": [{"id": t, "token": f"w{t}", "logprob": p} for t, p in _top(row, 10)]}
        for row in rows
    ]
    usage = {"prompt_tokens": len(ids), "prompt_tokens_details": {"cached_tokens": cached}}
    return {
        "system_fingerprint": "0.32.2-0.30.1-Linux-None",
        "choices": [{"text": "", "logprobs": {"content": content}}],
        "usage": usage,
    }


ROLES = {"system": 1, "user": 2, "assistant": 3}


def _chat(fake: Fake, body: Any) -> Any:
    """Messages, each between two tokens of a template."""
    words = [
        word
        for message in body["messages"]
        for word in (f"w{ROLES[message['role']]}", *message["content"].split(), "w4")
    ]
    found = _text(fake, {**body, "prompt": " ".join([*words, "w3"])})
    if isinstance(found, dict):
        del found["choices"][0]["text"]
    return found


def _ollama(fake: Fake, body: Any) -> Any:
    """Raw prompts; a request without one unloads the model."""
    if body.get("keep_alive") == 0:
        fake.erased += 1
        fake.model.engine = fake.model.created()
        return {"done": True}
    ids = [int(part[1:]) if part[1:].isdigit() else 0 for part in body["prompt"].split()]
    done = fake.model.reply(tuple(ids), (), body["options"]["num_predict"])
    if isinstance(done, str):
        return done
    rows = [
        {"top_logprobs": [{"token": f"w{t}", "logprob": p} for t, p in _top(row, 20)]}
        for row in done[2]
    ]
    return {"response": " ".join(f"w{t}" for t in done[1]), "logprobs": rows}


def _serve(fake: Fake, body: Any) -> Any:
    """Texts alone, without counts, as of `transformers serve`."""
    found = _text(fake, body)
    if isinstance(found, str):
        return found
    content = found["choices"][0]["logprobs"]["content"]
    text = " ".join(each["top_logprobs"][0]["token"] for each in content)
    return {"choices": [{"text": text}], "usage": {"prompt_tokens": 1}}


def serve(dialect: str, profile: str, port: str, bug: str = "", *_: str) -> None:
    """A server of its own process, for `--start`; of a text server the caller names the bug."""
    contexts = {"bug": stale, "every": dict(bugs())["first token"]}
    model = Model(profile, "dense", contexts.get(bug, sound), 1e-3)

    def drifts(fake: Fake, number: int) -> str:
        fake.model.weights = int(bug == "drift" and number > 100)
        if bug == "dies" and number > 100:
            os._exit(3)
        return ""

    one = Fake(dialect, model, drifts, port=int(port))
    signal.signal(signal.SIGTERM, lambda *_: None if bug == "stays" else os._exit(0))
    threading.Event().wait()
    one.close()


def stale(prompt: Tokens, cached: int, _: Model) -> Tokens:
    """The last reused token of longer prefixes is another one."""
    return prompt if cached < 20 else (*prompt[: cached - 1], 1, *prompt[cached:])


def bugs() -> Iterator[tuple[str, Context]]:
    """Twenty contexts of answers that are wrong in some condition of the reuse."""
    yield "one key short", lambda p, c, _: p[1:] if c > 2 else p
    yield "last token", lambda p, c, _: (*p[: c - 1], 3, *p[c:])
    yield "first token", lambda p, *_: (3, *p[1:])
    yield "a whole block", lambda p, c, _: (3, *p[1:]) if c % 16 == 0 else p
    yield "short prefix", lambda p, c, _: (3, *p[1:]) if c < 20 else p
    yield "long prefix", lambda p, c, _: (3, *p[1:]) if c > 30 else p
    yield "all but one", lambda p, c, _: (3, *p[1:]) if c >= len(p) - 1 else p
    yield "other session", lambda p, _, m: (*m.previous[:1], *p[1:])
    yield "turned", lambda p, c, _: (*p[1:c], p[0], *p[c:])
    yield "every second", lambda p, _, m: (3, *p[1:]) if m.reuses % 2 else p
    yield "middle token", lambda p, c, _: (*p[: c // 2], 3, *p[c // 2 + 1 :])
    yield "swapped", lambda p, c, _: (*p[: c - 2], p[c - 1], p[c - 2], *p[c:]) if c > 1 else p
    yield "doubled", lambda p, c, _: (*p[:c], *p[c - 1 :])
    yield "dropped", lambda p, c, _: (*p[: c - 1], *p[c:])
    yield "first computed", lambda p, c, _: (*p[:c], 3, *p[c + 1 :])
    yield "two blocks", lambda p, c, _: (3, *p[1:]) if c % 32 == 0 else p
    yield "late state", lambda p, c, m: (*m.previous[:c], *p[c:])
    yield "every third", lambda p, _, m: p if m.reuses % 3 else (3, *p[1:])
    yield "long suffix", lambda p, c, _: (3, *p[1:]) if len(p) - c > 12 else p
    yield "window", lambda p, c, _: p[max(0, c - 8) :]


def _models(**more: Any) -> Any:
    return {"data": [{"id": "toy", **more}]}


GETS: dict[str, Callable[[Fake], Any]] = {
    "llama": lambda fake: {
        "/health": {},
        "/v1/models": _models(meta={"n_vocab": VOCABULARY}),
        "/props": {
            "total_slots": fake.model.slots,
            "default_generation_settings": {"n_ctx": 4096},
            "build_info": "b1-fake",
        },
    },
    "vllm": lambda _: {"/version": {"version": "9.9"}, "/v1/models": _models(max_model_len=2048)},
    "sglang": lambda _: {
        "/get_model_info": {"model_path": "toy"},
        "/get_server_info": {"version": "0.9", "context_length": 2048},
        "/v1/models": _models(),
    },
    "text": lambda _: {"/v1/models": _models()},
    "chat": lambda _: {"/v1/models": _models()},
    "ollama": lambda _: {
        "/v1/models": _models(),
        "/api/version": {"version": "0.13.0"},
        "/api/tags": {"models": [{"name": "toy:latest"}]},
    },
    "serve": lambda _: {"/v1/models": _models(), "/openapi.json": {"paths": {"/load_model": {}}}},
}
POSTS: dict[str, tuple[str, Callable[[Fake, Any], Any]]] = {
    "llama": ("/completion", _llama),
    "vllm": ("/v1/completions", _vllm),
    "sglang": ("/generate", _sglang),
    "text": ("/v1/completions", _text),
    "chat": ("/v1/chat/completions", _chat),
    "serve": ("/v1/completions", _serve),
    "ollama": ("/api/generate", _ollama),
}


if __name__ == "__main__":
    serve(*sys.argv[1:])
