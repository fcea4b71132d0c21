"""The configuration of a server, by SGLang's own `ServerArgs` of a workload's flags.

`ServerArgs` with a model's `config.json` and the flags that a workload names is resolved by the
release's own code, as when a server starts. What the scheduler is then given otherwise stands in
`OVERRIDES`. Runs in the worker, apart from the scheduler, which needs none of the packages.
"""

import dataclasses
import importlib
import inspect
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from cachesim.real.sglang import release_worker, worker_host
from cachesim.real.sglang.models import STARTED
from cachesim.real.worker_side import answer_lines, own_output

Json = Any
Real = Any  # whatever the release makes of it

FLAGS: Final = {
    "page_size": "page",
    "chunked_prefill_size": "chunk",
    "max_prefill_tokens": "max_prefill",
    "max_running_requests": "max_running",
    "max_total_tokens": "tokens",
    "max_mamba_cache_size": "states",
    "mamba_scheduler_strategy": "strategy",
    "mamba_radix_cache_strategy": "strategy",
    "mamba_track_interval": "interval",
    "mamba_max_states_per_path": "cap",
    "radix_eviction_policy": "policy",
    "enable_mixed_chunk": "mixes",
    "context_length": "max_len",
}
"""Flag of `ServerArgs` -> its name in a workload."""


class Start:
    """Makes configurations by a release's own code."""

    def __init__(self, root: Path) -> None:
        release_worker.install(root)
        self.arguments: Real = importlib.import_module("sglang.srt.server_args").ServerArgs
        self._known = set(inspect.signature(self.arguments).parameters)
        self._folder = tempfile.TemporaryDirectory()
        for name, model in STARTED.items():
            place = Path(self._folder.name, name)
            place.mkdir()
            place.joinpath("config.json").write_text(json.dumps(model))

    def model(self, name: str) -> str:
        """The folder of a model's configuration."""
        return str(Path(self._folder.name, name))

    def flags(self, config: Json) -> dict[str, Real]:
        """What a user would write to start a server as a workload names it."""
        given = {flag: config[name] for flag, name in FLAGS.items() if name in config}
        given["model_path"] = self.model(config["kind"])
        given["max_running_requests"] = config.get("requested", config.get("max_running"))
        if config.get("strategy") == "no_buffer":  # 0.5.23 refuses it otherwise
            given["disable_overlap_schedule"] = True
        if "window_tokens" in config:
            given["swa_full_tokens_ratio"] = config["window_tokens"] / config["tokens"]
        if config.get("eagle"):
            given["speculative_algorithm"] = "EAGLE"
            given["speculative_draft_model_path"] = self.model("eagle")
        given |= worker_host.flags(config.get("host"))
        return {name: value for name, value in given.items() if name in self._known}

    def resolved(self, config: Json) -> dict[str, Json]:
        """Every field of the configuration that a server would start with."""
        args = self.arguments(**self.flags(config))
        if hasattr(args, "resolve_once"):
            args.resolve_once()
            found = args.resolved_dict()
        else:  # 0.5.9 resolves when it is made
            found = {each.name: getattr(args, each.name) for each in dataclasses.fields(args)}
        found |= {
            "random_seed": None,  # drawn at every start
            "mamba_cache_chunk_size": self._chunk_size(args, config),
        }
        plain = json.loads(json.dumps(found, default=str))
        folder = self._folder.name
        return {
            name: value.replace(f"{folder}/", "") if isinstance(value, str) else value
            for name, value in plain.items()
        }

    def _chunk_size(self, args: Real, config: Json) -> int | None:
        if "mamba" not in config["kind"]:
            return None
        if hasattr(self.arguments, "mamba_cache_chunk_size"):
            return int(args.mamba_cache_chunk_size)
        overrides: Real = importlib.import_module("sglang.srt.arg_groups.overrides")
        return int(overrides.mamba_cache_chunk_size(args))


def main() -> None:
    """Answer flags until the input ends."""
    answers = own_output()
    logging.disable(logging.CRITICAL)
    start = Start(Path(sys.argv[1]))
    answer_lines(answers, start.resolved)


if __name__ == "__main__":
    main()
