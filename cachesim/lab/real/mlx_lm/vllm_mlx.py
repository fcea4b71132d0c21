"""Schedulers and prefix caches of vllm-mlx's kin beside the simulator: the same random requests.

They come one after the other, as is simulated. Prompts are shorter than a user's, so the limits of
the cache are a workload's: tokens that are worth an entry, entries, tokens without a new state.
All other settings are those with which the wheel's own `serve` starts: Rapid-MLX packs keys and
values in int4, and its command line says how many entries that cannot be cut its scheduler stores,
for a model that it lists or another one; fewer are drawn, too.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.chat import Message
from cachesim.engines.family import Patch, Profile
from cachesim.engines.mlx_lm.engine import MlxLm
from cachesim.engines.mlx_lm.family import FAMILY, MlxRules
from cachesim.engines.mlx_lm.rules import UNLISTED, MemoryRules, RapidRules
from cachesim.engines.mlx_lm.server.store import described
from cachesim.engines.mlx_lm.server.word_tokenizer import WordTokenizer
from cachesim.lab.real.agreement import Agreement, first_difference
from cachesim.lab.real.environment import UnpackedWheel
from cachesim.lab.real.mlx_lm.families import order_of, toy_of
from cachesim.lab.real.mlx_lm.process import environment_for
from cachesim.lab.real.mlx_lm.server_workloads import VOCABULARY, Workload
from cachesim.lab.real.playing import Override, overrides_of
from cachesim.lab.real.worker_process import ROOT, START, JsonProcess
from cachesim.typed import of_kind
from cachesim.units import as_tokens

RELEASE: Final = "0.31.3"
"""Of mlx-lm, which the wheel asks for."""

VLLM_MLX: Final = "vllm-mlx==0.6.0"
RAPID_MLX: Final = "rapid-mlx==0.12.5"
"""Both wheels have the modules of vllm-mlx, under its name."""

LISTED: Final = "qwen3.5-4b-4bit"
"""A hybrid that Rapid-MLX lists, and stores some entries of that cannot be cut."""

WORDS: Final = range(12, VOCABULARY)
MODELS: Final = ("llama", "gemma3_text", "granitemoehybrid", "qwen3_5", "mamba2")
"""All can be cut; windows; states and attention, twice; states alone."""

PACKED: Final = dict.fromkeys(("llama", "qwen3_5"), 32)
"""Sizes of heads that Rapid-MLX packs in int4, as it does by default; no smaller one is packed."""

REQUESTS: Final = 10

FLAG_REASONS: Final = {
    "--continuous-batching": "without it no scheduler runs, and nothing is cached",
    "--hybrid-cache-entries": "of some workloads alone: the default is 8 for a listed hybrid, or 0",
    "hybrid_cache_entries": "by --hybrid-cache-entries",
    "non_trimmable_exact_prefix_reuse": "on for a hybrid that Rapid-MLX lists, by its default",
    "min_prefix_tokens": "prompts are shorter than a user's; the rule is compared, not the number",
    "max_entries": "ten requests do not fill a thousand entries",
    "hybrid_reuse_max_entries": "ten requests do not fill eight entries",
    "SNAPSHOT_REFRESH_TOKENS": "prompts are shorter than a user's",
}
"""Flags and settings of a workload that differ from those of `serve MODEL` -> why."""

PRETENDED: Final = {
    "the model": (
        "that of the command line",
        "a tiny one of mlx-lm's own class with random weights, and a tokenizer of words",
        "caches and stores know shapes and tokens alone",
    ),
    "the sampler": (
        "by a request's temperature",
        "logits processors that leave the tokens of the workload's reply",
        "a workload does not depend on weights",
    ),
    "requests": (
        "several at once, from HTTP handlers",
        "one after the other, given to the scheduler",
        "simulated so; what is cached of requests side by side is not compared",
    ),
}
"""Settings without a flag: a server's default, ours, why no result depends on it."""

SHORTENED: Final = {
    "PFlash (--pflash)": (
        "always for 27 names that it lists, all but one of Qwen 3.5 or 3.6; off for other models",
        "off: the model is a folder, which is none of them",
        "it shortens a prompt before the scheduler gets it; a shortened prompt is not simulated",
    ),
}
"""The same, of Rapid-MLX alone."""


