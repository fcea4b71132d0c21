"""Images in keys: another image ends a match, the same one at the same place does not."""

import json
import re
import subprocess
from typing import Any, Final

import numpy as np
import pytest

from cachesim.engines.images import Image
from cachesim.engines.llamacpp.vocabulary.events import BatchDecoded
from cachesim.engines.mlx_lm.server.request import keyed as lookup_key
from cachesim.engines.mlx_lm.vocabulary import Insertion, RequestAdmitted
from cachesim.engines.sglang.request import FIRST_PAD, Req
from cachesim.engines.vllm.request import IMAGE, Prefixes, keyed
from cachesim.engines.vllm_mlx.vocabulary import PreparedAlready
from cachesim.errors import ScenarioError
from cachesim.play.runner import run_scenario
from cachesim.prove.mlx_lm.process import environment_for
from cachesim.units import Count, Pos, as_tokens

PATCH: Final = 999


def image(name: str, start: int, count: int) -> Image:
    return Image(name, Pos(start), Count(count))


def prompts(engine: str, *given: str) -> dict[str, Any]:
    return {
        "format": 1,
        "name": "images",
        "images": ["photo", "other"],
        "model": {"preset": "dense"},
        "engine": {"name": engine.partition("@")[0], "profiles": [engine.partition("@")[2]]},
        "spans": {"S": 32, "photo": 32, "other": 32, "q": 16},
        "step": [{"prompt": each, "predict": 1} for each in given],
    }


ENGINES = ("vllm@0.33.0", "sglang@0.5.23", "llama.cpp@b11549", "mlx-lm@0.32.2")


@pytest.mark.parametrize("engine", ENGINES)
def test_an_image_is_reused_where_it_is_the_same(engine: str) -> None:
    run = run_scenario(prompts(engine, "S photo q", "S photo q S", "S other q", "S photo photo S"))

    assert [0, 80, 32, 64] == [step.cached for step in run.steps]
    assert {"same"} == {step.answer for step in run.steps}


def test_llama_server_decodes_each_image_apart_from_the_text() -> None:
    run = run_scenario(prompts("llama.cpp@b11549", "S photo other q"))
    decoded = [event.n_tokens for event in run.steps[0].events if isinstance(event, BatchDecoded)]

    assert [32, 32, 32, 16] == decoded


def test_mlx_lm_compares_the_states_of_images_with_their_tokens() -> None:
    run = run_scenario(prompts("mlx-lm@0.32.2", "S photo q", "S photo q S", "S other q"))
    events = [event for step in run.steps for event in step.events]

    assert [None, True, True] == [e.sound for e in events if isinstance(e, RequestAdmitted)]
    assert [True] * 3 == [e.state_is_key for e in events if isinstance(e, Insertion)]


@pytest.mark.parametrize(
    ("release", "cached", "error"),
    [
        ("b9713", [0, None, None], "aborted"),
        ("b9873", [0, None, 96], "server_error"),
        ("b11549", [0, 64, 64], None),
    ],
)
def test_a_cut_between_two_images_fails_in_older_llama_servers(
    release: str, cached: list[int | None], error: str | None
) -> None:
    given = ("S photo other q", "S photo S", "S photo other S")
    run = run_scenario(prompts(f"llama.cpp@{release}", *given))

    assert cached == [step.cached for step in run.steps]
    assert error == run.steps[1].error


def test_a_block_has_the_hash_and_the_offset_of_each_of_its_images() -> None:
    images = (image("a", 2, 5), image("b", 9, 3))

    assert (1, 2, IMAGE, IMAGE, ("a", 2)) == keyed((1, 2, 3, 4), images, 0)
    assert (IMAGE, IMAGE, IMAGE, 8, ("a", -2)) == keyed((5, 6, 7, 8), images, 4)
    assert (9, IMAGE, IMAGE, IMAGE, ("b", 1)) == keyed((9, 1, 1, 1), images, 8)


def test_tokens_after_a_block_are_keyed_too() -> None:
    ids: dict[str, list[int]] = {"a": [], "b": []}
    prefixes = Prefixes(4, lookahead=1)
    for name, found in ids.items():
        prefixes.extend(found, as_tokens(range(6)), images=(image(name, 4, 2),))

    assert [0] == ids["a"]
    assert [1] == ids["b"]


