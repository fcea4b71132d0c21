"""Schedulers and prefix caches of vllm-mlx's kin beside the simulator: the same random requests.

They come one after the other, as is simulated. Prompts are shorter than a user's, so the limits of
the cache are a workload's: tokens that are worth an entry, entries, tokens without a new state.
All other settings are those with which the wheel's own `serve` starts: Rapid-MLX packs keys and
values in int4, and its command line says how many entries that cannot be cut its scheduler stores,
for a model that it lists or another one; fewer are drawn, too.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.chat import Message
from cachesim.engines.family import Patch, Profile, family_of
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.mlx_lm.server.engine import MlxLm
from cachesim.engines.mlx_lm.server.store import described
from cachesim.engines.mlx_lm.server.word_tokenizer import WordTokenizer
from cachesim.engines.rapid_mlx.rules import UNLISTED, RapidRules
from cachesim.engines.vllm_mlx.mllm_batch_generator import MllmPromptCache
from cachesim.engines.vllm_mlx.rules import MemoryRules, MllmRules, WholeRules
from cachesim.prove.environment import UnpackedWheel
from cachesim.prove.mlx_lm.families import order_of, toy_of
from cachesim.prove.mlx_lm.process import environment_for
from cachesim.prove.mlx_lm.server_worker import VOCABULARY
from cachesim.prove.playing import Override, Workload, overrides_of
from cachesim.prove.worker_process import ModuleProcess
from cachesim.prove.worker_side import differences
from cachesim.typed import of_kind
from cachesim.units import as_tokens
from conformance.real.agreement import Agreement, first_difference
from conformance.real.schedules import images_of

RELEASE: Final = "0.31.3"
"""The version of mlx-lm that the wheel requires."""

VLLM_MLX: Final = "vllm-mlx==0.6.0"
RAPID_MLX: Final = "rapid-mlx==0.12.5"
"""Both wheels have the modules of vllm-mlx, under its name."""

BEFORE: Final = "vllm-mlx==0.5.0"
"""The last release that looked up prompts with images."""

MLX_VLM: Final = "mlx-vlm==0.7.10"
"""The dependency of both wheels, at its newest release."""


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
    )
}
"""Overrides of Rapid-MLX alone."""


def unpacked(wheel: str) -> UnpackedWheel:
    """The folder of a wheel; Rapid-MLX's has vllm-mlx's modules, under their name."""
    package = "mlx_vlm" if wheel == MLX_VLM else "vllm_mlx"
    return UnpackedWheel(
        name=wheel.replace("==", "-") + "-scheduler" * (wheel == RAPID_MLX),
        requirements=(wheel,),
        kept=re.compile(rf"{package}/[\w/]+\.(py|json)"),
        packages=environment_for(RELEASE),
    )


class RealScheduler(ModuleProcess):
    """A wheel's scheduler on mlx-lm's classes, in a process of its own; fresh per workload."""

    def __init__(self, wheel: str, folder: str, *beside: str) -> None:
        """`beside`: further wheels, with which it reads images."""
        wheels = [unpacked(each) for each in (wheel, *beside)]
        [python, *_] = [each.ready() for each in wheels]
        folders = [str(each.folder) for each in wheels]
        super().__init__(wheel, python, f"{__package__}.vllm_mlx_worker", *folders)
        self._folder = Path(folder)

    def play(self, workload: Workload) -> list[dict[str, Any]]:
        """Cached or fed tokens of each request, and the content of the caches after it."""
        found: list[dict[str, Any]] = self.order(self._ordered(workload))
        return found

    def differences(self, drawn: Iterable[Workload]) -> list[list[str]]:
        """Settings in which some workload differs from the wheel's own."""
        rows: list[list[str]] = []
        for workload in drawn:
            rows += differences(*self.order({"settings": self._ordered(workload)}))
        return sorted(rows)

    def _ordered(self, workload: Workload) -> Workload:
        vocabulary = workload.get("vocabulary", VOCABULARY)
        weights = self._folder / f"{workload['model']['family']}.npz"
        model = order_of(toy_of(workload["model"], vocabulary), weights)
        return workload | {"model": model, "vocabulary": vocabulary}


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
        return replace(rules, server=replace(rules.server, prefix_cache=memory))

    family = family_of("rapid-mlx" if isinstance(memory, RapidRules) else "vllm-mlx")
    newest = family.names()[-1]
    drawn = Patch(name="drawn", about="the limits of a workload", fits=(newest,), lay=lay)
    return of_kind(
        MlxLm,
        Engine.create(
            Profile(family.name, newest, ("drawn",)),
            model=toy_of(workload["model"], VOCABULARY),
            arithmetic="ring",
            options={
                "provenance": False,
                "tokenizer": "words",
                "chat_template": workload["template"],
            },
            family=replace(family, patches=(*family.patches, drawn)),
        ),
    )


