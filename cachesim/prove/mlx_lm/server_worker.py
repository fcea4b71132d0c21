"""Inside a real release's environment: workloads on mlx-lm's own server, over HTTP.

One line of JSON in, one line out: a workload goes in (model, template, options, groups of requests
with the reply tokens), its results come out, in the form of the vector files. Everything is the
release's own, from `main` and its flags over the loader, the handler of requests and the threads to
the store; replaced are the sampler, which follows a script, and the queues between the threads,
which serialise races (`server_http.py`).
"""

import argparse
import importlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from cachesim.prove.mlx_lm import server_http
from cachesim.prove.mlx_lm.server_models import Folders, watch_calls
from cachesim.prove.worker_side import Json, Real, answer_each, own_output

VOCABULARY = 64
"""Default number of words."""

TOLERANCE = 1e-5
"""Largest deviation of a right state, relative to its largest value; wrong ones are far off."""

UNUSED_TOKEN = 21
"""Proposed token after the end of a workload's proposals."""

ROUNDING = 3e-5
"""Log probabilities that differ by more than this are of another computation."""

FLAGS = (
    "prompt_cache_size", "prompt_cache_bytes", "prefill_step_size", "prompt_concurrency",
    "decode_concurrency", "kv_bits", "kv_group_size", "quantized_kv_start", "num_draft_tokens",
)  # fmt: skip


def main() -> None:
    """Run workloads until the input ends."""
    answers = own_output()
    threading.excepthook = lambda _args: None
    with tempfile.TemporaryDirectory() as place:
        folders = Folders(Path(place))
        answer_each(answers, lambda w: settings(w) if "settings" in w else play(w, folders))


class ParsedError(Exception):
    """Ends `main` where its flags are known."""


def settings(wanted: Json) -> Json:
    """The server's flags as `mlx_lm.server --model MODEL` has them, and as a comparison has."""
    module: Real = importlib.import_module("mlx_lm.server")
    known = Path(str(module.__file__)).read_text()
    own = arguments_of("MODEL", wanted["settings"], known)
    flags = (vars(namespace(module, arguments)) for arguments in (["--model", "MODEL"], own))
    return [{name: str(value) for name, value in sorted(flag.items())} for flag in flags]


def namespace(module: Real, arguments: list[str]) -> argparse.Namespace:
    """Arguments as parsed by a module's own parser."""
    parse = argparse.ArgumentParser.parse_args

    def stop(parser: Real, *_: Real) -> Real:
        raise ParsedError(parse(parser, arguments))

    argparse.ArgumentParser.parse_args = stop  # type: ignore[assignment]
    try:
        module.main()
    except ParsedError as found:
        return argparse.Namespace(**vars(found.args[0]))
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


class PendingRequest:
    """A request: its client, its queue, its result."""

    def __init__(self, client: Real, script: Real, request: Json) -> None:
        self.client = client
        self.script = script
        self.request = request
        self.inbox: Real = None
        self.model: Real = None  # that its tokens were read for
        self.record: Json = {"cached": None, "reported": None, "error": None, "finish": None}


