"""Records what the schedulers of SGLang and vLLM do with workloads, as `tests/vectors` keeps it.

`python -m conformance.record_vectors sglang 0.5.23 FILE` plays two sorts of workloads on the real
scheduler; the simulated one has no part in it. Some are drawn: those with a host tier first of all.
Others are neighbours: one workload on servers whose pools differ by a token, a page or a block, so
that every bound is met exactly by one of them. Of neighbours that do the same the first is kept; of
vLLM's, which nearly all differ, one of twelve. Another seed records other workloads as good.
`vllm-runner` records what the model runner reads, writes and copies, for models with states, and
`vllm-between` workloads that a release plays otherwise than the one before or after it, and
`vllm-scarce` steps that overlap, and prompts that a store has a part of, on few blocks; `vllm-ends`
texts that meet the end of the context, and `vllm-fine` stores and drafts beside blocks that have
several hashes; `vllm-exports` states inside a prefill chunk, which `vllm-runner` has, too;
`vllm-compressed` the groups of DeepSeek V4; `sglang-hosts` queues for a scarce device with a host
and a storage; `sglang-overlap` what is decided otherwise without the overlap schedule.

`libllama` records what libllama's own memory calls return, of a version of llama-cpp-py-sync.
"""

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cachesim.engines.llamacpp.memory.rules import B9094 as OLDEST_MEMORY
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.vllm.rules import Rules as VllmRules
from cachesim.errors import ContractError, UpstreamAbort
from cachesim.prove.llama_cpp.fitting import PRESETS
from cachesim.prove.rows import read_row
from cachesim.prove.worker_process import WorkerProcess
from conformance.real.llama_cpp.library import compared, mismatch, profile_of, rules_of
from conformance.real.sglang.playing import play as play_sglang
from conformance.real.sglang.scheduler import SCHEDULER
from conformance.real.sglang.workloads import KINDS, draw, draw_drafts, draw_mixed, draw_streaming
from conformance.real.vllm.playing import play
from conformance.real.vllm.scheduler import SCHEDULER as VLLM_SCHEDULER
from conformance.real.vllm.steps import draw_steps, mode_of
from conformance.real.vllm.steps import start as start_runner
from conformance.real.vllm.workloads import KINDS as VLLM_KINDS
from conformance.real.vllm.workloads import draw as draw_vllm
from conformance.real.vllm.workloads import draw_compressed, overlapping

SEED: Final = 37
DRAWN: Final = {
    **dict.fromkeys(("host", "host-parts", "host-back", "storage"), 20),
    **dict.fromkeys(("pressure", "few-states", "aborts", "arrivals", "policy"), 6),
}
"""Workloads of each kind."""

LIBRARY: Final = 350
LIBRARY_SHARE: Final = 35
"""Sequences of libllama's calls that are drawn; one of so many is kept for itself."""

TELLING: Final[Mapping[str, int]] = {
    "saves_plain_partially": 2, "rolls_back_shared": 2,
    "refuses_foreign_ids": 1, "batch_ids_when_unified": 1, "attention_header": 1,
}  # fmt: skip
"""Rules of libllama's memory, and the sequences that are kept because they tell each."""

SHARE: Final = 12
"""One of so many neighbours of vLLM's is kept."""

VARIED: Final = {
    **dict.fromkeys(("full", "pairs", "window", "few-states", "pressure", "arrivals"), 1),
    **dict.fromkeys(("host", "host-parts", "host-back", "storage"), 3),
}
"""Models that a kind is varied for, each with the first workload that is drawn for it."""

RUNNER: Final = 54
"""Workloads drawn for the model runner; those without states are left out."""

BETWEEN: Final = 30
MOST_BETWEEN: Final = 4
"""Workloads of each kind that are tried, and that are kept, to tell a release from another."""

TURNS: Final = 5
LESS: Final = (10, 14, 19, 26, 35, 47, 63, 84)
"""Workloads of each kind on scarce blocks, and the blocks that are tried, fewest first."""