def simulate(workload: Workload) -> Iterator[dict[str, Any]]:
    """Results of the simulator."""
    engine = started(workload, _rules(workload))
    for request in workload["requests"]:
        reply = answered(engine, request)
        yield {
            "prompt": [int(each) for each in reply.prompt],
            "cached": reply.cached,
            "reply": [int(each) for each in reply.generated],
            "entries": entries_of(engine),
        }


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


def answered(engine: MlxLm, request: dict[str, Any]) -> Reply:
    """The simulated reply to a request of a workload."""
    ticket = engine.submit(
        Request(
            prompt=as_tokens(request.get("prompt", ())),
            messages=tuple(Message(**message) for message in request.get("messages", ())),
            images=images_of(request),
            reply=as_tokens(request["reply"]),
            predict=len(request["reply"]),
            options={"stream": request["stream"]} if "stream" in request else {},
        )
    )
    engine.run()
    return of_kind(Reply, engine.reply(ticket))


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


# -- requests with images -------------------------------------------------------------------------

LIMIT_REASONS: Final = {
    "min_prefix_tokens": "prompts are shorter than a user's; the rule is compared, not the number",
    "max_entries": "ten requests do not fill a thousand entries",
    "max_pixel_entries": "ten requests do not fill a hundred entries",
}
"""Limits of a workload that differ from the scheduler's defaults -> why."""

PRETENDED_OF_IMAGES: Final = {
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
    "the sampler": PRETENDED["the sampler"],
    "requests": PRETENDED["requests"],
}
"""Settings without a flag: a server's default, ours, why no result depends on it."""

Piece = tuple[str, list[int]]
"""A word, or an image by its name, with the tokens that stand for it."""


def draw_images(seed: int, number: int) -> Workload:
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
        "requests": list(islice(_pieces(rng), REQUESTS)),
    }


def _pieces(rng: Random) -> Iterator[dict[str, Any]]:
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
    return [("", [choice]) for choice in rng.choices(WORDS, k=count)]


def _request(pieces: list[Piece]) -> dict[str, Any]:
    prompt, images = list[int](), list[list[Any]]()
    for name, tokens in pieces:
        images += [[name, len(prompt), len(tokens)]] if name else []
        prompt += tokens
    return {"prompt": prompt, "images": images}


def draw_whole(seed: int, number: int) -> Workload:
    """Prompts with images, most of them again or in another order, streamed or in one piece."""
    workload = draw_images(seed, number)
    rng = Random(f"vllm-mlx whole {seed} {number}")
    requests = [request for request in workload["requests"] if request["images"]][:4] or [
        {"prompt": [12, 13, 14, 15], "images": [["a", 1, 2]], "reply": [16]}
    ]
    chosen = (rng.choice(requests) for _ in range(REQUESTS))
    return workload | {
        "whole": True,
        "limits": {"max_entries": rng.choice((1, 2, 50))},
        "requests": [each | {"stream": rng.random() < 0.5} for each in chosen],
    }