class Server:
    """The release's server in threads of this process, and its watched store."""

    def __init__(self, workload: Json, folders: Real) -> None:
        self.mx = importlib.import_module("mlx.core")
        self.module: Real = importlib.import_module("mlx_lm.server")
        size = workload.get("vocabulary", VOCABULARY)
        self.calls: list[list[int]] = []
        self.death: str | None = None
        self.current: Json = {}
        self.pending: list[PendingRequest] = []
        self.turns = server_http.Turns()
        self.batch_scripts = BatchScripts(self.mx)
        self.current_script: Real = None
        self.watch: Real = None
        self.gate: Real = None
        self.generator: Real = None
        self.httpd: Real = None
        self.models = {"": workload["model"], **workload.get("models", {})}
        self.options = workload["options"]
        for model in self.models.values():
            watch_calls(model["module"], self._called)
        self._ready = threading.Event()
        self._watch()
        shape = (workload["template"], size)
        self.folders = {name: folders.of(files, *shape) for name, files in self.models.items()}
        draft = ""
        if "draft" in workload:
            watch_calls(workload["draft"]["module"], self._called)
            draft = str(folders.of(workload["draft"], *shape))
        known = Path(str(self.module.__file__)).read_text()
        self.reports_tokens = 'get("top_logprobs"' in known  # before #829 it is a number
        arguments = arguments_of(str(self.folders[""]), self.options, known, draft)
        own = namespace(self.module, arguments)
        self.most_drafts = own.num_draft_tokens if draft else 0
        sys.argv = ["mlx_lm.server", *arguments]
        self._thread = threading.Thread(target=self.module.main, daemon=True)
        self._thread.start()
        if not self._ready.wait(server_http.PATIENCE):
            raise RuntimeError("the server does not start")

    def _called(self, rows: int, columns: int) -> None:
        if not self.watch.busy:
            self.calls.append([rows, columns])

    def _fetched(self, cached: int) -> None:
        self.current["cached"] = cached

    def _watch(self) -> None:
        """Replace the names that the release's `main` and `run` look up by watched ones."""
        names: Json = self.module.__dict__
        own = names.setdefault("_own", dict(names))
        if "_make_sampler" in own:
            names["_make_sampler"] = lambda args, _tokenizer: self._pending_of(args).script
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

    def _pending_of(self, args: Real) -> PendingRequest:
        return self.pending[server_http.number_of(args)]

    def _counted(self, kind: Real) -> Real:
        server = self

        class Counted(kind):  # type: ignore[misc]
            """`BatchGenerator`; its turns are counted where no `TimeBudget` does it."""

            def next(self) -> Real:
                responses = super().next()
                server.gate.turned(has_output=bool(responses))
                return responses

        return Counted

    def _queue(self) -> Real:
        """The first queue is that of the generation thread, others are for one request each."""
        if self.gate is None:
            self.gate = server_http.RequestQueue(self.turns)
            return self.gate
        return server_http.Inbox()

    def _store(self, kind: Real, *rest: Real) -> Real:
        size = self.options.get("prompt_cache_size", 10)
        store = kind(*rest) if rest else kind(size)  # older releases have no flag for it
        self.watch = StoreWatch(store, lambda: self.generator.model_provider.model, self._fetched)
        return store

    def _listening(self, kind: Real) -> Real:
        server = self

        class Listening(kind):  # type: ignore[misc]
            """The release's own HTTP server, with a recorded port."""

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
                pending = server.pending[server.gate.number_of(request)]
                server.current, server.current_script = pending.record, pending.script
                pending.model = self.model_provider.model
                result = super()._tokenize(tokenizer, request, *args)
                server.tokenized(server.current, result)
                return result

            def _serve_single(self, request: Real, *rest: Real) -> None:
                server.batch_scripts.alone = server._pending_of(request[2]).script
                super()._serve_single(request, *rest)
                server.batch_scripts.alone = None

            def _compute_prompt_checkpoint(self, *args: Real) -> Real:
                checkpoint = super()._compute_prompt_checkpoint(*args)
                server.current["checkpoint"] = list(checkpoint)
                return checkpoint

        return Watched

    def tokenized(self, record: Json, result: Real) -> None:
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
        first = len(self.pending)
        pending = [self._submit(request) for request in group]
        self._gather(pending, first)
        for request in pending:
            ends = time.monotonic() + server_http.PATIENCE
            while request.client.is_alive() and time.monotonic() < ends:
                if self.death is not None or self.gate.stuck:
                    request.client.join(0.05)
                    request.client.leave()
                request.client.join(0.005)
        self.gate.idle = False  # wait until the thread is idle after the last answer
        ends = time.monotonic() + server_http.PATIENCE
        while self.death is None and not self.gate.idle and time.monotonic() < ends:
            time.sleep(0.002)
        for request in pending:
            self._record(request)
        result = {
            "requests": [request.record for request in pending],
            "inserted": list(self.watch.inserted),
            "forwards": list(self.calls),
        }
        return result | ({} if self.death else {"store": self.watch.stored()})

    def _submit(self, request: Json) -> PendingRequest:
        if "model" in request:
            request = request | {"folder": str(self.folders[request["model"]])}
        path, body = server_http.call_of(
            request, len(self.pending), reports_tokens=self.reports_tokens
        )
        client = server_http.Client(self.httpd.server_address[1], path, body)
        script = Script(self.mx, request["reply"])
        if "drafts" in request and self.most_drafts:
            script = DraftScript(self.mx, request, self.most_drafts)
        pending = PendingRequest(client, script, request)
        self.pending.append(pending)
        client.start()
        return pending

    def _gather(self, pending: Sequence[PendingRequest], first: int) -> None:
        """Wait until every request is in the server's queue or refused; then let them in."""
        ends, order = time.monotonic() + server_http.PATIENCE, []
        for number, request in enumerate(pending, first):
            while number not in self.gate.arrived and request.client.is_alive():
                if time.monotonic() > ends:
                    break
                time.sleep(0.0005)
            if number in self.gate.arrived:
                request.inbox = self.gate.arrived[number][0]
                request.inbox.left = request.request.get("leaves_after")
                request.inbox.leave = request.client.leave
                order.append((number, request.request.get("at", 0)))
        self.gate.open(order)

    def _record(self, pending: PendingRequest) -> None:
        record, context = pending.record, None
        record.update(generated=[], progress=[])
        items = [] if pending.inbox is None else pending.inbox.items
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
        if pending.inbox is None:
            record["error"] = "refused"
        elif record["error"] is None and not (items and items[-1] is None):
            self._unfinished(pending)
        count = getattr(context, "prompt_cache_count", -1)
        record["reported"] = None if count < 0 else count
        record["wire"] = pending.client.wire
        record["answer"] = self._answer(pending)
        if "weights" in self._order(pending):
            record["logprobs"] = pending.script.rows[: len(record["generated"])]

    def _unfinished(self, pending: PendingRequest) -> None:
        items = (item for item in pending.inbox.items if hasattr(item, "_should_stop"))
        context = next(items, None)
        if context is not None and context._should_stop:
            # Before #1072 only a stop word stops a request, also one whose client is gone.
            notices = hasattr(self.generator, "_make_state_machine") and pending.inbox.noticed
            pending.record["finish"] = "disconnected" if notices else "stop"
        elif any(pending.inbox is item[0] for _, item in self.gate.later):
            pending.record["error"] = "came too late"
        else:
            died = f"worker died: {self.death}"
            pending.record["error"] = "no answer" if self.gate.stuck else died

    def _order(self, pending: PendingRequest) -> Json:
        """The workload's model."""
        return self.models[pending.request.get("model", "")]

    def _answer(self, pending: PendingRequest) -> str | None:
        record, script = pending.record, pending.script
        generated, prompt = record["generated"], record.get("prompt")
        if record["error"] is not None or not generated or not prompt:
            return None
        mx = self.mx
        cold = self.watch.cold(pending.model, [*prompt, *generated[:-1]])[len(prompt) - 1 :]
        cold = cold - mx.logsumexp(cold, axis=-1, keepdims=True)
        distance = mx.abs(mx.array(script.rows[: len(generated)]) - cold).max().item()
        record["distance"] = distance
        if "ids" in self._order(pending):  # a model that recalls facts: its samples are of interest
            rows = mx.array(script.rows[: len(generated)])
            record["sampled"], record["cold"] = (
                mx.argmax(logits, axis=-1).tolist() for logits in (rows, cold)
            )
        return "same" if distance < ROUNDING else "diverged"

    def stop(self) -> None:
        self.httpd.shutdown()
        self.httpd.server_close()
        if self.death is None:
            self.generator.stop_and_join()
        self._thread.join(server_http.PATIENCE)