TAILS: Final = ((1407, 12), (1680, 20), (1823, 16), (1953, 16))
"""Workloads, and blocks, in which a request is preempted after its prompt's tail was cached."""

NEAR_THE_END: Final = 2
"""Lengths of the context that are kept for each workload."""

FINE: Final = {"store": 120, "eagle": 60, "ngram": 60}
"""Drawn workloads of each kind; those whose hits may end inside a block are kept."""

HOSTS: Final = 700
SCARCE: Final = 200
"""Workloads that are drawn; those with a host beside a device of fewer tokens are kept."""

STEPS: Final = 14
"""Neighbours of each workload, in each of its pools."""


def bases(kind: str, models: int, rules: Rules) -> list[dict[str, Any]]:
    """The first workload of each of so many models, those with most parts first."""
    found: dict[str, dict[str, Any]] = {}
    for turn in range(40):
        drawn = draw(SEED + 1, KINDS.index(kind) + turn * len(KINDS), rules)
        found.setdefault(drawn["config"]["kind"], drawn)
    return [found[model] for model in sorted(found, key=len, reverse=True)[:models]]


def neighbours(base: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A workload on servers with one pool made smaller, step by step."""
    config = base["config"]
    page = config["page"]
    for pool, unit in (("tokens", page), ("window_tokens", page), ("states", 1)):
        for step in range(1, STEPS + 1):
            size = config.get(pool, 0) - step * unit
            if size > 0:
                yield base | {"id": f"{base['id']}-{pool}-{size}", "config": config | {pool: size}}


def recorded(real: WorkerProcess, rules: Rules) -> Iterator[dict[str, Any]]:
    """Workloads with what the real scheduler did; those in which it raises are left out."""
    for kind, count in DRAWN.items():
        for turn in range(count):
            workload = draw(SEED, KINDS.index(kind) + turn * len(KINDS), rules)
            results = real.play(workload)
            if not any("error" in result for result in results):
                yield {**workload, "results": results}
    for kind, models in VARIED.items():
        for base in bases(kind, models, rules):
            seen = list[Any]()
            for workload in neighbours(base):
                results = real.play(workload)
                whole = any("error" in result for result in results)
                if not whole and results not in seen:
                    seen.append(results)
                    yield {**workload, "results": results}


def of_vllm(real: WorkerProcess, rules: VllmRules) -> Iterator[dict[str, Any]]:
    """Neighbours in blocks and in the tokens of a step; a share of those that differ."""
    count = 0
    for number in range(4 * len(VLLM_KINDS)):
        base, seen = draw_vllm(SEED + 2, number, rules), list[Any]()
        blocks = base["config"]["blocks"]
        for change in (
            *({"blocks": blocks - step} for step in range(min(12, blocks - 3))),
            *({"budget": budget} for budget in (3, 5, 7, 9, 12, 17, 24, 33)),
        ):
            results = real.play(base | {"config": base["config"] | change})
            if results not in seen and not any("error" in result for result in results):
                seen.append(results)
                count += 1
                name = "-".join(f"{key}-{value}" for key, value in change.items())
                whole = {**base, "id": f"{base['id']}-{name}", "results": results}
                if count % SHARE == 1:
                    yield whole | {"config": base["config"] | change}


def of_runner(real: WorkerProcess, rules: VllmRules) -> Iterator[dict[str, Any]]:
    """Workloads of models with states, in each mode that the release has."""
    for number in range(RUNNER):
        workload = draw_steps(SEED, number, rules)
        if mode_of(workload["config"]) != "no states":
            results = real.play(workload)
            if not any("error" in result for result in results):
                yield {**workload, "part": "runner", "results": results}


def between(real: WorkerProcess, rules: VllmRules) -> Iterator[dict[str, Any]]:
    """Workloads that the rules of the release before or after decide otherwise."""
    known = list(dict.fromkeys(release.rules for release in VLLM_SCHEDULER.family.releases))
    place, count = known.index(rules), Counter[str]()
    for number in range(BETWEEN * len(VLLM_KINDS)):
        workload = draw_vllm(SEED + 3, number, rules)
        kind, own = workload["id"].partition("-")[0], play(workload, rules)
        others = known[max(place - 1, 0) : place + 2]
        if count[kind] < MOST_BETWEEN and any(play(workload, other) != own for other in others):
            results = real.play(workload)
            if not any("error" in result for result in results):
                count[kind] += 1
                yield {**workload, "results": results}


def scarce(real: WorkerProcess, rules: VllmRules) -> Iterator[dict[str, Any]]:
    """Overlapping steps, and stores, with as few blocks as a drawn workload can do with."""
    for number in range(TURNS * len(VLLM_KINDS)):
        kind = VLLM_KINDS[number % len(VLLM_KINDS)]
        workload = draw_vllm(SEED + 4, number, rules)
        if kind != "store":
            workload = overlapping(workload, rules)
        config = workload["config"]
        for blocks in sorted(
            {config["blocks"], *LESS, *(config["blocks"] // at for at in (2, 3, 4))}
        ):
            tried = real.play(workload | {"config": config | {"blocks": blocks}})
            if not any("error" in each for each in tried):
                yield {**workload, "config": config | {"blocks": blocks}, "results": tried}
                break
    for number, blocks in TAILS:
        workload = draw_vllm(SEED + 4, number, rules)
        workload["config"] |= {"blocks": blocks, "max_seqs": 16}
        yield {**workload, "results": real.play(workload)}


def ends(real: WorkerProcess, rules: VllmRules) -> Iterator[dict[str, Any]]:
    """Neighbours in the length of the context, which replies and drafts reach."""
    for number in range(len(VLLM_KINDS)):
        base, seen = draw_vllm(SEED + 5, number, rules), list[Any]()
        sent = [each for group in base["steps"] for each in group if "prompt" in each]
        prompts = [len(read_row(each["prompt"])) for each in sent]
        longest = max(at + each["generate"] for at, each in zip(prompts, sent, strict=True))
        least = max(prompts) + 1
        for max_len in (least, *range(longest, least, -1)):
            workload = {**base, "config": base["config"] | {"max_len": max_len}}
            results = real.play(workload)
            if results not in seen and not any("error" in result for result in results):
                seen.append(results)
                yield {**workload, "id": f"{base['id']}-max_len-{max_len}", "results": results}
            if len(seen) == NEAR_THE_END:
                break


def fine(real: WorkerProcess, rules: VllmRules) -> Iterator[dict[str, Any]]:
    """Stores and drafts beside blocks that have several hashes."""
    for kind, turns in FINE.items():
        for turn in range(turns):
            number = VLLM_KINDS.index(kind) + turn * len(VLLM_KINDS)
            workload = draw_vllm(SEED + 5, number, rules)
            if workload["config"].get("hash_block"):
                results = real.play(workload)
                if not any("error" in result for result in results):
                    yield {**workload, "results": results}


def exports(real: WorkerProcess, rules: VllmRules) -> Iterator[dict[str, Any]]:
    """Workloads that are decided otherwise where no layer exports a state inside a chunk."""
    count = Counter[str]()
    for number in range(BETWEEN * len(VLLM_KINDS)):
        workload = draw_vllm(SEED + 7, number, rules)
        kind = workload["id"].partition("-")[0]
        plain = json.loads(json.dumps(workload))
        for group in plain["config"]["groups"]:
            group.pop("checkpoint_alignment", None)
        if count[kind] < MOST_BETWEEN and play(plain, rules) != play(workload, rules):
            results = real.play(workload)
            if not any("error" in result for result in results):
                count[kind] += 1
                yield {**workload, "results": results}


def compressed(real: WorkerProcess, rules: VllmRules) -> Iterator[dict[str, Any]]:
    """Every kind of workloads of DeepSeek V4, those with most hits."""
    drawn = [draw_compressed(SEED + 6, number, rules) for number in range(12 * TURNS)]
    played = [{**workload, "results": real.play(workload)} for workload in drawn]
    for kind in range(TURNS):
        yield from sorted(played[kind::TURNS], key=_cached)[-3:]


def _cached(workload: dict[str, Any]) -> int:
    requests = [request for group in workload["results"] for request in group.get("requests", ())]
    return sum(request["cached"] or 0 for request in requests)


def hosts(real: WorkerProcess, rules: Rules) -> Iterator[dict[str, Any]]:
    """Queues for a scarce device, whose host and storage are scarce or slow, too."""
    for number in range(HOSTS):
        workload = draw(SEED + 6, number, rules)
        if "host" in workload["config"] and workload["config"]["tokens"] < SCARCE:
            results = real.play(workload)
            if not any("error" in result for result in results):
                yield {**workload, "results": results}


def overlap(real: WorkerProcess, rules: Rules) -> Iterator[dict[str, Any]]:
    """Workloads that are decided otherwise without the overlap schedule."""
    count = Counter[str]()
    draws = [draw, draw_mixed, draw_drafts]
    if rules.tree.trees == "unified":
        draws.append(draw_streaming)
    for number in range(2 * len(KINDS)):
        for workload in (make(SEED + 8, number, rules) for make in draws):
            kind, config = workload["id"].rpartition("-")[0], workload["config"]
            serial = {**workload, "config": config | {"serial": True}}
            if (
                config["serial"]
                or count[kind]
                or play_sglang(serial, rules) == play_sglang(workload, rules)
            ):
                continue
            results = real.play(workload)
            if not any("error" in result for result in results):
                count[kind] += 1
                yield {**workload, "results": results}


def of_library(version: str) -> Iterator[dict[str, Any]]:
    """Sequences of calls that tell the memory's rules from older ones, and some others."""
    rules = rules_of(profile_of(version))
    told = Counter[str]()
    drawn = compared(version, tuple(PRESETS), seed=SEED, sequences=LIBRARY)
    for number, (line, _) in enumerate(drawn):
        telling = [
            field
            for field, wanted in TELLING.items()
            if told[field] < wanted and tells(line, rules, field)
        ]
        told.update(telling)
        if telling or number % LIBRARY_SHARE == 0:
            yield line


def tells(line: Mapping[str, Any], rules: MemoryRules, field: str) -> bool:
    """True if a memory with the older rule does not play these calls as they were recorded."""
    older = replace(rules, **{field: getattr(OLDEST_MEMORY, field)})
    try:
        return mismatch(line, older) is not None
    except (ContractError, UpstreamAbort):
        return True


def main(engine: str, release: str, path: Path) -> None:
    if engine == "libllama":
        write(path, of_library(release))
        return
    known: dict[str, tuple[Any, Any, Any]] = {
        "sglang": (SCHEDULER, SCHEDULER.start, recorded),
        "sglang-hosts": (SCHEDULER, SCHEDULER.start, hosts),
        "sglang-overlap": (SCHEDULER, SCHEDULER.start, overlap),
        "vllm": (VLLM_SCHEDULER, VLLM_SCHEDULER.start, of_vllm),
        "vllm-between": (VLLM_SCHEDULER, VLLM_SCHEDULER.start, between),
        "vllm-scarce": (VLLM_SCHEDULER, VLLM_SCHEDULER.start, scarce),
        "vllm-ends": (VLLM_SCHEDULER, VLLM_SCHEDULER.start, ends),
        "vllm-fine": (VLLM_SCHEDULER, VLLM_SCHEDULER.start, fine),
        "vllm-exports": (VLLM_SCHEDULER, VLLM_SCHEDULER.start, exports),
        "vllm-compressed": (VLLM_SCHEDULER, VLLM_SCHEDULER.start, compressed),
        "vllm-runner": (VLLM_SCHEDULER, start_runner, of_runner),
    }
    scheduler, start, record = known[engine]
    with start(release) as real:
        lines = record(real, scheduler.family.release(release).rules)
        write(path, ({"version": release, **line} for line in lines))


def write(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    written = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    path.write_bytes(gzip.compress(written.encode(), 9, mtime=0))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