class Fed:
    """The simulated model, which records its input."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - a model, or what notes of it
        self.model = model
        self.tokens: list[int] = []

    def __call__(self, columns: Any, *rest: Any, **more: Any) -> Any:  # noqa: ANN401 - as given
        self.tokens += columns.reshape(-1).tolist()
        return self.model(columns, *rest, **more)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the model's
        return getattr(self.model, name)


def simulate_images(workload: Workload, wheel: str) -> list[dict[str, Any]]:
    """Results of the simulator for requests with images."""
    limits = workload["limits"]
    if "whole" in workload:
        memory: MemoryRules = WholeRules(most=limits["max_entries"])
    else:
        memory = MllmRules(
            least=limits["min_prefix_tokens"],
            most=limits["max_entries"],
            pixels=workload["pixels"],
            reads_media=wheel == BEFORE,
            keeps_logits=wheel != BEFORE,
        )
    engine = started(workload, memory)
    fed = Fed(engine.server.serving.model)
    object.__setattr__(engine.server.serving, "model", fed)
    found, first = list[dict[str, Any]](), dict[tuple[int, ...], int]()
    for number, request in enumerate(workload["requests"]):
        fed.tokens = []
        reply, store = answered(engine, request), engine.server.store.cache
        result: dict[str, Any] = {"fed": fed.tokens, "entries": entries_of(engine)}
        if "whole" in workload:  # which entry a request stored first
            for key, _ in result["entries"]:
                first.setdefault(tuple(key), number)
            result["entries"] = [[first[tuple(key)], at] for key, at in result["entries"]]
        else:
            result["reply"] = [int(each) for each in reply.generated]
            result["prepared"] = len(store.prepared) if isinstance(store, MllmPromptCache) else 0
        found.append(result)
    return found


ENGINES: Final = ((VLLM_MLX, draw_images), (BEFORE, draw_images), (VLLM_MLX, draw_whole))
"""Wheels, and the workloads of each compared engine."""


def compare_images(
    seed: int,
    workloads: int,
    first: int = 0,
    *,
    wheel: str,
    drawing: Callable[[int, int], Workload],
) -> Agreement:
    """Fed tokens and entries of each model, and the first request that differs."""
    engine = "scheduler" if drawing is draw_images else "default engine"
    agreement = Agreement(title=f"{wheel}: images on its own {engine}", kinds="model")
    with TemporaryDirectory() as folder, RealScheduler(wheel, folder, MLX_VLM) as real:
        for number in range(first, first + workloads):
            workload = drawing(seed, number)
            played = real.play(workload)
            difference = first_difference(played, simulate_images(workload, wheel))
            step = difference.step if difference else None
            wanted = [len(request["prompt"] + request["reply"]) for request in workload["requests"]]
            agreement.add(
                workload["model"]["family"],
                workload,
                difference,
                requests=len(played) if step is None else step,
                with_images=sum(bool(request["images"]) for request in workload["requests"][:step]),
                hits=sum(len(each["fed"]) < n for each, n in zip(played, wanted, strict=True)),
                entries=sum(len(each["entries"]) for each in played),
            )
    return agreement


def overrides(wheel: str) -> list[Override]:
    """Flags and settings in which some workload differs from `serve MODEL`."""
    drawn = [draw(0, number, wheel) for number in range(2 * len(MODELS))]
    with TemporaryDirectory() as folder, RealScheduler(wheel, folder) as real:
        rows = real.differences(drawn)
    return overrides_of(rows, FLAG_REASONS, PRETENDED | (SHORTENED if wheel == RAPID_MLX else {}))


def overrides_of_images() -> list[Override]:
    """Limits in which some workload differs from the scheduler's defaults, and stand-ins."""
    drawn = [draw_images(0, number) for number in range(2 * len(MODELS))]
    with TemporaryDirectory() as folder, RealScheduler(VLLM_MLX, folder, MLX_VLM) as real:
        return overrides_of(real.differences(drawn), LIMIT_REASONS, PRETENDED_OF_IMAGES)