class Script:
    """A sampler that returns scripted tokens for any logits."""

    def __init__(self, mx: Real, tokens: Sequence[int]) -> None:
        self._mx = mx
        self._tokens = list(tokens)
        self.rows: list[list[float]] = []

    def __call__(self, logprobs: Real) -> Real:
        """The next token for one row of the batch; the logits are recorded."""
        at = len(self.rows)
        self.rows.append(logprobs[0].tolist())  # at once: arrays belong to their thread
        token = self._tokens[at] if at < len(self._tokens) else server_http.FILLER
        return self._mx.array([token], dtype=self._mx.uint32)


class DraftScript(Script):
    """Script of a draft model: its proposals step by step, and the model's tokens."""

    def __init__(self, mx: Real, request: Json, count: int) -> None:
        super().__init__(mx, request["reply"])
        self._drafts, self._limit, self._count = request["drafts"], request["max_tokens"], count
        self._proposed: list[int] = []

    def __call__(self, logprobs: Real) -> Real:
        done = len(self.rows)
        if len(self._proposed) < min(self._limit - done, self._count):
            step = self._drafts[0] if self._drafts else []
            at = len(self._proposed)
            self._proposed.append(step[at] if at < len(step) else UNUSED_TOKEN)
            return self._mx.array(self._proposed[-1:], dtype=self._mx.uint32)
        whole = self._tokens + [server_http.FILLER] * (self._limit + self._count + 1)
        tokens = whole[done : done + logprobs.shape[0]]
        equal = zip(tokens, self._proposed, strict=False)
        accepted = next((i for i, (a, b) in enumerate(equal) if a != b), len(self._proposed))
        self.rows += logprobs[: accepted + 1].tolist()
        self._proposed, self._drafts = [], self._drafts[1:]
        return self._mx.array(tokens, dtype=self._mx.uint32)


