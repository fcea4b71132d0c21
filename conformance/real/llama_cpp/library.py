"""The memory calls of libllama beside the port: the same random operations, call by call.

The wheel llama-cpp-py-sync holds libllama with its C interface, of builds that no server's wheel
has. Its own `llama_memory_*`, `llama_state_seq_*` and `llama_decode` are called, on the networks
that the simulator computes with; what they return, the positions of every sequence, the bytes of
saved states and the log probabilities are compared.

Operations are drawn while the simulated context plays them, so that most of them are allowed. A
sequence ends before a call that ends the process, or after which a query would see no key.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

import numpy as np

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.blob import Blob
from cachesim.engines.llamacpp.memory.context import OK
from cachesim.engines.llamacpp.memory.create import ContextParams, create_context
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.errors import ContractError, UpstreamAbort
from cachesim.model.build import build
from cachesim.model.spec import FIRST_PLAIN, ModelSpec
from cachesim.prove import playing
from cachesim.prove.environment import Environment
from cachesim.prove.llama_cpp.fitting import nearest_release
from cachesim.prove.llama_cpp.gguf import as_ggml_computes, write_model
from cachesim.prove.worker_process import WorkerError, WorkerProcess
from cachesim.scenario.checks import full_profile, spec_of
from cachesim.scenario.format import Model
from cachesim.typed import JsonObject
from conformance.real import agreement as agreeing

RULES: Final[Mapping[str, str]] = {"0.11548": "b11549", "0.11739": "b11549+28873"}
"""A version of the wheel, and the profile whose memory it has."""

NEWEST: Final = "0.11739"
WORKER: Final = "conformance.real.llama_cpp.library_worker"

TOP: Final = 8
"""Most likely tokens that are compared, of each row of logits."""

TOLERANCE: Final = 0.01
"""Largest accepted difference of log probabilities.

GELU, which ggml looks up in a table of half-precision numbers, makes up to 0.003. A state that is a
token off makes more than 0.3.
"""

Operation: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequenced:
    """A context's parameters, operations on it, and what the port did with each."""

    params: Mapping[str, Any]
    operations: tuple[Operation, ...]
    results: tuple[JsonObject, ...]

    def asked(self, model: Path) -> JsonObject:
        """The line for the worker."""
        operations = list(self.operations)
        return {"model": str(model), "params": dict(self.params), "operations": operations}


class Simulated:
    """The port's context, its operations under the names of the worker's."""

    def __init__(self, spec: ModelSpec, params: Mapping[str, Any], rules: MemoryRules) -> None:
        made = ContextParams(type_k="f32", type_v="f32", **params)
        self.context = create_context(build(spec), made, rules)
        self.sequences = range(params["n_seq_max"])
        self.saved: dict[str, Blob] = {}
        self.partial: dict[str, bool] = {}

    def play(self, operation: Operation) -> JsonObject:
        result: JsonObject = getattr(self, f"do_{operation['do']}")(operation)
        positions = [
            [self.context.seq_pos_min(seq), self.context.seq_pos_max(seq)] for seq in self.sequences
        ]
        return {**result, "positions": positions}

    def do_decode(self, operation: Operation) -> JsonObject:
        outputs = tuple(operation["outputs"])
        batch = Batch(
            tokens=tuple(operation["tokens"]),
            positions=tuple(operation["positions"]),
            seqs=tuple(map(tuple, operation["seqs"])),
            outputs=outputs,
        )
        returned = self.context.decode(batch)
        wanted = [i for i, output in enumerate(outputs) if output] if returned == OK else []
        rows = [top_of(self.context.logits(i).tolist()) for i in wanted]
        return {"returned": returned, "top": rows}

    def do_seq_rm(self, operation: Operation) -> JsonObject:
        return {"returned": self.context.seq_rm(operation["seq"], *operation["range"])}

    def do_seq_cp(self, operation: Operation) -> JsonObject:
        self.context.seq_cp(operation["seq"], operation["to"], *operation["range"])
        return {}

    def do_seq_keep(self, operation: Operation) -> JsonObject:
        self.context.seq_keep(operation["seq"])
        return {}

    def do_seq_add(self, operation: Operation) -> JsonObject:
        first, end = operation["range"]
        self.context.seq_add(operation["seq"], first, end, operation["delta"])
        return {}

    def do_seq_div(self, operation: Operation) -> JsonObject:
        first, end = operation["range"]
        self.context.seq_div(operation["seq"], first, end, operation["divisor"])
        return {}

    def do_clear(self, operation: Operation) -> JsonObject:
        self.context.clear(data=operation["data"])
        return {}

    def do_can_shift(self, operation: Operation) -> JsonObject:
        return {"returned": self.context.can_shift}

    def do_save(self, operation: Operation) -> JsonObject:
        seq, partial = operation["seq"], operation["partial"]
        self.saved[operation["name"]] = self.context.state_seq_get_data(seq, partial=partial)
        self.partial[operation["name"]] = partial
        size = self.context.state_seq_get_size(seq, partial=partial)
        return {"size": size, "returned": size}

    def do_load(self, operation: Operation) -> JsonObject:
        blob = self.saved[operation["name"]]
        partial = operation["partial"]
        return {
            "returned": self.context.state_seq_set_data(blob, operation["seq"], partial=partial)
        }


