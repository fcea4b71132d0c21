"""vllm-mlx's scheduler for models that read images, beside the simulator: the same requests.

They come one after the other, as is simulated: prompts of text alone, and prompts with up to three
images that come again, at other places and in another order. The limits of the caches are a
workload's; all other settings are the release's defaults.
"""

import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from cachesim.engines.base import Reply, Request
from cachesim.engines.mlx_lm.engine import MlxLm
from cachesim.engines.mlx_lm.rules import MemoryRules, MllmRules, WholeRules
from cachesim.engines.mlx_lm.store.mllm_prompt_cache import MllmPromptCache
from cachesim.lab.real.agreement import Agreement, first_difference
from cachesim.lab.real.environment import UnpackedWheel
from cachesim.lab.real.mlx_lm import vllm_mlx
from cachesim.lab.real.mlx_lm.families import order_of, toy_of
from cachesim.lab.real.mlx_lm.process import environment_for
from cachesim.lab.real.mlx_lm.server_workloads import VOCABULARY, Workload
from cachesim.lab.real.mlx_lm.vllm_mlx import (
    MODELS,
    RELEASE,
    REQUESTS,
    VLLM_MLX,
    WORDS,
    entries_of,
    started,
)
from cachesim.lab.real.playing import Override, overrides_of
from cachesim.lab.real.schedules import images_of
from cachesim.lab.real.worker_process import ROOT, START, JsonProcess
from cachesim.typed import of_kind
from cachesim.units import as_tokens

BEFORE: Final = "vllm-mlx==0.5.0"
"""The last release that looked up prompts with images."""

MLX_VLM: Final = "mlx-vlm==0.7.10"
"""The dependency of both wheels, at its newest release."""

LIMIT_REASONS: Final = {
    "min_prefix_tokens": "prompts are shorter than a user's; the rule is compared, not the number",
    "max_entries": "ten requests do not fill a thousand entries",
    "max_pixel_entries": "ten requests do not fill a hundred entries",
}
"""Limits of a workload that differ from the scheduler's defaults -> why."""

PRETENDED: Final = {
    "the model": (
        "one of mlx-vlm, with an image encoder",
        "a tiny one of mlx-lm's class with random weights, which reads the tokens of an image",
        "caches and stores know shapes and tokens alone",
    ),
    "mlx-vlm's `prepare_inputs`": (
        "resizes images, and puts as many placeholders into the prompt as each needs",
        "reads the tokens of each from its file, and puts as many placeholders",
        "what it returns is kept and used as it is",
    ),
    "mlx-vlm's `get_chat_template`": (
        "renders a chat with its images",
        "returns the drawn prompt; of the default engine alone",
        "the prompt is hashed as it is",
    ),
    "prefill_step_size": (
        "2048, by the command line",
        "1024, by the scheduler",
        "every prompt is shorter than both",
    ),
    "the tokenizer": (
        "the model's",
        "one of words; its template's text has no spaces between them",
        "a prompt's ids are given, and the template is only asked for its last tokens",
    ),
    "the sampler": vllm_mlx.PRETENDED["the sampler"],
    "requests": vllm_mlx.PRETENDED["requests"],
}
"""Settings without a flag: a server's default, ours, why no result depends on it."""

Piece = tuple[str, list[int]]
"""A word, or an image by its name, with the tokens that stand for it."""


class RealMllm(JsonProcess):
    """A wheel's scheduler on mlx-lm's classes, in a process of its own; fresh per workload."""

    def __init__(self, wheel: str, folder: str) -> None:
        mlx = environment_for(RELEASE)
        wheels = [
            UnpackedWheel(
                name=each.replace("==", "-"),
                requirements=(each,),
                kept=re.compile(rf"{each.partition('==')[0].replace('-', '_')}/[\w/]+\.(py|json)"),
                packages=mlx,
            )
            for each in (wheel, MLX_VLM)
        ]
        command = [str(mlx.ready()), "-I", "-c", START, str(ROOT)]
        command += [f"{__package__}.vllm_mlx_images_worker"]
        for each in wheels:
            each.ready()
            command.append(str(each.folder))
        super().__init__(wheel, command, quiet=True)
        self._folder = Path(folder)

    def play(self, workload: Workload) -> list[dict[str, Any]]:
        """Tokens that each request fed, and the entries after it."""
        vocabulary = workload.get("vocabulary", VOCABULARY)
        spec = toy_of(workload["model"], vocabulary)
        weights = self._folder / f"{workload['model']['family']}.npz"
        model = order_of(spec, weights)
        found: list[dict[str, Any]] = self.order(
            workload | {"model": model, "vocabulary": vocabulary}
        )
        return found

    def limits(self, workload: Workload) -> list[dict[str, str]]:
        """Limits by default, and of a workload."""
        found: list[dict[str, str]] = self.play(workload | {"requests": None})
        return found


