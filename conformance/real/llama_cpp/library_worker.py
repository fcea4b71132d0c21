"""libllama's own memory calls, in the interpreter of the wheel llama-cpp-py-sync.

A line of JSON goes in: a model's file, the parameters of a context, and operations. The answer has
a result for each operation: what the call returned, the positions of every sequence afterwards, and
the log probabilities of the tokens that asked for them.
"""

import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from cachesim.prove.worker_side import Real

F32: Final = 0  # GGML_TYPE_F32
FLASH_ATTENTION_OFF: Final = 0
PARTIAL: Final = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
REASON: Final = 120  # characters of why a library does not load


def main() -> None:
    """Answer each line of standard input."""
    bindings = importlib.import_module("llama_cpp_py_sync._cffi_bindings")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library prints to standard output
    try:
        library = Library(bindings.get_ffi(), bindings.get_lib())
    except RuntimeError as error:  # the path comes first, the reason last
        raise RuntimeError(str(error)[-REASON:]) from None
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"results": library.play(json.loads(line))}
        except CallError as error:
            answer = {"raised": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class CallError(Exception):
    """The library refuses a model or a context."""


class Library:
    """The loaded library; models stay loaded, a context is made for each sequence."""

    def __init__(self, ffi: Real, lib: Real) -> None:
        self.ffi, self.lib = ffi, lib
        self.models: dict[str, Real] = {}
        self.quiet = ffi.callback("void(int, const char *, void *)", lambda *_: None)
        lib.llama_log_set(ffi.cast("ggml_log_callback", self.quiet), ffi.NULL)
        lib.llama_backend_init()

    def play(self, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The results of one sequence of operations, on a new context."""
        context = self.context(self.model(wanted["model"]), wanted["params"])
        try:
            player = Player(self, context, wanted["params"]["n_seq_max"], self.vocabulary)
            return [player.play(operation) for operation in wanted["operations"]]
        finally:
            self.lib.llama_free(context)

    def model(self, path: str) -> Real:
        if path not in self.models:
            model = self.lib.llama_model_load_from_file(
                path.encode(), self.lib.llama_model_default_params()
            )
            if model == self.ffi.NULL:
                raise CallError(f"the library does not load {path}")
            self.models[path] = model
        self.vocabulary = self.lib.llama_vocab_n_tokens(
            self.lib.llama_model_get_vocab(self.models[path])
        )
        return self.models[path]

    def context(self, model: Real, given: Mapping[str, Any]) -> Real:
        params = self.lib.llama_context_default_params()
        for name, value in given.items():
            setattr(params, name, value)
        params.type_k = params.type_v = F32
        params.flash_attn_type = FLASH_ATTENTION_OFF
        params.n_threads = params.n_threads_batch = 1
        context = self.lib.llama_init_from_model(model, params)
        if context == self.ffi.NULL:
            raise CallError(f"the library makes no context with {dict(given)}")
        return context


class Player:
    """One context, and the operations on it by their names."""

    def __init__(self, library: Library, context: Real, n_seq_max: int, vocabulary: int) -> None:
        self.ffi, self.lib = library.ffi, library.lib
        self.context = context
        self.memory = self.lib.llama_get_memory(context)
        self.sequences = range(n_seq_max)
        self.vocabulary = vocabulary
        self.saved: dict[str, bytes] = {}

    def play(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = getattr(self, f"do_{operation['do']}")(operation)
        positions = [
            [
                self.lib.llama_memory_seq_pos_min(self.memory, seq),
                self.lib.llama_memory_seq_pos_max(self.memory, seq),
            ]
            for seq in self.sequences
        ]
        return {**result, "positions": positions}

    def do_decode(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        tokens = operation["tokens"]
        widest = max(len(ids) for ids in operation["seqs"])
        batch = self.lib.llama_batch_init(len(tokens), 0, widest)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = operation["positions"][i]
            batch.n_seq_id[i] = len(operation["seqs"][i])
            for k, seq in enumerate(operation["seqs"][i]):
                batch.seq_id[i][k] = seq
            batch.logits[i] = operation["outputs"][i]
        returned = self.lib.llama_decode(self.context, batch)
        rows = []
        if not returned:
            for i in [i for i, wanted in enumerate(operation["outputs"]) if wanted]:
                row = self.lib.llama_get_logits_ith(self.context, i)
                rows.append([row[token] for token in range(self.vocabulary)])
        self.lib.llama_batch_free(batch)
        return {"returned": returned, "logits": rows}

    def do_seq_rm(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        first, end = operation["range"]
        return {"returned": self.lib.llama_memory_seq_rm(self.memory, operation["seq"], first, end)}

    def do_seq_cp(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        first, end = operation["range"]
        self.lib.llama_memory_seq_cp(self.memory, operation["seq"], operation["to"], first, end)
        return {}

    def do_seq_keep(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        self.lib.llama_memory_seq_keep(self.memory, operation["seq"])
        return {}

    def do_seq_add(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        first, end = operation["range"]
        delta = operation["delta"]
        self.lib.llama_memory_seq_add(self.memory, operation["seq"], first, end, delta)
        return {}

    def do_seq_div(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        first, end = operation["range"]
        divisor = operation["divisor"]
        self.lib.llama_memory_seq_div(self.memory, operation["seq"], first, end, divisor)
        return {}

    def do_clear(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        self.lib.llama_memory_clear(self.memory, operation["data"])
        return {}

    def do_can_shift(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        return {"returned": self.lib.llama_memory_can_shift(self.memory)}

    def do_save(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        flags = PARTIAL if operation["partial"] else 0
        seq = operation["seq"]
        size = self.lib.llama_state_seq_get_size_ext(self.context, seq, flags)
        buffer = self.ffi.new("uint8_t[]", max(1, size))
        written = self.lib.llama_state_seq_get_data_ext(self.context, buffer, size, seq, flags)
        self.saved[operation["name"]] = bytes(self.ffi.buffer(buffer, written))
        return {"size": size, "returned": written}

    def do_load(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        flags = PARTIAL if operation["partial"] else 0
        data = self.saved[operation["name"]]
        buffer = self.ffi.from_buffer(data)
        read = self.lib.llama_state_seq_set_data_ext(
            self.context, buffer, len(data), operation["seq"], flags
        )
        return {"returned": read}


if __name__ == "__main__":
    main()