class BatchScripts:
    """A sampler for a whole batch, as in releases before #635: each row has its own script."""

    def __init__(self, mx: Real) -> None:
        self._mx = mx
        self.by_uid: dict[int, Script] = {}
        self.uids: Sequence[int] = ()  # the rows that are sampled now
        self.alone: Script | None = None  # of the request that is served alone

    def __call__(self, logprobs: Real) -> Real:
        """The next token of every row, or those of a request that is served alone."""
        if self.alone is not None:
            return self.alone(logprobs)
        tokens = [self.by_uid[uid](logprobs[i : i + 1]) for i, uid in enumerate(self.uids)]
        return self._mx.concatenate(tokens)

    def watched(self, kind: Real, current: Callable[[], Script]) -> Real:
        """`BatchGenerator`, whose rows are known whenever it samples."""
        scripts = self

        class Known(kind):  # type: ignore[misc]
            """The release's own, with recorded rows."""

            def insert(self, *args: Real, **more: Real) -> Real:
                uids = super().insert(*args, **more)
                scripts.by_uid.update((uid, current()) for uid in uids)
                return uids

            def _process_prompts(self, prompts: Real) -> Real:
                scripts.uids = [prompt[0] for prompt in prompts]
                batch = super()._process_prompts(prompts)
                scripts.uids = ()
                return batch

            def _step(self, *args: Real) -> Real:
                if not scripts.uids:
                    scripts.uids = list(self.active_batch.uids)
                sampled = super()._step(*args)
                scripts.uids = ()
                return sampled

        return Known