class RealScheduler(JsonProcess):
    """A wheel's scheduler on mlx-lm's classes, in a process of its own; fresh per workload."""

    def __init__(self, wheel: str, folder: str) -> None:
        unpacked = UnpackedWheel(
            name=wheel.replace("==", "-") + "-scheduler" * (wheel != VLLM_MLX),
            requirements=(wheel,),
            kept=re.compile(r"vllm_mlx/[\w/]+\.(py|json)"),
            packages=environment_for(RELEASE),
        )
        command = [str(unpacked.ready()), "-I", "-c", START, str(ROOT)]
        command += [f"{__package__}.vllm_mlx_worker", str(unpacked.folder)]
        super().__init__(wheel, command, quiet=True)
        self._folder = Path(folder)

    def play(self, workload: Workload) -> list[dict[str, Any]]:
        """Cached tokens of each request, and the content of the cache after it."""
        found: list[dict[str, Any]] = self.order(self._ordered(workload))
        return found

    def settings(self, workload: Workload) -> list[dict[str, str]]:
        """Flags and settings of `serve MODEL`, and of a workload."""
        found: list[dict[str, str]] = self.order({"settings": self._ordered(workload)})
        return found

    def _ordered(self, workload: Workload) -> Workload:
        spec = toy_of(workload["model"], VOCABULARY)
        weights = self._folder / f"{workload['model']['family']}.npz"
        return workload | {"model": order_of(spec, weights), "vocabulary": VOCABULARY}


def draw(seed: int, number: int, wheel: str = VLLM_MLX) -> Workload:
    """Continuations of earlier prompts: the same, longer, cut, changed within, new."""
    rng = Random(f"{wheel.split('==', maxsplit=1)[0]} {seed} {number}")
    family = MODELS[number % len(MODELS)]
    workload: Workload = {
        "id": f"{number}",
        "model": {"family": family},
        "template": "chatml",
        "requests": list(islice(_prompts(rng), REQUESTS)),
    }
    entries = {"max_entries": rng.choice((2, 4, 1000))}
    if wheel == VLLM_MLX:
        limits = {"min_prefix_tokens": rng.choice((1, 8, 24)), **entries}
        return workload | {"limits": limits, "refresh": rng.choice((0, 5, 4096))}
    workload["model"] |= {"window": rng.choice((8, 64)), "head_size": PACKED.get(family)}
    served = {"model": rng.choice((LISTED, "none/listed")), "entries": rng.choice((None, 1, 3))}
    if rng.random() < 0.5:
        workload["template"] = template = rng.choice(("chatml", "think"))
        chats = _chats(rng, WordTokenizer(template, VOCABULARY))
        workload["requests"] = list(islice(chats, REQUESTS))
    return workload | {"limits": entries, "serve": served}


def _prompts(rng: Random) -> Iterator[dict[str, Any]]:
    known: list[list[int]] = []
    while True:
        base = rng.choice(known) if known and rng.random() < 0.85 else []
        kept = base[: len(base) - rng.choice((0, 0, 0, 1, 2, rng.randint(0, len(base))))]
        more = rng.choices(WORDS, k=rng.choice((0, 1, rng.randint(1, 30))))
        prompt = kept + more or rng.choices(WORDS, k=rng.randint(1, 60))
        reply = rng.choices(WORDS, k=rng.randint(1, 6))
        known += [prompt, prompt + reply, prompt + reply[:1]]
        yield {"prompt": prompt, "reply": reply}


def _chats(rng: Random, tokenizer: WordTokenizer) -> Iterator[dict[str, Any]]:
    def text(most: int) -> str:
        return tokenizer.decode(as_tokens(rng.choices(WORDS, k=rng.randint(0, most))))

    known: list[list[dict[str, str]]] = []
    while True:
        act = rng.choice(("on", "on", "on", "again", "other", "new")) if known else "new"
        messages = rng.choice(known[-3:]) if act != "new" else []
        if act == "new" and rng.random() < 0.6:
            messages = [{"role": "system", "content": text(12)}]
        messages = messages[: {"again": -1, "other": -2}.get(act)]
        if act != "again":
            messages = [*messages, {"role": "user", "content": text(24)}]
        reply = rng.choices(WORDS, k=rng.randint(1, 6))
        said = {"role": "assistant", "content": tokenizer.decode(as_tokens(reply))}
        known.append([*messages, said])
        yield {"messages": messages, "reply": reply}