OPERATIONS: Final[Mapping[str, int]] = {
    "decode": 40, "seq_rm": 20, "seq_cp": 8, "seq_keep": 2, "seq_add": 6, "seq_div": 1,
    "clear": 1, "can_shift": 1, "save": 10, "load": 10,
}  # fmt: skip
"""How often each is drawn."""

FEWEST: Final = 8
MOST: Final = 40
"""Operations of a sequence."""


def draw(spec: ModelSpec, rules: MemoryRules, rng: Random) -> Sequenced:
    """Operations that are drawn while the port plays them."""
    slots = rng.choice((1, 1, 2, 3, 4))
    params = {
        "n_ctx": rng.choice((256, 512)) * slots,
        "n_batch": 512,
        "n_ubatch": rng.choice((4, 16, 64, 512)),
        "n_seq_max": slots,
        "kv_unified": rng.random() < 0.5,
        "swa_full": rng.random() < 0.2,
        "n_rs_seq": rng.choice((0, 0, 1, 3)),
    }
    simulated = Simulated(spec, params, rules)
    operations: list[Operation] = []
    results: list[JsonObject] = []
    for number in range(rng.randint(FEWEST, MOST)):
        operation = drawn_operation(rng, simulated, spec.vocabulary, number)
        if operation is None:
            continue
        try:
            result = simulated.play(operation)
        except (UpstreamAbort, ContractError):
            break
        simulated.context.check_integrity()  # of the port: no reason to end a sequence
        operations.append(operation)
        results.append(result)
    return Sequenced(params=params, operations=tuple(operations), results=tuple(results))


def drawn_operation(
    rng: Random, simulated: Simulated, vocabulary: int, number: int
) -> Operation | None:
    """One operation; None where there is nothing to load."""
    (name,) = rng.choices(tuple(OPERATIONS), tuple(OPERATIONS.values()))
    seq = rng.choice(simulated.sequences)
    operation: Operation = {"do": name, "seq": seq}
    match name:
        case "decode":
            return operation | drawn_batch(rng, simulated, vocabulary)
        case "seq_rm":
            if rng.random() < 0.05:
                operation["seq"] = -1
            return operation | {"range": drawn_range(rng, simulated, seq)}
        case "seq_cp":
            whole = rng.random() < 0.6
            interval = [-1, -1] if whole else drawn_range(rng, simulated, seq)
            return operation | {"to": rng.choice(simulated.sequences), "range": interval}
        case "seq_add":
            first, end = drawn_range(rng, simulated, seq)
            # No server moves a state below 0: the port's account of its cells does not hold there.
            delta = max(rng.randint(-20, 12), -max(first, 0))
            return operation | {"range": [first, end], "delta": delta}
        case "seq_div":
            return operation | {"range": drawn_range(rng, simulated, seq), "divisor": 2}
        case "clear":
            return operation | {"data": rng.random() < 0.5}
        case "save":
            return operation | {"name": f"state {number}", "partial": rng.random() < 0.4}
        case "load" if simulated.saved:
            name = rng.choice(tuple(simulated.saved))
            # Trap: a state does not say how it was saved, and is misread with the other flag.
            return operation | {"name": name, "partial": simulated.partial[name]}
        case "load":
            return None
    return operation


