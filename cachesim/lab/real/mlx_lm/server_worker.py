"""Runs inside a real release's environment: plays workloads on mlx-lm's own server, over HTTP.

One line of JSON in, one line out: a workload goes in (model, template, options, groups of requests
with the tokens to say), what the server did comes out, in the form of the vector files. Everything
is the release's own, from `main` and its flags over the loader, the handler of requests and the
threads to the store; replaced are the sampler, which says what it is told to, and the queues
between the threads, which put in order what would come down to chance (`server_http.py`).
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = Any
Real: TypeAlias = Any  # modules, classes and objects of the release: known only when it runs

HERE = Path(__file__).parent
VOCABULARY = 64
"""Words, where a workload does not say otherwise."""

PATIENCE = 30.0
ROUNDING = 3e-5
"""Log probabilities that lie further apart than this are of another computation."""

FLAGS = (
    "prompt_cache_size",
    "prompt_cache_bytes",
    "prefill_step_size",
    "prompt_concurrency",
    "decode_concurrency",
    "kv_bits",
    "kv_group_size",
    "quantized_kv_start",
    "num_draft_tokens",
)


def main() -> None:
    """Play workloads until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.path.append(str(HERE))
    threading.excepthook = lambda _args: None
    with tempfile.TemporaryDirectory() as place:
        folders = importlib.import_module("server_models").Folders(Path(place))
        for line in sys.stdin:
            wanted = json.loads(line)
            answer = settings(wanted) if "settings" in wanted else play(wanted, folders)
            answers.write(json.dumps(answer) + "\n")


class ParsedError(Exception):
    """Ends `main` where its flags are known."""


def settings(wanted: Json) -> Json:
    """The server's flags as `mlx_lm.server --model MODEL` has them, and as a comparison has."""
    module: Real = importlib.import_module("mlx_lm.server")
    known = Path(str(module.__file__)).read_text()
    own = arguments_of("MODEL", wanted["settings"], known)
    return [parsed(module, each) for each in (["--model", "MODEL"], own)]


def parsed(module: Real, arguments: list[str]) -> Json:
    """Arguments as parsed by the release's own parser."""
    parse = argparse.ArgumentParser.parse_args

    def stop(parser: Real, *_: Real) -> Real:
        raise ParsedError(parse(parser, arguments))

    argparse.ArgumentParser.parse_args = stop  # type: ignore[assignment]
    try:
        module.main()
    except ParsedError as found:
        return {name: str(value) for name, value in sorted(vars(found.args[0]).items())}
    finally:
        argparse.ArgumentParser.parse_args = parse  # type: ignore[method-assign]
    raise LookupError(parse.__name__)


def arguments_of(model: str, options: Json, known: str, draft: str = "") -> list[str]:
    """The command line of a workload; `known` is the source that names a release's flags."""
    arguments = ["--model", model, "--port", "0", "--max-tokens", "512"]
    arguments += ["--draft-model", draft] if draft else []
    for name in FLAGS:
        flag = "--" + name.replace("_", "-")
        if name in options and f'"{flag}"' in known:
            arguments += [flag, str(options[name])]
    return arguments


def play(workload: Json, folders: Real) -> list[Json]:
    """Serve the groups one after the other, up to the one that the worker dies of."""
    server = Server(workload, folders)
    results = []
    for group in workload["steps"]:
        results.append(server.play(group))
        if server.death is not None or server.gate.stuck:
            break
    server.stop()
    return results


class Asked:
    """A request: its client, its queue, what becomes of it."""

    def __init__(self, client: Real, script: Real, request: Json) -> None:
        self.client = client
        self.script = script
        self.request = request
        self.inbox: Real = None
        self.record: Json = {"cached": None, "reported": None, "error": None, "finish": None}