def draw(seed: int, number: int) -> Workload:
    """Continuations of earlier prompts: cut, longer, with images, other ones, in their turn."""
    rng = Random(f"vllm-mlx images {seed} {number}")
    return {
        "id": f"{number}",
        "model": {"family": MODELS[number % len(MODELS)]},
        "template": rng.choice(("chatml", "chatml", "think")),
        "limits": {
            "min_prefix_tokens": rng.choice((1, 8, 24)),
            "max_entries": rng.choice((2, 4, 1000)),
        },
        "pixels": rng.choice((1, 3, 100)),
        "requests": list(islice(_prompts(rng), REQUESTS)),
    }


def _prompts(rng: Random) -> Iterator[dict[str, Any]]:
    images = [(name, rng.choices(WORDS, k=rng.randint(1, 9))) for name in "abc"]
    known: list[list[Piece]] = []
    while True:
        base = list(rng.choice(known)) if known and rng.random() < 0.85 else []
        kept = base[: len(base) - rng.choice((0, 0, 0, 1, 2, rng.randint(0, len(base))))]
        more = _words(rng, rng.choice((0, 1, rng.randint(1, 30))))
        if rng.random() < 0.2:
            more.insert(rng.randint(0, len(more)), rng.choice(images))
        pieces = kept + more or _words(rng, rng.randint(1, 60))
        places = [at for at, (name, _) in enumerate(pieces) if name]
        if places and rng.random() < 0.3:
            one, two = rng.choice(places), rng.choice(places)
            pieces[one], pieces[two] = pieces[two], pieces[one]
        elif places and rng.random() < 0.3:
            pieces[rng.choice(places)] = rng.choice(images)
        pieces += _words(rng, 1) if pieces[-1][0] else []  # as in every chat
        reply = rng.choices(WORDS, k=rng.randint(1, 6))
        known += [pieces, pieces + [("", [each]) for each in reply]]
        yield _request(pieces) | {"reply": reply}


def _words(rng: Random, count: int) -> list[Piece]:
    return [("", [each]) for each in rng.choices(WORDS, k=count)]


def _request(pieces: list[Piece]) -> dict[str, Any]:
    prompt, images = list[int](), list[list[Any]]()
    for name, tokens in pieces:
        images += [[name, len(prompt), len(tokens)]] if name else []
        prompt += tokens
    return {"prompt": prompt, "images": images}


def draw_whole(seed: int, number: int) -> Workload:
    """Prompts with images, most of them again or in another order, streamed or in one piece."""
    workload = draw(seed, number)
    rng = Random(f"vllm-mlx whole {seed} {number}")
    requests = [each for each in workload["requests"] if each["images"]][:4] or [
        {"prompt": [12, 13, 14, 15], "images": [["a", 1, 2]], "reply": [16]}
    ]
    chosen = (rng.choice(requests) for _ in range(REQUESTS))
    return workload | {
        "whole": True,
        "limits": {"max_entries": rng.choice((1, 2, 50))},
        "requests": [each | {"stream": rng.random() < 0.5} for each in chosen],
    }


def simulate(workload: Workload, wheel: str = VLLM_MLX) -> list[dict[str, Any]]:
    """The same of the simulator."""
    limits = workload["limits"]
    if "whole" in workload:
        return _simulate_whole(workload)
    memory = MllmRules(
        least=limits["min_prefix_tokens"],
        most=limits["max_entries"],
        pixels=workload["pixels"],
        reads_media=wheel == BEFORE,
        keeps_logits=wheel != BEFORE,
    )
    engine, fed = _started(workload, memory)
    return [_served(engine, fed, each) for each in workload["requests"]]