def drawn_range(rng: Random, simulated: Simulated, seq: int) -> list[int]:
    """Positions from one to another; -1 is the start, or the end."""
    last = max(0, simulated.context.seq_pos_max(seq))
    first = rng.choice((-1, 0, last, last + 1, rng.randint(0, last), max(0, last - 2)))
    end = rng.choice((-1, -1, -1, last + 1, rng.randint(0, last + 2)))
    return [first, end]


def drawn_batch(rng: Random, simulated: Simulated, vocabulary: int) -> Operation:
    """Tokens that mostly continue one or several sequences."""
    sequences = list(simulated.sequences)
    tokens: list[int] = []
    positions: list[int] = []
    seqs: list[list[int]] = []
    chosen = rng.sample(sequences, rng.choice((1, 1, 1, min(2, len(sequences)), len(sequences))))
    for seq in chosen:
        start = simulated.context.seq_pos_max(seq) + 1
        if rng.random() < 0.04:
            start = max(0, start + rng.choice((-3, -1, 1, 5)))
        count = rng.choice((1, 1, 2, 3, 5, 17, 40, 90))
        ids = [seq]
        if len(sequences) > 1 and rng.random() < 0.06:
            ids = rng.sample(sequences, 2)
        tokens += [rng.randrange(FIRST_PLAIN, vocabulary) for _ in range(count)]
        positions += range(start, start + count)
        seqs += [ids] * count
    outputs = [False] * len(tokens)
    outputs[-1] = True
    if rng.random() < 0.3:
        outputs[rng.randrange(len(tokens))] = True
    return {"tokens": tokens, "positions": positions, "seqs": seqs, "outputs": outputs}


def top_of(logits: Sequence[float]) -> list[list[float]]:
    """The most likely tokens, as pairs of token and log probability."""
    row = np.array(logits, dtype=np.float64)
    row -= np.logaddexp.reduce(row)
    return [[int(token), round(float(row[token]), 5)] for token in np.argsort(-row)[:TOP]]


def difference(real: Sequence[JsonObject], drawn: Sequenced) -> playing.Difference | None:
    """The first call that differs; log probabilities may within the tolerance."""
    for step, (theirs, ours) in enumerate(zip(real, drawn.results, strict=True)):
        if rounded_alike(theirs, ours):
            continue
        named = {name: value for name, value in drawn.operations[step].items() if name != "tokens"}
        return playing.Difference(
            step=step, real={**theirs, "call": named}, simulated={**ours, "call": named}
        )
    return None


def rounded_alike(real: JsonObject, simulated: JsonObject) -> bool:
    """True for equal results, apart from rounding; nearly equal tokens may change places."""
    if {**real, "top": None} != {**simulated, "top": None}:
        return False
    rows = zip(real.get("top", []), simulated.get("top", []), strict=True)
    for theirs, ours in rows:
        mine, lowest = dict(ours), ours[-1][1]
        for token, value in theirs:
            if abs(mine.get(token, lowest) - value) > TOLERANCE:
                return False
    return True


