"""Inside mlx-lm's environment: workloads with images on vllm-mlx's scheduler for such models.

One line of JSON in, one line out: a model and requests go in; which tokens each one fed, and what
the caches then hold, come out. The folders of the unpacked wheels, vllm-mlx's and mlx-vlm's, are
the program's last arguments. An image is a file with the tokens that stand for it.
"""

import base64
import importlib
import json
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from cachesim.lab.real.empty_modules import EmptyModules
from cachesim.lab.real.mlx_lm import vllm_mlx_serve
from cachesim.lab.real.mlx_lm.server_models import Folders
from cachesim.lab.real.mlx_lm.vllm_mlx_worker import offsets, script
from cachesim.lab.real.worker_side import own_output

Json: TypeAlias = Any
Real: TypeAlias = Any  # modules, classes and objects of the release: known only when it runs

PLACEHOLDER: Final = 1 << 20
"""The id in place of each token of any image: as in users' models, after those of all words."""

IMAGE: Final = "image"
"""The word of an image's place in a prompt."""

ABSENT: Final = ("requests", "PIL", *vllm_mlx_serve.ABSENT)
"""Requirements that load and draw images, which are files of tokens here."""


def main() -> None:
    """Play workloads until the input ends."""
    answers = own_output()
    sys.path += sys.argv[-2:]
    sys.meta_path.append(EmptyModules(lambda name: name.partition(".")[0] in ABSENT))
    logging.disable(logging.CRITICAL)
    utilities: Real = importlib.import_module("mlx_vlm.utils")
    utilities.prepare_inputs = prepared
    with tempfile.TemporaryDirectory() as place:
        folders = Folders(Path(place))
        for line in sys.stdin:
            answers.write(json.dumps(play(json.loads(line), folders)) + "\n")


class Language:
    """A model of mlx-lm that notes what it is fed."""

    def __init__(self, model: Real) -> None:
        self.model = model
        self.fed: list[int] = []

    def __call__(self, inputs: Real, cache: Real = None, **_: Real) -> Real:
        self.fed += inputs.reshape(-1).tolist()
        return self.model(inputs, cache=cache)

    def __getattr__(self, name: str) -> Real:
        return getattr(self.model, name)


class Seeing:
    """A model that reads images: the embeddings of one are those of its tokens."""

    def __init__(self, language: Language) -> None:
        self.language_model = language
        config = {"image_token_index": PLACEHOLDER, "model_type": "toy"}
        self.config = type("Config", (), config)()

    def __call__(
        self, inputs: Real, cache: Real = None, pixel_values: Real = None, **_: Real
    ) -> Real:
        mx: Real = importlib.import_module("mlx.core")
        pixels = iter([] if pixel_values is None else pixel_values.tolist())
        row = [
            next(pixels) if each == PLACEHOLDER else each for each in inputs.reshape(-1).tolist()
        ]
        return self.language_model(mx.array([row]), cache=cache)


class Blankless:
    """A tokenizer of words whose template writes no blanks between them, as those of users."""

    def __init__(self, tokenizer: Real) -> None:
        self.tokenizer = tokenizer

    def apply_chat_template(self, *given: Real, **named: Real) -> str:
        text: str = self.tokenizer.apply_chat_template(*given, **named)
        return text.replace(" ", "")

    def encode(self, text: str) -> Real:
        return self.tokenizer.encode(text.replace("\n", " \n"))

    def __getattr__(self, name: str) -> Real:
        return getattr(self.tokenizer, name)


class Processor:
    """A processor of text and images: a tokenizer, as `prepared` is called instead."""

    def __init__(self, tokenizer: Real) -> None:
        self.tokenizer = Blankless(tokenizer)


def prepared(_processor: Real, images: Real = None, prompts: str = "", **_: Real) -> Json:
    """Ids with placeholders, and the tokens of the images. Stands for `prepare_inputs`."""
    mx: Real = importlib.import_module("mlx.core")
    ids, pixels, files = list[int](), list[int](), iter(images or ())
    for word in prompts.split():
        if word == IMAGE:
            tokens = json.loads(Path(next(files)).read_text())[1]
            pixels += tokens
            ids += [PLACEHOLDER] * len(tokens)
        else:
            ids.append(int(word))
    return {"input_ids": mx.array([ids]), "pixel_values": mx.array(pixels) if pixels else None}


def play(workload: Json, folders: Folders) -> list[Json]:
    """Serve the requests of a workload, one after the other."""
    scheduler, language, default = started(workload, folders)
    if workload["requests"] is None:
        return [default, limits(scheduler)]
    return [
        served(scheduler, language, str(number), each)
        for number, each in enumerate(workload["requests"])
    ]


def started(workload: Json, folders: Folders) -> tuple[Real, Language, Json]:
    """A workload's scheduler, its model of mlx-lm, and the limits by default."""
    folder = folders.of(workload["model"], workload["template"], workload["vocabulary"])
    model, tokenizer = importlib.import_module("mlx_lm").load(str(folder))
    language = Language(model)
    module: Real = importlib.import_module("vllm_mlx.mllm_scheduler")
    scheduler = module.MLLMScheduler(Seeing(language), Processor(tokenizer))
    scheduler._ensure_batch_generator()
    default, stored = limits(scheduler), scheduler.batch_generator.prefix_cache
    stored._config = replace(stored._config, **workload["limits"])
    scheduler.batch_generator.vision_cache.max_pixel_entries = workload["pixels"]
    return scheduler, language, default


def limits(scheduler: Real) -> Json:
    """Limits of the caches, as text."""
    generator = scheduler.batch_generator
    found = vars(generator.prefix_cache._config)
    found |= {"max_pixel_entries": generator.vision_cache.max_pixel_entries}
    return {name: str(value) for name, value in found.items()}


def served(scheduler: Real, language: Language, name: str, wanted: Json) -> Json:
    """What a request fed, and the keys and lengths that are stored after it."""
    images = wanted.get("images", [])
    tokens = [(of, wanted["prompt"][at : at + count]) for of, at, count in images]
    language.fed, given = [], list[int]()
    scheduler.add_request(
        " ".join(words(wanted["prompt"], images)),
        images=[as_url(each) for each in tokens],
        max_tokens=len(wanted["reply"]),
        temperature=0.0,
        request_id=name,
        logits_processors=[script(wanted)],
    )
    while scheduler.has_requests():
        for output in scheduler.step().outputs:
            given += output.new_token_ids
    generator = scheduler.batch_generator
    entries = generator.prefix_cache._entries
    return {
        "fed": language.fed,
        "reply": [int(token) for token in given],
        "prepared": len(generator.vision_cache._pixel_cache),
        "entries": [[list(key), offsets(entry.cache)] for key, entry in entries.items()],
    }


def words(prompt: Sequence[int], images: Json) -> Iterator[str]:
    """The ids of a prompt, and a word for each image."""
    at = 0
    for _, start, count in images:
        yield from map(str, prompt[at:start])
        yield IMAGE
        at = start + count
    yield from map(str, prompt[at:])


def as_url(content: Json) -> str:
    """An image as a client sends it."""
    return "data:image/png;base64," + base64.b64encode(json.dumps(content).encode()).decode()


if __name__ == "__main__":
    main()
