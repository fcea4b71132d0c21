"""Prompts with images on the real llama-server, with a toy projector: the same counts as here."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

import pytest

from cachesim.model.presets import preset
from cachesim.play.runner import run_scenario
from cachesim.prove.llama_cpp.flags import parameters
from cachesim.prove.llama_cpp.gguf import write_model
from cachesim.prove.llama_cpp.server import QUIET, Worker, as_release, environment_for
from conformance.tests.real.image_projector import TOKENS, picture, write_projector

TEXTS: Final = {
    "S": "system:" + "answer-in-one-word." * 4,
    "T": "tools:" + "look-at-it;read-it;" * 20,
    "q": "what-is-it?",
    "r": "how-many-are-there?",
    "s": "why-so?",
}
PICTURES: Final = {"a": 1, "b": 2}
OPTIONS: Final = {"ctx_size": 4096, "parallel": 1}


Outcome: TypeAlias = int | str | None
"""A request's cached tokens, or its error; the last one is that of a server that ended."""

ENDED: Final = "ended"

NO_CHUNK: Final = "got exception: Chunk not found"
PARTS: Final = {"b8672": ENDED, "b9713": ENDED, "b9873": NO_CHUNK, "b10809": NO_CHUNK, "b11549": 94}
"""The outcome of a cut between two pictures that adjoin."""


def drawn(seed: int) -> Iterator[list[str]]:
    """Chats with pictures, some beside each other: they grow, branch, and start anew."""
    rng = Random(seed)
    chat = ["S"]
    for _ in range(14):
        match rng.randrange(4):
            case 0:
                chat = [rng.choice("ST")]
            case 1 if len(chat) > 2:
                chat = chat[: rng.randrange(1, len(chat))]
        chat = [*chat, *rng.choices("ab", k=rng.randint(0, 2)), rng.choice("qrs")]
        yield chat


def simulated(release: str, model: str, prompts: Sequence[list[str]]) -> list[Outcome]:
    run = run_scenario(
        {
            "format": 1,
            "name": "pictures",
            "images": list(PICTURES),
            "model": {"preset": model},
            "engine": {"name": "llama.cpp", "profiles": [release], "options": OPTIONS},
            "spans": TEXTS | dict.fromkeys(PICTURES, TOKENS),
            "step": [{"prompt": " ".join(prompt), "predict": 1} for prompt in prompts],
        },
        arithmetic="counts",
    )
    ended = [number for number, step in enumerate(run.steps) if step.error == "aborted"]
    served = run.steps[: ended[0]] if ended else run.steps
    return [step.cached if step.error is None else step.message for step in served] + (
        [ENDED] if ended else []
    )


def called(worker: Worker, path: str, body: Any = None) -> Any:
    method = "POST" if body else "GET"
    call = {"path": path, "method": method, "body": body}
    answer = worker.order({"address": worker.address, "calls": [[0.0, call]]})
    return answer[0]["body"] if isinstance(answer, list) else ENDED


def real(worker: Worker, prompts: Sequence[list[str]]) -> list[Outcome]:
    marker = called(worker, "/props").get("media_marker", "<__media__>")
    found: list[Outcome] = []
    for names in prompts:
        words = "".join(marker if name in PICTURES else TEXTS[name] for name in names)
        pictures = [picture(PICTURES[name]) for name in names if name in PICTURES]
        prompt: Any = {"prompt_string": words, "multimodal_data": pictures}
        answer = called(worker, "/completion", {"prompt": prompt, "n_predict": 1, "temperature": 0})
        if answer == ENDED:
            return [*found, ENDED]
        failed = answer.get("error")
        found.append(failed["message"] if failed else answer["timings"]["cache_n"])
    return found


@pytest.mark.wheel
@pytest.mark.parametrize("model", ["dense", "swa", "hybrid"])
@pytest.mark.parametrize("release", PARTS)
def test_as_many_tokens_are_cached_as_on_the_real_server(
    release: str, model: str, tmp_path: Path
) -> None:
    python = environment_for(as_release(release)).ready()
    spec = preset(model)
    write_model(spec, tmp_path / "model.gguf")
    write_projector(tmp_path / "projector.gguf", spec.width)
    values = parameters(OPTIONS) | {
        "model.path": str(tmp_path / "model.gguf"),
        "mmproj.path": str(tmp_path / "projector.gguf"),
        "verbosity": QUIET,
    }
    parted = [["S", "a", "b", "q"], ["S", "a", "r"]]
    for prompts in [parted, *(list(drawn(seed)) for seed in range(4))]:
        worker = Worker(python, None, 60.0)
        try:
            worker.start(values)
            assert simulated(release, model, prompts) == real(worker, prompts), prompts
        finally:
            worker.end()
    if model == "dense":
        assert PARTS[release] == simulated(release, model, parted)[-1]
