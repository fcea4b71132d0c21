"""Random conversations on servers with every group."""

import random
from typing import Any

from cachesim.engines.base import Engine, Request
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.build import build
from cachesim.model.presets import preset
from tests.engines.conversations import Conversations

PRESETS = ("dense", "swa", "recurrent", "hybrid", "hybrid-delta", "hybrid-swa", "chunked")


class Workload(Conversations):
    """One server with random options, and the requests that it is sent."""

    together = (1, 1, 2, 3, 5)
    longest = (60, 20, 200)

    def __init__(self, seed: int, profile: str, *, arithmetic: ArithmeticName = "ring") -> None:
        self.rng = random.Random(seed)
        self.preset = self.rng.choice(PRESETS)
        wishes: dict[str, Any] = {}
        if self.preset in {"swa", "hybrid-swa", "chunked"}:
            wishes["window"] = self.rng.choice([6, 12, 40])
        if self.preset == "chunked":  # Llama 4: every second layer sees its own chunk
            wishes = {"chunked": True, "window": self.rng.choice([16, 16, 48])}
        named = "swa" if self.preset == "chunked" else self.preset
        self.network = build(preset(named, **wishes), arithmetic)
        self.release = profile.removeprefix("vllm@").split("+")[0]
        self.options = self._options(self.release != "0.19.1")
        self.engine = Engine.create(profile, model=self.network, options=self.options)
        super().__init__()

    def _options(self, retention: bool) -> dict[str, Any]:
        rng, spec = self.rng, self.network.spec
        block = rng.choice([4, 4, 8, 16])
        options: dict[str, Any] = {
            "block_size": block,
            "num_gpu_blocks_override": rng.choice([24, 40, 400]),
            "max_num_batched_tokens": rng.choice([16, 32, 64, 8192]),
            "max_num_seqs": rng.choice([1, 2, 4, 16]),
            "mamba_cache_mode": "align",
        }
        states = block
        attends = bool(spec.attention_layers or spec.window_layers)
        mixed = retention and spec.recurrent_layers and attends and rng.random() < 0.5
        if mixed:
            states = options["block_size"] = block * rng.choice([2, 4])
        full = spec.attention_layers and spec.window_layers and not spec.recurrent_layers
        if full and retention and not spec.chunked and rng.random() < 0.4:
            options["window_block_size"] = block
            states = options["block_size"] = block * rng.choice([2, 4])
        options["max_num_batched_tokens"] = max(options["max_num_batched_tokens"], states)
        if retention and (spec.recurrent_layers or (spec.window_layers and not spec.chunked)):
            interval = rng.choice([-1, 0, 2 * states])
            options["prefix_cache_retention_interval"] = interval
        if rng.random() < 0.3:
            methods = ["ngram"] if self.preset == "chunked" else ["eagle", "ngram"]
            options["speculative_method"] = rng.choice(methods)
            options["num_speculative_tokens"] = rng.choice([1, 2, 3])
        if mixed and options.get("speculative_method") == "eagle":
            options |= {"drafter_block_size": block} if self.release >= "0.28.0" else {}
        elif mixed and spec.attention_layers and self.release >= "0.26.0":
            options["prefix_match_unit"] = block
        options["async_scheduling"] = rng.random() < 0.3
        if rng.random() < 0.3:
            options["scheduling_policy"] = "priority"
        if rng.random() < 0.2:
            options["connector"] = "store"
        return options

    def request(self) -> Request:
        rng, count = self.rng, self.rng.randint(1, 20)
        reply = self.fresh(count) if rng.random() < 0.5 else None
        drafts = None
        most = self.options.get("num_speculative_tokens", 0)
        if most and reply and rng.random() < 0.6:
            drafts = tuple(
                (reply[at:][: rng.randint(0, most)] + self.fresh(1))[:most]
                for at in range(1, count + 1)
            )
        wishes = {}
        if self.options.get("scheduling_policy") == "priority":
            wishes["priority"] = rng.choice([-1, 0, 0, 1])
        return Request(
            prompt=self.prompt(self.options["block_size"]),
            predict=count,
            reply=reply,
            drafts=drafts,
            options=wishes,
        )

    def rounds(self) -> int:
        return self.rng.randint(3, 8)