ENGINES: Final = ((VLLM_MLX, draw), (BEFORE, draw), (VLLM_MLX, draw_whole))
"""Wheels, and what is drawn for each engine that is compared."""


def _simulate_whole(workload: Workload) -> list[dict[str, Any]]:
    engine, fed = _started(workload, WholeRules(most=workload["limits"]["max_entries"]))
    first, found = dict[tuple[int, ...], int](), list[dict[str, Any]]()
    for number, each in enumerate(workload["requests"]):
        answer = _served(engine, fed, each)
        entries = [(tuple(key), offsets) for key, offsets in answer["entries"]]
        for key, _ in entries:
            first.setdefault(key, number)
        kept = [[first[key], offsets] for key, offsets in entries]
        found.append({"fed": answer["fed"], "entries": kept})
    return found


def _started(workload: Workload, memory: MemoryRules) -> tuple[MlxLm, "Fed"]:
    engine = started(workload, memory)
    fed = Fed(engine.server.serving.model)
    object.__setattr__(engine.server.serving, "model", fed)
    return engine, fed


class Fed:
    """The simulated model, which notes what it is fed."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - a model, or what notes of it
        self.model = model
        self.tokens: list[int] = []

    def __call__(self, columns: Any, *rest: Any, **more: Any) -> Any:  # noqa: ANN401 - as given
        self.tokens += columns.reshape(-1).tolist()
        return self.model(columns, *rest, **more)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the model's
        return getattr(self.model, name)


def _served(engine: MlxLm, fed: Fed, request: dict[str, Any]) -> dict[str, Any]:
    fed.tokens = []
    ticket = engine.submit(
        Request(
            prompt=as_tokens(request["prompt"]),
            images=images_of(request),
            reply=as_tokens(request["reply"]),
            predict=len(request["reply"]),
            options={"stream": request["stream"]} if "stream" in request else {},
        )
    )
    engine.run()
    answer = of_kind(Reply, engine.reply(ticket))
    store = engine.server.store.cache
    return {
        "fed": fed.tokens,
        "reply": [int(each) for each in answer.generated],
        "prepared": len(store.prepared) if isinstance(store, MllmPromptCache) else 0,
        "entries": entries_of(engine),
    }


def compare_images(
    seed: int,
    workloads: int,
    first: int = 0,
    *,
    wheel: str = VLLM_MLX,
    drawing: Callable[[int, int], Workload] = draw,
) -> Agreement:
    """Fed tokens and entries of each model, and the first request that differs."""
    engine = "scheduler" if drawing is draw else "default engine"
    agreement = Agreement(title=f"{wheel}: images on its own {engine}", kinds="model")
    with TemporaryDirectory() as folder, RealMllm(wheel, folder) as real:
        for number in range(first, first + workloads):
            workload = drawing(seed, number)
            played = real.play(workload)
            difference = first_difference(played, simulate(workload, wheel))
            step = difference.step if difference else None
            wanted = [len(each["prompt"] + each["reply"]) for each in workload["requests"]]
            agreement.add(
                workload["model"]["family"],
                workload,
                difference,
                requests=len(played) if step is None else step,
                with_images=sum(bool(each["images"]) for each in workload["requests"][:step]),
                hits=sum(len(each["fed"]) < n for each, n in zip(played, wanted, strict=True)),
                entries=sum(len(each["entries"]) for each in played),
            )
    return agreement


def overrides() -> list[Override]:
    """Limits in which some workload differs from the scheduler's defaults, and stand-ins."""
    with TemporaryDirectory() as folder, RealMllm(VLLM_MLX, folder) as real:
        pairs = [real.limits(draw(0, number)) for number in range(2 * len(MODELS))]
    rows = {
        (name, default[name], used[name])
        for default, used in pairs
        for name in default
        if default[name] != used[name]
    }
    return overrides_of(sorted(rows), LIMIT_REASONS, PRETENDED)