def started(workload: Workload, memory: MemoryRules) -> MlxLm:
    """The simulated server of a workload, with the rules of its prefix cache."""

    def lay(rules: MlxRules) -> MlxRules:
        return replace(rules, server=replace(rules.server, memory=memory))

    drawn = Patch(name="drawn", about="the limits of a workload", fits=(RELEASE,), lay=lay)
    return of_kind(
        MlxLm,
        Engine.create(
            Profile("mlx-lm", RELEASE, ("drawn",)),
            model=toy_of(workload["model"], VOCABULARY),
            arithmetic="ring",
            options={
                "provenance": False,
                "tokenizer": "words",
                "chat_template": workload["template"],
            },
            family=replace(FAMILY, patches=(*FAMILY.patches, drawn)),
        ),
    )


def simulate(workload: Workload) -> list[dict[str, Any]]:
    """The same of the simulator."""
    engine = started(workload, _rules(workload))
    return [_served(engine, each) for each in workload["requests"]]


def _rules(workload: Workload) -> MemoryRules:
    limits = workload["limits"]
    if "serve" not in workload:
        return MemoryRules(
            least=limits["min_prefix_tokens"],
            most=limits["max_entries"],
            refresh=workload["refresh"],
        )
    listed, entries = workload["serve"]["model"] == LISTED, workload["serve"]["entries"]
    own = RapidRules() if listed else UNLISTED
    uncut = own.uncut if entries is None else entries
    return replace(own, most=limits["max_entries"], uncut=uncut)


def _served(engine: MlxLm, request: dict[str, Any]) -> dict[str, Any]:
    ticket = engine.submit(
        Request(
            prompt=as_tokens(request.get("prompt", ())),
            messages=tuple(Message(**each) for each in request.get("messages", ())),
            reply=as_tokens(request["reply"]),
            predict=len(request["reply"]),
        )
    )
    engine.run()
    answer = of_kind(Reply, engine.reply(ticket))
    generated = [int(each) for each in answer.generated]
    prompt = [int(each) for each in answer.prompt]
    return {
        "prompt": prompt,
        "cached": answer.cached,
        "reply": generated,
        "entries": entries_of(engine),
    }


def entries_of(engine: MlxLm) -> list[list[list[int]]]:
    """The keys of the store, each with the offsets of its layers' caches."""
    store = engine.server.store.cache
    return [
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


def compare_vllm_mlx(
    seed: int, workloads: int, first: int = 0, *, wheel: str = VLLM_MLX
) -> Agreement:
    """Requests, hits and entries of each model, and the first request that differs."""
    agreement = Agreement(title=f"{wheel}: requests on its own scheduler", kinds="model")
    with TemporaryDirectory() as folder, RealScheduler(wheel, folder) as real:
        for number in range(first, first + workloads):
            workload = draw(seed, number, wheel)
            played, simulated = real.play(workload), list(simulate(workload))
            pairs = zip(played, simulated, strict=True)
            compared = [{name: theirs[name] for name in ours} for theirs, ours in pairs]
            difference = first_difference(compared, simulated)
            step = len(played) if difference is None else difference.step
            agreement.add(
                workload["model"]["family"],
                workload,
                difference,
                requests=step,
                hits=sum(each["cached"] > 0 for each in played),
                found_not_all_used=sum(each["found"] > each["cached"] for each in played),
                entries=sum(len(each["entries"]) for each in played),
            )
    return agreement


def overrides(wheel: str) -> list[Override]:
    """Flags and settings in which some workload differs from `serve MODEL`."""
    with TemporaryDirectory() as folder, RealScheduler(wheel, folder) as real:
        pairs = [real.settings(draw(0, number, wheel)) for number in range(2 * len(MODELS))]
    rows = {
        (name, started[name], used[name])
        for started, used in pairs
        for name in started
        if started[name] != used[name]
    }
    pretended = PRETENDED | (SHORTENED if wheel == RAPID_MLX else {})
    return overrides_of(sorted(rows), FLAG_REASONS, pretended)
