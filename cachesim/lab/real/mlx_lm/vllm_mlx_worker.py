"""Runs in mlx-lm's environment: plays workloads on vllm-mlx's own scheduler and prefix cache.

One line of JSON in, one line out: a model and requests go in, what each was given from the cache
and what the cache then holds come out. The folder of the unpacked wheel is the program's argument.
The replies are forced by logits processors; the limits of the cache are a workload's.
"""

import importlib
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

from cachesim.lab.real.mlx_lm.server_models import Folders
from cachesim.lab.real.worker_side import own_output

Json: TypeAlias = Any
Real: TypeAlias = Any  # modules, classes and objects of the release: known only when it runs


def main() -> None:
    """Play workloads until the input ends."""
    answers = own_output()
    sys.path.append(sys.argv[-1])
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as place:
        folders = Folders(Path(place))
        for line in sys.stdin:
            answers.write(json.dumps(play(json.loads(line), folders)) + "\n")


def play(workload: Json, folders: Folders) -> list[Json]:
    """Serve the requests of a workload, one after the other."""
    folder = folders.of(workload["model"], "chatml", workload["vocabulary"])
    model, tokenizer = importlib.import_module("mlx_lm").load(str(folder))
    module: Real = importlib.import_module("vllm_mlx.scheduler")
    stored: Real = importlib.import_module("vllm_mlx.memory_cache")
    scheduler = module.Scheduler(model, tokenizer, module.SchedulerConfig())
    limits = stored.MemoryCacheConfig(max_memory_mb=1024, **workload["limits"])
    scheduler.memory_aware_cache = stored.MemoryAwarePrefixCache(model, limits)
    scheduler.SNAPSHOT_REFRESH_TOKENS = workload["refresh"]
    return [
        served(scheduler, str(number), each) for number, each in enumerate(workload["requests"])
    ]


def served(scheduler: Real, name: str, wanted: Json) -> Json:
    """What a request was given, and the keys and lengths that are stored after it."""
    asked: Real = importlib.import_module("vllm_mlx.request")
    sampling = asked.SamplingParams(
        max_tokens=len(wanted["reply"]), temperature=0.0, logits_processors=[script(wanted)]
    )
    request = asked.Request(request_id=name, prompt=wanted["prompt"], sampling_params=sampling)
    scheduler.add_request(request)
    kind, found, given = request.cache_hit_type, request.cached_tokens, []
    while scheduler.has_requests():
        for output in scheduler.step().outputs:
            given += output.new_token_ids
    entries = scheduler.memory_aware_cache._entries
    return {
        "kind": kind,
        "found": found,
        "cached": request.cached_tokens,
        "reply": [int(token) for token in given],
        "entries": [[list(key), offsets(entry.cache)] for key, entry in entries.items()],
    }


def script(wanted: Json) -> Real:
    """A logits processor that leaves one token of the reply after the other."""
    mx: Real = importlib.import_module("mlx.core")
    turn = iter(wanted["reply"])

    def processor(_: Real, logits: Real) -> Real:
        token = next(turn, 0)
        return mx.where(mx.arange(logits.shape[-1]) == token, logits, -mx.inf)

    return processor


def offsets(cache: Real) -> list[int]:
    """Tokens that each layer of a stored cache has; -1 for a state."""
    return [int(getattr(layer, "offset", -1)) for layer in cache]


if __name__ == "__main__":
    main()
