"""vllm-mlx's own scheduler and prefix cache beside the simulator: the same random requests.

They come one after the other, as is simulated. Prompts are shorter than a user's, so the limits of
the cache are a workload's: tokens that are worth an entry, entries, tokens without a new state.
"""

import re
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.family import Patch, Profile
from cachesim.engines.mlx_lm.engine import MlxLm
from cachesim.engines.mlx_lm.family import FAMILY, MlxRules
from cachesim.engines.mlx_lm.rules import MemoryRules
from cachesim.engines.mlx_lm.server.store import described
from cachesim.lab.real.agreement import Agreement, Difference
from cachesim.lab.real.environment import UnpackedWheel
from cachesim.lab.real.mlx_lm.families import order_of, toy_of
from cachesim.lab.real.mlx_lm.process import environment_for
from cachesim.lab.real.mlx_lm.server_workloads import VOCABULARY, Workload
from cachesim.lab.real.worker_process import ROOT, START, JsonProcess
from cachesim.typed import of_kind
from cachesim.units import as_tokens

RELEASE: Final = "0.31.3"
"""Of mlx-lm, which the wheel asks for."""

WHEEL: Final = "vllm-mlx==0.6.0"
WORDS: Final = range(12, VOCABULARY)
MODELS: Final = ("llama", "gemma3_text", "granitemoehybrid", "qwen3_5", "mamba2")
"""All can be cut; windows; states and attention, twice; states alone."""

REQUESTS: Final = 10


class RealScheduler(JsonProcess):
    """vllm-mlx on mlx-lm's classes, in a process of its own; a fresh scheduler per workload."""

    def __init__(self, folder: str) -> None:
        wheel = UnpackedWheel(
            name=WHEEL.replace("==", "-"),
            requirements=(WHEEL,),
            kept=re.compile(r"vllm_mlx/[\w/]+\.py"),
            packages=environment_for(RELEASE),
        )
        command = [str(wheel.ready()), "-I", "-c", START, str(ROOT)]
        command += [f"{__package__}.vllm_mlx_worker", str(wheel.folder)]
        super().__init__(WHEEL, command, quiet=True)
        self._folder = Path(folder)

    def play(self, workload: Workload) -> list[dict[str, Any]]:
        """What each request was given from the cache, and what the cache then holds."""
        spec = toy_of(workload["model"], VOCABULARY)
        weights = self._folder / f"{workload['model']['family']}.npz"
        model = order_of(spec, weights)
        found: list[dict[str, Any]] = self.order(
            workload | {"model": model, "vocabulary": VOCABULARY}
        )
        return found


def draw(seed: int, number: int) -> Workload:
    """Prompts that go on from earlier ones: the same, longer, cut, changed within, new."""
    rng = Random(f"vllm-mlx {seed} {number}")
    known: list[list[int]] = []
    requests = []
    for _ in range(REQUESTS):
        base = rng.choice(known) if known and rng.random() < 0.85 else []
        kept = base[: len(base) - rng.choice((0, 0, 0, 1, 2, rng.randint(0, len(base))))]
        more = rng.choices(WORDS, k=rng.choice((0, 1, rng.randint(1, 30))))
        prompt = kept + more or rng.choices(WORDS, k=rng.randint(1, 60))
        reply = rng.choices(WORDS, k=rng.randint(1, 6))
        known += [prompt, prompt + reply, prompt + reply[:1]]
        requests.append({"prompt": prompt, "reply": reply})
    limits = {"min_prefix_tokens": rng.choice((1, 8, 24)), "max_entries": rng.choice((2, 4, 1000))}
    return {
        "id": f"{number}",
        "model": {"family": MODELS[number % len(MODELS)]},
        "limits": limits,
        "refresh": rng.choice((0, 5, 4096)),
        "requests": requests,
    }


def simulate(workload: Workload) -> list[dict[str, Any]]:
    """The same of the simulator."""
    limits = workload["limits"]
    memory = MemoryRules(
        least=limits["min_prefix_tokens"],
        most=limits["max_entries"],
        refresh=workload["refresh"],
    )

    def lay(rules: MlxRules) -> MlxRules:
        return replace(rules, server=replace(rules.server, memory=memory))

    drawn = Patch(name="drawn", about="the limits of a workload", fits=(RELEASE,), lay=lay)
    engine = of_kind(
        MlxLm,
        Engine.create(
            Profile("mlx-lm", RELEASE, ("drawn",)),
            model=toy_of(workload["model"], VOCABULARY),
            arithmetic="ring",
            options={"provenance": False},
            family=replace(FAMILY, patches=(*FAMILY.patches, drawn)),
        ),
    )
    return [_served(engine, each["prompt"], each["reply"]) for each in workload["requests"]]


def _served(engine: MlxLm, prompt: list[int], reply: list[int]) -> dict[str, Any]:
    ticket = engine.submit(
        Request(prompt=as_tokens(prompt), reply=as_tokens(reply), predict=len(reply))
    )
    engine.run()
    answer = of_kind(Reply, engine.reply(ticket))
    store = engine.server.store.cache
    entries = [
        [
            list(key),
            [
                each.get("offset", -1)
                for each in described(engine.network, store.trie.get(model, key).prompt_cache)
            ],
        ]
        for queue in store.order.queues.values()
        for model, key in queue
    ]
    generated = [int(each) for each in answer.generated]
    return {"cached": answer.cached, "reply": generated, "entries": entries}


def compare_vllm_mlx(seed: int, workloads: int, first: int = 0) -> Agreement:
    """Requests, hits and entries of each model, and the first request that differs."""
    agreement = Agreement(title=f"{WHEEL}: requests on its own scheduler", kinds="model")
    with TemporaryDirectory() as folder, RealScheduler(folder) as real:
        for number in range(first, first + workloads):
            workload = draw(seed, number)
            pairs = list(zip(real.play(workload), simulate(workload), strict=True))
            wrong = (step for step, pair in enumerate(pairs) if _differs(*pair))
            step = next(wrong, None)
            difference = None
            if step is not None:
                theirs, ours = pairs[step]
                real_ones = {name: theirs[name] for name in ours}
                difference = Difference(step=step, simulated=ours, real=real_ones)
            agreement.add(
                workload["model"]["family"],
                workload,
                difference,
                requests=len(pairs) if step is None else step,
                hits=sum(theirs["cached"] > 0 for theirs, _ in pairs),
                found_and_not_used=sum(theirs["found"] > theirs["cached"] for theirs, _ in pairs),
                entries=sum(len(theirs["entries"]) for theirs, _ in pairs),
            )
    return agreement


def _differs(theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    return any(theirs[name] != ours[name] for name in ours)
