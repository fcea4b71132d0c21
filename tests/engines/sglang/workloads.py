"""Random conversations on servers with every tree."""

import random
from typing import Any

from cachesim.engines.base import Engine, Request
from cachesim.engines.sglang.server import Sglang
from cachesim.model import ArithmeticName
from cachesim.model.build import build
from cachesim.model.presets import preset, tiny
from cachesim.typed import of_kind
from tests.engines.conversations import Conversations


def server(
    release: str, model: str = "dense", arithmetic: ArithmeticName = "counts", **options: Any
) -> Sglang:
    network = tiny(model, vocabulary=4096)
    made = Engine.create(f"sglang@{release}", model=network, arithmetic=arithmetic, options=options)
    return of_kind(Sglang, made)


PRESETS = ("dense", "swa", "recurrent", "hybrid", "hybrid-delta", "hybrid-swa")


class Workload(Conversations):
    """One server with random options, and the requests that it is sent."""

    together = (1, 1, 2, 3)
    longest = (150, 80, 300)

    def __init__(
        self,
        seed: int,
        profile: str,
        *,
        presets: tuple[str, ...] = PRESETS,
        tiered: bool = False,
        stored: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.tiered, self.stored = tiered or stored, stored
        name = self.rng.choice(presets)
        window = {"window": self.rng.choice([6, 12, 40])} if "swa" in name else {}
        self.network = build(preset(name, **window), "ring")
        self.options = self._options("0.5.9" in profile)
        self.engine = Engine.create(profile, model=self.network, options=self.options)
        super().__init__()

    def _options(self, old: bool) -> dict[str, Any]:
        rng, states = self.rng, bool(self.network.spec.recurrent_layers)
        options: dict[str, Any] = {
            "page_size": rng.choice([1, 1, 4, 16]),
            "max_total_tokens": rng.choice([700, 1200, 16384]),
            "chunked_prefill_size": rng.choice([32, 64, 128, 8192]),
            "max_running_requests": rng.choice([1, 2, 4]),
            "radix_eviction_policy": rng.choice(["lru", "lru", "lfu"]),
        }
        if old and self.network.spec.window_layers:  # a page beyond the window counts as alive
            options["page_size"] = min(options["page_size"], 4)
        if states:
            name = "mamba_scheduler_strategy" if old else "mamba_radix_cache_strategy"
            options[name] = "extra_buffer" if options["page_size"] > 1 else "no_buffer"
            if rng.random() < 0.4:
                options[name] = "extra_buffer"
            options["mamba_track_interval"] = rng.choice([64, 256])
            options["max_mamba_cache_size"] = rng.choice([24, 64])
        whole = old and states and "no_buffer" in options.values()  # 0.5.9 caches nothing then
        if rng.random() < 0.2 and not whole:
            options["speculative_algorithm"] = "EAGLE"
        if self.tiered:
            options |= self._host(old)
        return options

    def _host(self, old: bool) -> dict[str, Any]:
        """A host beside a device that is soon full; 0.5.9's is unsound with `write_back`."""
        rng = self.rng
        policies = [
            "write_through",
            "write_through_selective",
            *(["write_back"] if not old else []),
        ]
        return self._storage() | {
            "enable_hierarchical_cache": True,
            "max_total_tokens": rng.choice([400, 500, 700]),
            "hicache_ratio": rng.choice([1.0, 2.0, 4.0] if old else [0.5, 1.0, 2.0, 4.0]),
            "hicache_write_policy": rng.choice(policies),
        }

    def _storage(self) -> dict[str, Any]:
        if not self.stored:
            return {}
        return {
            "hicache_storage_backend": "file",
            "hicache_storage_prefetch_policy": self.rng.choice(
                ["best_effort", "wait_complete", "timeout"]
            ),
            "prefetch_threshold": self.rng.choice([1, 20]),
        }

    def request(self) -> Request:
        rng = self.rng
        count = rng.choice([1, 3, 10, 90])
        reply = self.fresh(count) if rng.random() < 0.7 else None
        return Request(prompt=self.prompt(64), predict=count, reply=reply)

    def rounds(self) -> int:
        return self.rng.randint(3, 7) + 8 * self.tiered

    def between(self) -> None:
        if self.stored and self.rng.random() < 0.4:
            self.engine.slot_erase(0)  # what is known is in the storage alone
