"""Runs inside a real release's environment: plays workloads on mlx-lm's own server.

One line of JSON in, one line out: a workload goes in (model, template, options, groups of requests
with the tokens to say), what the server did comes out, in the form of the vector files. The
generation thread, the store, the batch generator and the single path are the release's own;
replaced are the provider of models, the sampler, and the queue, which is held shut while a group
is put in.
"""

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any, TypeAlias

Json: TypeAlias = Any
Real: TypeAlias = Any  # modules, classes and objects of the release: known only when it runs

HERE = Path(__file__).parent
VOCABULARY = 64
"""Words, where a workload does not say otherwise."""

END_MARK = 3
FILLER = 20
PATIENCE = 30.0
ROUNDING = 3e-5
"""Log probabilities that lie further apart than this are of another computation."""


def main() -> None:
    """Play workloads until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.path.append(str(HERE))
    threading.excepthook = lambda _args: None
    for line in sys.stdin:
        answers.write(json.dumps(play(json.loads(line))) + "\n")


def play(workload: Json) -> list[Json]:
    """Serve the groups one after the other, up to the one that the worker dies of."""
    server = Server(workload)
    results = []
    for group in workload["steps"]:
        results.append(server.play(group))
        if server.death is not None:
            break
    server.stop()
    return results


class Gate(Queue):  # type: ignore[type-arg]
    """A queue that can be held shut, and that does not let an idle thread sleep for long.

    `later` holds what arrives after so many turns of the generation thread, or when it is idle.
    """

    shut = False
    idle = False

    def __init__(self, turns: "Turns") -> None:
        super().__init__()
        self.turns = turns
        self.later: list[tuple[int, Any]] = []

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ANN401, FBT001, FBT002
        """As a queue's, but nothing comes out while it is shut; only an idle thread waits."""
        if self.shut:
            time.sleep(0.001)
            raise Empty
        bored = timeout is not None and self.empty()
        while self.later and (bored or self.later[0][0] <= self.turns.count):
            self.put(self.later.pop(0)[1])
            bored = False
        self.idle = self.idle or (timeout is not None and self.empty() and not self.later)
        return super().get(block, None if timeout is None else min(timeout, 0.005))


class Turns:
    """The budget of a slice between two looks at the queue: one turn, and they are counted."""

    count = 0

    def __iter__(self) -> Iterator[None]:
        """One turn."""
        self.count += 1
        return iter((None,))


class Inbox(Queue):  # type: ignore[type-arg]
    """What a client gets; one that leaves is gone when the next thing comes for it."""

    def __init__(self, leaves_after: int | None) -> None:
        super().__init__()
        self.leaves = leaves_after is not None
        self.noticed = False
        self._left = leaves_after
        self._context: Real = None

    def put(self, item: Any, *rest: Any, **more: Any) -> None:  # noqa: ANN401
        """The first thing is the context of the request, then come progress and tokens."""
        if hasattr(item, "_should_stop"):
            self._context = item
        token = hasattr(item, "token")
        if self._left is not None and self._context is not None and (token or self._left == 0):
            if self._left == 0:
                self._context.stop()
                self.noticed = token or isinstance(item, tuple)
            else:
                self._left -= 1
        super().put(item, *rest, **more)


class Script:
    """A sampler that says what it is told to, whatever the logits are."""

    def __init__(self, mx: Real, tokens: Sequence[int]) -> None:
        self._mx = mx
        self._tokens = list(tokens)
        self.rows: list[list[float]] = []

    def __call__(self, logprobs: Real) -> Real:
        """The next token for one row of the batch; the row it was asked for is kept."""
        at = len(self.rows)
        self.rows.append(logprobs[0].tolist())  # at once: arrays belong to their thread
        said = self._tokens[at] if at < len(self._tokens) else FILLER
        return self._mx.array([said], dtype=self._mx.uint32)