def test_the_ids_of_an_image_come_from_it_alone_or_from_all_of_a_request() -> None:
    prompt = np.arange(20)
    one, two = (image("a", 2, 5),), (image("a", 2, 5), image("b", 9, 3))

    def ids(images: tuple[Image, ...], *, apart: bool) -> list[int]:
        req = Req.make(0, prompt, 1, images=images, pads_apart=apart)
        assert prompt.tolist() == req.read(0, 20).tolist()
        return req.tokens[:20].tolist()

    assert ids(one, apart=True)[2:7] == ids(two, apart=True)[2:7]
    assert ids(one, apart=False)[2:7] != ids(two, apart=False)[2:7]
    assert {FIRST_PAD} == {min(each, FIRST_PAD) for each in ids(two, apart=True)[9:12]}
    assert prompt[12:].tolist() == ids(two, apart=True)[12:]


VISION: Final = """
import json, sys
from mlx_lm.server import _make_vision
given = json.load(sys.stdin)
print(json.dumps(_make_vision(**given, pixel_values=[]).cache_key))
"""


@pytest.mark.wheel
def test_the_ids_of_images_are_those_of_mlx_lm() -> None:
    python = environment_for("0.32.2").ready()
    images = (image("data:,a", 2, 5), image("data:,b", 9, 3))
    prompt = [PATCH if any(e.start <= at < e.end for e in images) else at for at in range(20)]
    given = {"prompt": prompt, "urls": [each.name for each in images], "token_id": PATCH}
    command = [str(python), "-c", VISION]
    found = subprocess.run(
        command, check=True, input=json.dumps(given), capture_output=True, text=True
    )

    assert list(lookup_key(as_tokens(prompt), images)) == json.loads(found.stdout)


@pytest.mark.parametrize(
    ("engine", "changed", "words"),
    [
        ("marconi@paper", {}, "have no place here: marconi takes text alone"),
        ("vllm@0.33.0", {"images": ["photo", "nothing"]}, "'nothing' is no drawn span"),
        ("vllm@0.33.0", {"step": [{"prompt": "photo[:5]"}]}, "'photo[:5]' is an image"),
        ("llama.cpp@b11549", {"step": [{"prompt": "S photo"}]}, "ends with an image"),
        (
            "llama.cpp@b11549",
            {"step": [{"prompt": "photo S", "completions": 2}]},
            "no place beside",
        ),
        ("vllm@0.33.0", {"step": [{"prompt": "S", "reply": "photo"}]}, "'photo' is an image"),
    ],
)
def test_what_cannot_be_an_image_is_refused(
    engine: str, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(ScenarioError, match=re.escape(words)):
        run_scenario(prompts(engine, "S photo q") | changed)


@pytest.mark.parametrize(
    ("patch", "refusal"),
    [
        ("+vllm-mlx", r"name the patch \+mllm"),
        ("+rapid-mlx", "without a prefix cache"),
        ("+omlx", "images in this server are not simulated"),
        ("", "this release reads no images"),
    ],
)
def test_images_are_refused_where_they_are_not_simulated(patch: str, refusal: str) -> None:
    with pytest.raises(ScenarioError, match=refusal):
        run_scenario(prompts(f"mlx-lm@0.31.3{patch}", "S photo q"))


def test_a_prompt_to_vllm_mlx_ends_with_text() -> None:
    with pytest.raises(ScenarioError, match="no chat ends with an image"):
        run_scenario(prompts("mlx-lm@0.31.3+vllm-mlx-mllm", "S q photo"))


def test_vllm_mlx_says_whose_prepared_images_are_used() -> None:
    run = run_scenario(
        prompts("mlx-lm@0.31.3+vllm-mlx-mllm", "S photo other q", "S other photo q", "S photo q")
    )
    events = [event for step in run.steps for event in step.events]
    [used] = [event for event in events if isinstance(event, PreparedAlready)]

    assert (("photo", "other"), ("other", "photo")) == (used.images, used.asked)
    assert ["same", "diverged", "same"] == [step.answer for step in run.steps]
    assert used.sentence.endswith("; this prompt has them as other, photo")