class Server:
    """The release's server in threads of this process, and its watched store."""

    def __init__(self, workload: Json, folders: Real) -> None:
        self.mx = importlib.import_module("mlx.core")
        self.module: Real = importlib.import_module("mlx_lm.server")
        self.http = importlib.import_module("server_http")
        self.scripts = importlib.import_module("server_scripts")
        models = importlib.import_module("server_models")
        size = workload.get("vocabulary", VOCABULARY)
        self.calls: list[list[int]] = []
        self.death: str | None = None
        self.current: Json = {}
        self.asked: list[Asked] = []
        self.turns = self.http.Turns()
        self.batch_scripts = self.scripts.BatchScripts(self.mx)
        self.current_script: Real = None
        self.watch: Real = None
        self.gate: Real = None
        self.generator: Real = None
        self.httpd: Real = None
        self.gives_rows = "weights" in workload["model"]
        self.options = workload["options"]
        models.watch_calls(workload["model"]["module"], self._called)
        self._ready = threading.Event()
        self._watch()
        shape = (workload["template"], size)
        folder, draft = folders.of(workload["model"], *shape), ""
        if "draft" in workload:
            models.watch_calls(workload["draft"]["module"], self._called)
            draft = str(folders.of(workload["draft"], *shape))
        known = Path(str(self.module.__file__)).read_text()
        self.tells_tokens = 'get("top_logprobs"' in known  # before #829 a number was asked for
        arguments = arguments_of(str(folder), self.options, known, draft)
        sys.argv = ["mlx_lm.server", *arguments]
        self._thread = threading.Thread(target=self.module.main, daemon=True)
        self._thread.start()
        if not self._ready.wait(PATIENCE):
            msg = "the server does not start"
            raise RuntimeError(msg)

    def _called(self, rows: int, columns: int) -> None:
        if not self.watch.busy:
            self.calls.append([rows, columns])

    def _fetched(self, cached: int) -> None:
        self.current["cached"] = cached

    def _watch(self) -> None:
        """Put what is watched in the place of what the release's `main` and `run` look up."""
        names: Json = self.module.__dict__
        own = names.setdefault("_own", dict(names))
        if "_make_sampler" in own:
            names["_make_sampler"] = lambda args, _tokenizer: self._asked(args).script
            names["_make_logits_processors"] = lambda _args: []
        else:
            names["make_sampler"] = lambda *_, **__: self.batch_scripts
            names["make_logits_processors"] = lambda *_: []
        if "TimeBudget" in own:
            names["TimeBudget"] = lambda *_: self.turns
        else:  # before #741
            names["time"] = self.turns
            kind = own["BatchGenerator"]
            if "_make_sampler" not in own:
                kind = self.batch_scripts.watched(kind, lambda: self.current_script)
            names["BatchGenerator"] = self._counted(kind)
        names["Queue"] = self._queue
        names["LRUPromptCache"] = lambda *rest: self._store(own["LRUPromptCache"], *rest)
        names["ResponseGenerator"] = self._generator(own["ResponseGenerator"])
        runs = "_run_http_server" if "_run_http_server" in own else "run"
        names[runs] = lambda host, port, what: own[runs](
            host, port, what, server_class=self._listening(own["ThreadingHTTPServer"])
        )

    def _asked(self, args: Real) -> Asked:
        number: int = self.http.number_of(args)
        return self.asked[number]

    def _counted(self, kind: Real) -> Real:
        server = self

        class Counted(kind):  # type: ignore[misc]
            """`BatchGenerator`; its turns are counted where no `TimeBudget` does it."""

            def next(self) -> Real:
                responses = super().next()
                server.gate.turned(said=bool(responses))
                return responses

        return Counted

    def _queue(self) -> Real:
        """The first queue is that of the generation thread, others are for one request each."""
        if self.gate is None:
            self.gate = self.http.Gate(self.turns)
            return self.gate
        return self.http.Inbox()

    def _store(self, kind: Real, *rest: Real) -> Real:
        watch = importlib.import_module("server_watch")
        size = self.options.get("prompt_cache_size", 10)
        store = kind(*rest) if rest else kind(size)  # older releases have no flag for it
        self.watch = watch.StoreWatch(
            store, lambda: self.generator.model_provider.model, self._fetched
        )
        return store

    def _listening(self, kind: Real) -> Real:
        server = self

        class Listening(kind):  # type: ignore[misc]
            """The release's own HTTP server; its port is noted."""

            daemon_threads = True
            block_on_close = False

            def serve_forever(self, poll_interval: float = 0.02) -> None:
                server.httpd = self
                server._ready.set()
                super().serve_forever(poll_interval)

            def handle_error(self, *_: Real) -> None:
                """Clients that hung up."""

        return Listening

    def _generator(self, kind: Real) -> Real:
        server = self

        class Watched(kind):  # type: ignore[misc]
            """`ResponseGenerator`, watched: prompts and deaths are noted."""

            def __init__(self, *args: Real) -> None:
                server.generator = self
                super().__init__(*args)

            def _generate(self) -> None:
                try:
                    super()._generate()
                except BaseException as error:
                    server.death = type(error).__name__
                    raise

            def _tokenize(self, tokenizer: Real, request: Real, *args: Real) -> Real:
                asked = server.asked[server.gate.number_of(request)]
                server.current, server.current_script = asked.record, asked.script
                result = super()._tokenize(tokenizer, request, *args)
                server.tokenized(server.current, result)
                return result

            def _serve_single(self, request: Real, *rest: Real) -> None:
                server.batch_scripts.alone = server._asked(request[2]).script
                super()._serve_single(request, *rest)
                server.batch_scripts.alone = None

            def _compute_prompt_checkpoint(self, *args: Real) -> Real:
                found = super()._compute_prompt_checkpoint(*args)
                server.current["checkpoint"] = list(found)
                return found

        return Watched

    def tokenized(self, record: Json, result: Real) -> None:
        """The prompt, and its segments where there are any."""
        prompt = result[0] if isinstance(result, tuple) else result
        record["prompt"], record["n"] = list(prompt), len(prompt)
        if isinstance(result, tuple):
            segments = zip(result[1], result[2], strict=True)
            record["segments"] = [[len(tokens), kind] for tokens, kind in segments]

    def play(self, group: Sequence[Json]) -> Json:
        """Put a group in, wait for all answers."""
        self.calls.clear()
        if self.watch is not None:
            self.watch.inserted.clear()
        self.gate.shut = True
        first = len(self.asked)
        asked = [self._ask(request) for request in group]
        self._gather(asked, first)
        for each in asked:
            self._await(each)
        self._settle()
        for each in asked:
            self._look(each)
        result = {
            "requests": [each.record for each in asked],
            "inserted": list(self.watch.inserted),
            "forwards": list(self.calls),
        }
        return result | ({} if self.death else {"store": self.watch.stored()})

    def _ask(self, request: Json) -> Asked:
        path, body = self.http.asking(request, len(self.asked), tells_tokens=self.tells_tokens)
        client = self.http.Client(self.httpd.server_address[1], path, body)
        script = self.scripts.Script(self.mx, request["reply"])
        if "drafts" in request:
            script = self.scripts.DraftScript(self.mx, request, self.options["num_draft_tokens"])
        asked = Asked(client, script, request)
        self.asked.append(asked)
        client.start()
        return asked

    def _gather(self, asked: Sequence[Asked], first: int) -> None:
        """Wait until every request is in the server's queue or refused; then let them in."""
        ends, order = time.monotonic() + PATIENCE, []
        for number, each in enumerate(asked, first):
            while number not in self.gate.arrived and each.client.is_alive():
                if time.monotonic() > ends:
                    break
                time.sleep(0.0005)
            if number in self.gate.arrived:
                each.inbox = self.gate.arrived[number][0]
                each.inbox.left = each.request.get("leaves_after")
                each.inbox.leave = each.client.leave
                order.append((number, each.request.get("at", 0)))
        self.gate.open(order)

    def _await(self, asked: Asked) -> None:
        """Until the client has its answer, or nobody is left to give one."""
        ends = time.monotonic() + PATIENCE
        while asked.client.is_alive() and time.monotonic() < ends:
            if self.death is not None or self.gate.stuck:
                asked.client.join(0.05)
                asked.client.leave()
            asked.client.join(0.005)

    def _settle(self) -> None:
        """Let the thread come to the end of what it does after the last answer."""
        self.gate.idle = False
        ends = time.monotonic() + PATIENCE
        while self.death is None and not self.gate.idle and time.monotonic() < ends:
            time.sleep(0.002)

    def _look(self, asked: Asked) -> None:
        record, context = asked.record, None
        record.update(generated=[], progress=[])
        items = [] if asked.inbox is None else asked.inbox.items
        for item in items:
            if isinstance(item, Exception):
                record["error"] = type(item).__name__
            elif isinstance(item, tuple):
                record["progress"].append(list(item))
            elif hasattr(item, "token"):
                record["generated"].append(item.token)
                record["finish"] = item.finish_reason
            elif item is not None:
                context = item
        if asked.inbox is None:
            record["error"] = "refused"
        elif record["error"] is None and not (items and items[-1] is None):
            self._unfinished(asked)
        count = getattr(context, "prompt_cache_count", -1)
        record["reported"] = None if count < 0 else count
        record["wire"] = asked.client.told
        record["answer"] = self._answer(record, asked.script)
        if self.gives_rows:
            record["logprobs"] = asked.script.rows[: len(record["generated"])]

    def _unfinished(self, asked: Asked) -> None:
        context = next((each for each in asked.inbox.items if hasattr(each, "_should_stop")), None)
        if context is not None and context._should_stop:
            asked.record["finish"] = "disconnected" if asked.inbox.noticed else "stop"
        elif any(asked.inbox is item[0] for _, item in self.gate.later):
            asked.record["error"] = "came too late"
        else:
            died = f"worker died: {self.death}"
            asked.record["error"] = "no answer" if self.gate.stuck else died

    def _answer(self, record: Json, script: Real) -> str | None:
        said, prompt = record["generated"], record.get("prompt")
        if record["error"] is not None or not said or not prompt:
            return None
        mx = self.mx
        cold = self.watch.cold([*prompt, *said[:-1]])[len(prompt) - 1 :]
        cold = cold - mx.logsumexp(cold, axis=-1, keepdims=True)
        distance = mx.abs(mx.array(script.rows[: len(said)]) - cold).max().item()
        record["distance"] = distance
        return "same" if distance < ROUNDING else "diverged"

    def stop(self) -> None:
        """End the threads."""
        self.httpd.shutdown()
        self.httpd.server_close()
        if self.death is None:
            self.generator.stop_and_join()
        self._thread.join(PATIENCE)


if __name__ == "__main__":
    main()