class Provider:
    """Hands out one model, as `ModelProvider` does."""

    draft_model = None
    processor = None
    is_batchable = True
    model_key = ("m", None, None)

    def __init__(self, model: Real, tokenizer: Real, options: Json) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.cli_args = SimpleNamespace(
            chat_template_args={},
            prompt_cache_bytes=options.get("prompt_cache_bytes"),
            prompt_concurrency=options.get("prompt_concurrency", 8),
            decode_concurrency=options.get("decode_concurrency", 32),
            prefill_step_size=options.get("prefill_step_size", 2048),
            kv_bits=options.get("kv_bits"),
            kv_group_size=options.get("kv_group_size", 64),
            quantized_kv_start=options.get("quantized_kv_start", 5000),
        )

    def load(self, *_: Real) -> tuple[Real, Real]:
        """The one model there is."""
        return self.model, self.tokenizer

    def load_default(self) -> None:
        """Nothing to load."""

    def reset(self) -> None:
        """Nothing to forget."""


class Server:
    """One `ResponseGenerator` and its watched store."""

    def __init__(self, workload: Json) -> None:
        self.mx = importlib.import_module("mlx.core")
        self.module: Real = importlib.import_module("mlx_lm.server")
        wrapper = importlib.import_module("mlx_lm.tokenizer_utils").TokenizerWrapper
        models, watch = (importlib.import_module(f"server_{n}") for n in ("models", "watch"))
        words = importlib.import_module("server_tokenizer")
        size = workload.get("vocabulary", VOCABULARY)
        tokenizer = wrapper(
            words.WordVocabulary(workload["template"], size), eos_token_ids=[END_MARK]
        )
        self.calls: list[list[int]] = []
        self.death: str | None = None
        self.current: Json = {}
        model = models.build(workload["model"], size, self._called)
        options = workload["options"]
        store = self.module.LRUPromptCache(options.get("prompt_cache_size", 10))
        self.watch = watch.StoreWatch(store, model, self._fetched)
        self.gate = Gate(Turns())
        self.generator = self._watched()(Provider(model, tokenizer, options), store)
        self.generator.requests = self.gate
        self.generator._time_budget = self.gate.turns  # noqa: SLF001 - time is counted in turns
        self.gives_rows = "weights" in workload["model"]

    def _called(self, rows: int, columns: int) -> None:
        if not self.watch.busy:
            self.calls.append([rows, columns])

    def _fetched(self, cached: int) -> None:
        self.current["cached"] = cached

    def _watched(self) -> Real:
        """The release's own class; samplers say what the workload says, deaths are noted."""
        server = self
        self.module.__dict__["_make_sampler"] = lambda args, _tokenizer: args.script
        self.module.__dict__["_make_logits_processors"] = lambda _args: []

        class Watched(self.module.ResponseGenerator):  # type: ignore[name-defined, misc]
            """`ResponseGenerator`, watched."""

            def _generate(self) -> None:
                try:
                    super()._generate()
                except BaseException as error:
                    server.death = type(error).__name__
                    raise

            def _tokenize(self, tokenizer: Real, request: Real, args: Real) -> Real:
                server.current = args.record
                result = super()._tokenize(tokenizer, request, args)
                server.tokenized(args.record, result)
                return result

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
        self.watch.inserted.clear()
        self.gate.shut = True
        self.gate.turns.count = 0
        asked = [self._ask(request) for request in group]
        self.gate.later.sort(key=lambda each: each[0])
        self.gate.shut = False
        for queue, record, _ in asked:
            if not queue.leaves:
                self._await(queue, record)
        self._settle()
        for queue, record, _ in asked:
            if queue.leaves:
                self._look(queue, record)
        for _, record, script in asked:
            context = record.pop("context", None)
            count = getattr(context, "prompt_cache_count", -1)
            record["reported"] = None if count < 0 else count
            record["answer"] = self._answer(record, script)
            if self.gives_rows:
                record["logprobs"] = script.rows[: len(record["generated"])]
        result = {
            "requests": [record for _, record, _ in asked],
            "inserted": list(self.watch.inserted),
            "forwards": list(self.calls),
        }
        return result | ({} if self.death else {"store": self.watch.stored()})

    def _answer(self, record: Json, script: Script) -> str | None:
        """The reply's rows held against those of one cold forward pass."""
        said, prompt = record["generated"], record.get("prompt")
        if record["error"] is not None or not said or not prompt:
            return None
        mx = self.mx
        cold = self.watch.cold([*prompt, *said[:-1]])[len(prompt) - 1 :]
        cold = cold - mx.logsumexp(cold, axis=-1, keepdims=True)
        distance = mx.abs(mx.array(script.rows[: len(said)]) - cold).max().item()
        record["distance"] = distance
        return "same" if distance < ROUNDING else "diverged"

    def _ask(self, request: Json) -> tuple[Real, Json, Script]:
        queue: Real = Inbox(request.get("leaves_after"))
        record: Json = {"cached": None, "reported": None, "error": None, "finish": None}
        chat = "messages" in request
        script = Script(self.mx, request["reply"])
        call = SimpleNamespace(
            request_type="chat" if chat else "text",
            prompt=request.get("text", ""),
            messages=[dict(each) for each in request.get("messages", ())],
            tools=None,
            role_mapping=None,
        )
        args = SimpleNamespace(
            model=self.module.ModelDescription("m", None, None),
            script=script,
            stop_words=request.get("stop_words", []),
            max_tokens=request["max_tokens"],
            num_draft_tokens=0,
            logprobs=False,
            top_logprobs=0,
            seed=request.get("seed"),
            chat_template_kwargs=None,
            record=record,
        )
        if request.get("at"):
            self.gate.later.append((request["at"], (queue, call, args)))
        else:
            self.gate.put((queue, call, args))
        return queue, record, script

    def _await(self, queue: Real, record: Json) -> None:
        """Take everything that the HTTP side would get."""
        record.update(generated=[], progress=[])
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            try:
                item = queue.get(timeout=0.02)
            except Empty:
                if self.death is None:
                    continue
                record["error"] = self._last_words(queue)
                return
            if item is None:
                return
            if isinstance(item, Exception):
                record["error"] = type(item).__name__
                return
            self._take(item, record)
        record["error"] = "no answer in time"

    def _last_words(self, queue: Real) -> str:
        """Why a request of a thread that died got no answer."""
        if any(queue is item[0] for _, item in self.gate.later):
            return "came too late"
        return f"worker died: {self.death}"

    def _look(self, queue: Real, record: Json) -> None:
        """What a client got that may have left before the end."""
        record.update(generated=[], progress=[])
        items = []
        while not queue.empty():
            items.append(queue.get())
        for item in items:
            if isinstance(item, Exception):
                record["error"] = type(item).__name__
            elif item is not None:
                self._take(item, record)
        ended = record["error"] is not None or (items and items[-1] is None)
        if not ended and (queue.noticed or self.death is None):
            record["finish"] = "disconnected"
        elif not ended:
            record["error"] = self._last_words(queue)

    @staticmethod
    def _take(item: Real, record: Json) -> None:
        if isinstance(item, tuple):
            record["progress"].append(list(item))
        elif hasattr(item, "token"):
            record["generated"].append(item.token)
            record["finish"] = item.finish_reason
        else:
            record["context"] = item

    def _settle(self) -> None:
        """Let the thread come to the end of what it does after the last answer."""
        self.gate.idle = False
        ends = time.monotonic() + PATIENCE
        while self.death is None and not self.gate.idle and time.monotonic() < ends:
            time.sleep(0.002)

    def stop(self) -> None:
        """End the thread."""
        if self.death is None:
            self.generator.stop_and_join()


if __name__ == "__main__":
    main()
