"""Inside a release's environment: calls on the real `Llama`, in process.

A line of JSON names a model, the arguments of an instance and its calls; the results of the calls
come back. Every sampled token is noted with its logits, and replaced where a call prescribes it.
"""

import base64
import importlib
import shutil
import sys
import tempfile
from inspect import signature
from pathlib import Path

from cachesim.prove.worker_side import Json, Real, answer_lines, own_output, words_of

TYPES = {"f32": 0, "f16": 1}
"""Types of keys and values, as ggml numbers them."""

APART = ("cache", "capacity_bytes", "max_ngram_size", "num_pred_tokens", "draft_model")
"""Options that are no arguments of `Llama`."""

OF_INSTANCE = {"verbose": False, "n_threads": 1, "n_threads_batch": 1}
OF_CALL = {"temperature": 0.0}
"""Arguments that are the same in every comparison."""


ROW = "llama_get_logits_ith"
"""The place where the process ends: the package's sampler asserts that its token has logits."""


def main() -> None:
    """Serve until the input ends."""
    answers, folder = own_output(), Path(tempfile.mkdtemp(prefix="states-"))
    binding = importlib.import_module("llama_cpp")
    try:
        answer_lines(answers, lambda order: result_of(binding, order, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def result_of(binding: Real, order: Json, folder: Path) -> Json:
    """Results of the calls; or the defaults of the package's arguments, and those passed here."""
    if "calls" in order:
        return Player(binding, order, folder).results()
    given: Json = {}
    for method in (binding.Llama.__init__, binding.Llama.create_completion):
        given |= {
            parameter.name: parameter.default for parameter in signature(method).parameters.values()
        }
    used = given | arguments(order["options"]) | OF_CALL
    return [{name: str(values[name]) for name in given} for values in (given, used)]


def arguments(options: Json) -> Json:
    """Arguments of `Llama` for a workload's options."""
    given = {name: option for name, option in options.items() if name not in APART}
    if options["draft_model"] != "none":
        lookup = importlib.import_module("llama_cpp.llama_speculative")
        given["draft_model"] = lookup.LlamaPromptLookupDecoding(*(options[n] for n in APART[2:4]))
    types = {name: TYPES[options[name]] for name in ("type_k", "type_v")}
    return given | types | OF_INSTANCE


class Player:
    """An instance with its cache, its draft model and the states that a caller keeps."""

    def __init__(self, binding: Real, order: Json, folder: Path) -> None:
        self.binding, self.order, self.folder = binding, order, folder
        self.options: Json = order["options"]
        self.states: dict[str, Real] = {}
        for left in folder.iterdir():
            shutil.rmtree(left)

    def results(self) -> list[Json]:
        """Outcome of each call."""
        llama, outcomes = self.instance(), []
        for call in self.order["calls"]:
            if call["do"] == "restart":
                llama.close()
                self.options = self.options | call["options"]
                llama = self.instance()
            result = self.call(llama, call)
            if call.get("cold") and "error" not in result:
                fresh = self.instance(cached=False)
                result["cold"] = self.call(fresh, call | {"reply": result["reply"]})["logits"]
                fresh.close()
            outcomes.append(result)
            if str(result.get("error")).startswith(ROW):
                break
        llama.close()
        return outcomes

    def instance(self, *, cached: bool = True) -> Real:
        """A fresh `Llama`."""
        cache, capacity = self.options["cache"], self.options["capacity_bytes"]
        llama = watching(self.binding.Llama)(self.order["model"], **arguments(self.options))
        llama.input_ids[:] = -1
        if cached and cache == "ram":
            llama.set_cache(self.binding.LlamaRAMCache(capacity))
        elif cached and cache == "disk":
            llama.set_cache(self.binding.LlamaDiskCache(str(self.folder / "disk"), capacity))
        return llama

    def call(self, llama: Real, call: Json) -> Json:
        """Counts of a call, the sampled tokens and their logits; or the exception."""
        llama.begin(call.get("reply"))
        result: Json = {"cached": 0, "reply": []}
        try:
            match call["do"]:
                case "complete":
                    llama.create_completion(call["prompt"], max_tokens=call["predict"], **OF_CALL)
                case "chat":
                    llama.create_chat_completion(
                        call["messages"], max_tokens=call["predict"], **OF_CALL
                    )
                case "embed":
                    # An empty text would be written before the batch's array, and end the process.
                    llama.create_embedding(call["text"] or [])
                case "slot-save":
                    self.states[call["file"]] = llama.save_state()
                case "slot-restore":
                    llama.load_state(self.states[call["file"]])
                case "slot-erase":
                    llama.reset()
        except SystemExit as end:
            result = {"error": str(end)}
        except Exception as error:
            result = {"error": words_of(error)}
        else:
            if llama.evaluated:
                result["cached"] = len(call["prompt"]) - llama.evaluated[0]
                result["reply"] = llama.sampled
        result |= {"n_tokens": int(llama.n_tokens), "entries": _entries(llama.cache)}
        result["logits"] = [base64.b64encode(row).decode() for row in llama.rows]
        return result


def _entries(cache: Real) -> list[list[int]]:
    if cache is None:
        return []
    kept = getattr(cache, "cache_state", None)
    if kept is None:
        return [[cache.cache[key].n_tokens, 0] for key in cache.cache]
    return [[state.n_tokens, state.llama_state_size] for state in kept.values()]


def watching(llama: Real) -> Real:
    """The class, with records of evaluated and sampled tokens."""
    library = importlib.import_module("llama_cpp.llama_cpp")
    numpy = importlib.import_module("numpy")

    class Watching(llama):  # type: ignore[misc]
        """`Llama` with notes."""

        def begin(self, reply: list[int] | None) -> None:
            """Clear the record of the last call; `reply` replaces sampled tokens."""
            self.wanted = reply or []
            self.evaluated: list[int] = []
            self.sampled: list[int] = []
            self.rows: list[Real] = []

        def eval(self, tokens: Real) -> None:
            """Record the number of tokens."""
            self.evaluated.append(len(tokens))
            super().eval(tokens)

        def sample(self, *given: Real, idx: int | None = None, **named: Real) -> int:
            """Note the token and its logits."""
            ridx = -1 if idx is None else idx - self.n_tokens
            row = library.llama_get_logits_ith(self.ctx, ridx)
            if not row:
                sys.exit(f"{ROW}: {-ridx} tokens back in a batch")
            self.rows.append(numpy.ctypeslib.as_array(row, (self.n_vocab(),)).astype("<f4"))
            token = int(super().sample(*given, idx=idx, **named))
            self.sampled.append([*self.wanted, token][min(len(self.sampled), len(self.wanted))])
            return self.sampled[-1]

    return Watching