def environment_for(version: str) -> Environment:
    """The wheel of a version, which is a build's number behind a zero."""
    return Environment(
        name=f"llama-cpp-py-sync-{version}", requirements=(f"llama-cpp-py-sync=={version}",)
    )


def rules_of(profile: str) -> MemoryRules:
    """The memory rules of a profile of llama.cpp."""
    return FAMILY.rules(full_profile("llama.cpp", profile)).memory


def mismatch(
    line: Mapping[str, Any], rules: MemoryRules | None = None
) -> playing.Difference | None:
    """The first call of a recorded sequence that the port plays otherwise."""
    rules = rules or rules_of(line["rules"])
    simulated = Simulated(network_of(line["preset"]), line["params"], rules)
    operations = tuple(line["operations"])
    results = tuple(map(simulated.play, operations))
    simulated.context.check_integrity()
    drawn = Sequenced(params=line["params"], operations=operations, results=results)
    return difference(line["results"], drawn)


def network_of(preset: str) -> ModelSpec:
    """A preset with ggml's GELU."""
    return as_ggml_computes(spec_of(Model(preset=preset)))


def real_library(version: str, *, seed: int, sequences: int, presets: Sequence[str]) -> int:
    """Call libllama's memory and the simulator's with the same random operations."""
    profile = profile_of(version)
    title = f"libllama {version} beside the memory of llama.cpp@{profile}, seed {seed}"
    tally = agreeing.Agreement(title=title, kinds="preset")
    try:
        for line, found in compared(version, presets, seed=seed, sequences=sequences):
            calls = len(line["operations"])
            tally.add(
                line["preset"], line["id"], found,
                sequences=1, equal=int(found is None), calls=calls,
                agreeing=calls if found is None else found.step,
            )  # fmt: skip
    except WorkerError as error:
        playing.not_compared(f"it does not run here: {error}")
    return tally.show()


def profile_of(version: str) -> str:
    """The profile whose memory a version has; an unknown one is compared with the newest."""
    if version in RULES:
        return RULES[version]
    build = int(version.partition(".")[2])
    newest = int(NEWEST.partition(".")[2])
    return RULES[NEWEST] if build > newest else nearest_release(f"b{build}")


def compared(
    version: str, presets: Sequence[str], *, seed: int, sequences: int
) -> Iterator[tuple[JsonObject, playing.Difference | None]]:
    """Each sequence as a line of a vector file, and its first difference."""
    profile = profile_of(version)
    python, rules = environment_for(version).ready(), rules_of(profile)
    worker: WorkerProcess | None = None
    answered = False
    with TemporaryDirectory(prefix="cachesim-library-") as folder, ExitStack() as workers:
        for number in playing.watched(range(sequences)):
            if worker is None:
                process = WorkerProcess(f"libllama {version}", python, WORKER)
                worker = workers.enter_context(process)
            preset = presets[number % len(presets)]
            path = Path(folder) / f"{preset}.gguf"
            if not path.exists():
                write_model(spec_of(Model(preset=preset)), path)
            drawn = draw(network_of(preset), rules, Random(f"library {seed} {number}"))
            line: JsonObject = {
                "id": f"{preset}-{number}", "library": version, "rules": profile,
                "preset": preset, "params": dict(drawn.params),
                "operations": list(drawn.operations),
            }  # fmt: skip
            try:
                line["results"] = [shortened(result) for result in worker.play(drawn.asked(path))]
            except WorkerError as error:
                if not answered:  # it does not run here at all
                    raise
                worker = None
                yield line, playing.Difference(step=0, real=str(error), simulated="no end")
                continue
            answered = True
            yield line, difference(line["results"], drawn)


def shortened(result: JsonObject) -> JsonObject:
    """A result of the library with the most likely tokens of its logits."""
    if "error" in result:
        raise WorkerError(result["error"])
    if "logits" not in result:
        return result
    rest = {name: value for name, value in result.items() if name != "logits"}
    return {**rest, "top": [top_of(row) for row in result["logits"]]}
