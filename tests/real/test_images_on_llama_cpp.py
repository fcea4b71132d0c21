"""Prompts with images on the real llama-server, with a toy projector: the same counts as here."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from cachesim.lab.real.environment import EnvironmentUnavailableError
from cachesim.lab.real.llama_cpp.flags import parameters
from cachesim.lab.real.llama_cpp.gguf import write_model
from cachesim.lab.real.llama_cpp.server import QUIET, Worker, as_release, environment_for
from cachesim.model.presets import preset
from cachesim.play.runner import run_scenario
from tests.real.image_projector import TOKENS, picture, write_projector

TEXTS: Final = {
    "S": "system:" + "answer-in-one-word." * 4,
    "T": "tools:" + "look-at-it;read-it;" * 20,
    "q": "what-is-it?",
    "r": "how-many-are-there?",
    "s": "why-so?",
}
PICTURES: Final = {"a": 1, "b": 2}
OPTIONS: Final = {"ctx_size": 4096, "parallel": 1}


ADJOINING: Final = "b11549"
"""The release in which a cut between two pictures that adjoin is served."""


def drawn(seed: int, *, adjoining: bool) -> Iterator[list[str]]:
    """Chats with pictures: they grow, branch, and start anew; text comes last."""
    rng = Random(seed)
    chat = ["S"]
    for _ in range(14):
        match rng.randrange(4):
            case 0:
                chat = [rng.choice("ST")]
            case 1 if len(chat) > 2:
                chat = chat[: rng.randrange(1, len(chat))]
        chat = [*chat, *rng.choices("ab", k=rng.randint(0, 2)), rng.choice("qrs")]
        if not adjoining:
            pairs = zip(chat, [*chat[1:], ""], strict=True)
            chat = [
                each
                for one, other in pairs
                for each in ((one, "s") if {one, other} <= PICTURES.keys() else (one,))
            ]
        yield chat


def simulated(release: str, model: str, prompts: Sequence[list[str]]) -> list[int | None]:
    run = run_scenario(
        {
            "format": 1,
            "name": "pictures",
            "images": list(PICTURES),
            "model": {"preset": model},
            "engine": {"name": "llama.cpp", "profiles": [release], "options": OPTIONS},
            "spans": TEXTS | dict.fromkeys(PICTURES, TOKENS),
            "step": [{"prompt": " ".join(each), "predict": 1} for each in prompts],
        },
        arithmetic="counts",
    )
    return [step.cached for step in run.steps]


def called(worker: Worker, path: str, body: Any = None) -> Any:
    method = "POST" if body else "GET"
    answer = worker.order({"calls": [[0.0, {"path": path, "method": method, "body": body}]]})
    assert isinstance(answer, list), answer
    return answer[0]["body"]


def real(worker: Worker, prompts: Sequence[list[str]]) -> list[int]:
    marker = called(worker, "/props").get("media_marker", "<__media__>")
    found = []
    for names in prompts:
        words = "".join(marker if each in PICTURES else TEXTS[each] for each in names)
        pictures = [picture(PICTURES[each]) for each in names if each in PICTURES]
        prompt: Any = {"prompt_string": words, "multimodal_data": pictures}
        answer = called(worker, "/completion", {"prompt": prompt, "n_predict": 1, "temperature": 0})
        found.append(answer["timings"]["cache_n"])
    return found


@pytest.mark.wheel
@pytest.mark.parametrize("model", ["dense", "swa", "hybrid"])
@pytest.mark.parametrize("release", ["b9538", "b10809", ADJOINING])
def test_as_many_tokens_are_cached_as_on_the_real_server(
    release: str, model: str, tmp_path: Path
) -> None:
    try:
        python = environment_for(as_release(release)).ready()
    except EnvironmentUnavailableError as error:
        pytest.skip(str(error))
    spec = preset(model)
    write_model(spec, tmp_path / "model.gguf")
    write_projector(tmp_path / "projector.gguf", spec.width)
    values = parameters(OPTIONS) | {
        "model.path": str(tmp_path / "model.gguf"),
        "mmproj.path": str(tmp_path / "projector.gguf"),
        "verbosity": QUIET,
    }
    worker = Worker(python, None, 60.0)
    try:
        for seed in range(3):
            prompts = list(drawn(seed, adjoining=release == ADJOINING))
            worker.start(values)
            assert simulated(release, model, prompts) == real(worker, prompts), prompts
    finally:
        worker.end()