class StoreWatch:
    """Recorder of an `LRUPromptCache`'s insertions and lookups."""

    def __init__(
        self, store: Real, model: Callable[[], Real], on_fetch: Callable[[int], None]
    ) -> None:
        self.mx = importlib.import_module("mlx.core")
        self.caches = importlib.import_module("mlx_lm.models.cache")
        self.store = store
        self._model = model
        self.busy = False
        self.inserted: list[Json] = []
        self._numbers: list[tuple[Real, int]] = []
        self._insert, self._fetch = store.insert_cache, store.fetch_nearest_cache
        self._on_fetch = on_fetch
        store.insert_cache, store.fetch_nearest_cache = self.insert, self.fetch

    @property
    def model(self) -> Real:
        """The model, which is there once the first request is."""
        return self._model()

    def fetch(self, model: Real, tokens: Real) -> Real:
        """The store's own lookup; the cached count is recorded."""
        fetched = self._fetch(model, tokens)
        self._on_fetch(len(tokens) - len(fetched[1]))
        return fetched

    def insert(self, model: Real, tokens: Real, cache: Real, **more: Real) -> None:
        """The store's own insertion, recorded."""
        key = list(tokens)
        self.busy = True
        cold = self.caches.make_prompt_cache(self.model)
        if key:
            self.mx.eval(self.model(self.mx.array([key]), cache=cold))
        pairs = zip_longest(_leaves(cold), _leaves(cache))  # those of a draft model come last
        layers = [self._layer(key, *pair) for pair in pairs]
        self.busy = False
        self._insert(model, tokens, cache, **more)
        number = len(self._numbers) + 1
        self._numbers.append((cache, number))
        entry = {"number": number, "key": key, "length": len(key), "layers": layers}
        self.inserted.append(entry | self._type(more))

    def _type(self, more: Json) -> Json:
        queues = queues_of(self.store._lru)
        if "ordinary" in queues:
            return {"type": "checkpoint" if more.get("checkpoint") else "ordinary"}
        return {} if "all" in queues else {"type": more.get("cache_type", "assistant")}

    def stored(self) -> Json:
        """The queues, oldest first, as numbers of insertions; bytes where they are counted."""
        order = {
            name: [self._number(model, tokens) for model, tokens in queue]
            for name, queue in queues_of(self.store._lru).items()
        }
        held: Json = {"order": order}
        if hasattr(self.store, "nbytes"):
            held["nbytes"] = self.store.nbytes
        return held

    def _number(self, model: Real, tokens: Real) -> int:
        trie = getattr(self.store, "_trie", None)
        find = self.store._get if trie is None else trie.get
        cache = find(model, tokens).prompt_cache
        return next((number for held, number in reversed(self._numbers) if held is cache), 0)

    def cold(self, model: Real, tokens: list[int]) -> Real:
        """The logits of every token of an uncached run, (tokens, vocabulary)."""
        self.busy = True
        cache = self.caches.make_prompt_cache(model)
        logits = model(self.mx.array([tokens]), cache=cache)[0]
        self.mx.eval(logits)
        self.busy = False
        return logits

    def _layer(self, key: list[int], cold: Real, layer: Real) -> Json:
        kind = type(layer).__name__.replace("MambaCache", "ArraysCache")  # its other name, to #842
        entry: Json = {"class": kind, "trimmable": layer.is_trimmable()}
        at_end = True
        if hasattr(layer, "offset"):
            entry["offset"] = layer.offset
            entry["rows"] = _rows(layer)
            at_end = layer.offset == len(key)
        else:
            entry["filled"] = [array is not None for array in layer.cache]
        try:
            entry["nbytes"] = layer.nbytes
        except (AttributeError, NotImplementedError) as error:
            entry["nbytes"] = {"error": type(error).__name__}
        if cold is None or isinstance(getattr(layer, "keys", None), (list, tuple)):
            entry["state_is_key"] = None  # packed numbers are never the computed ones
        else:
            pairs = zip(_content(cold), _content(layer), strict=True)
            entry["state_is_key"] = at_end and all(self._is_equal(*pair) for pair in pairs)
        return entry

    def _is_equal(self, one: Real, other: Real) -> bool:
        if one is None or other is None:
            return one is other
        if one.shape != other.shape:
            return False
        if not one.size:
            return True
        largest = self.mx.abs(one).max().item()
        difference = self.mx.abs(one - other).max().item()
        return bool(difference <= TOLERANCE * max(largest, 1e-6))


def _rows(layer: Real) -> int:
    """Rows that a cache has allocated; of DeepSeek's own class those of its window."""
    if hasattr(layer, "window"):
        return 0 if layer.window is None else int(layer.window.shape[1])
    keys = layer.keys[0] if isinstance(layer.keys, (list, tuple)) else layer.keys
    return 0 if keys is None else int(keys.shape[2])


def _leaves(cache: Sequence[Real]) -> list[Real]:
    return [part for layer in cache for part in getattr(layer, "caches", (layer,))]


def _content(layer: Real) -> list[Real]:
    if not hasattr(layer, "offset"):
        return list(layer.cache)
    if hasattr(layer, "window"):
        return [layer.window, layer.compress_kv, layer.index_k, layer.pending_kv]
    if layer.keys is None:
        return [None, None]
    if hasattr(layer, "chunk_size"):
        begins = layer.offset // layer.chunk_size * layer.chunk_size - layer.start_position
        end = layer.offset - layer.start_position
        return [array[..., begins:end, :] for array in (layer.keys, layer.values)]
    if not hasattr(layer, "max_size"):
        return [array[..., : layer.offset, :] for array in (layer.keys, layer.values)]
    count = min(layer.offset, layer.max_size)
    ordered = [layer._temporal_order(array) for array in (layer.keys, layer.values)]
    return [array[..., max(0, array.shape[2] - count) :, :] for array in ordered]


def queues_of(order: Real) -> Mapping[str, Real]:
    """The queues of a release's store, by the kinds of entries that it keeps apart."""
    lrus, checkpoints = (getattr(order, name, None) for name in ("_lrus", "_lru_checkpoints"))
    if lrus is not None:
        return dict(lrus)
    if checkpoints is not None:
        return {"ordinary": getattr(order, "_lru", None), "checkpoint": checkpoints}
    return {"all": order}
