"""Inside mlx-lm's environment: workloads with images on vllm-mlx's two engines for such models.

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
from typing import Final

from cachesim.lab.real.mlx_lm import vllm_mlx_worker
from cachesim.lab.real.mlx_lm.server_models import Folders
from cachesim.lab.real.mlx_lm.vllm_mlx_worker import offsets, script
from cachesim.lab.real.worker_side import EmptyModules, Json, Real, own_output

PLACEHOLDER: Final = 1 << 20
"""The id in place of each token of any image: as in users' models, after those of all words."""

IMAGE: Final = "image"
"""The word of an image's place in a prompt."""

ABSENT: Final = ("requests", "PIL", *vllm_mlx_worker.ABSENT)
"""Requirements that load and draw images, which are files of tokens here."""


def main() -> None:
    """Run workloads until the input ends."""
    answers = own_output()
    sys.path += sys.argv[-2:]
    sys.meta_path.append(EmptyModules(lambda name: name.partition(".")[0] in ABSENT))
    logging.disable(logging.CRITICAL)
    for name in ("mlx_vlm.utils", "mlx_vlm.generate.dispatch"):
        module: Real = importlib.import_module(name)
        module.prepare_inputs = prepared
    with tempfile.TemporaryDirectory() as place:
        folders = Folders(Path(place))
        for line in sys.stdin:
            answers.write(json.dumps(play(json.loads(line), folders)) + "\n")


class Language:
    """A model of mlx-lm that notes what it is fed."""

    def __init__(self, model: Real) -> None:
        self.model = model
        self.fed: list[int] = []

    def __call__(
        self, inputs: Real, inputs_embeds: Real = None, cache: Real = None, **_: Real
    ) -> Real:
        ids = inputs if inputs_embeds is None else inputs_embeds[..., 0].astype(inputs.dtype)
        self.fed += ids.reshape(-1).tolist()
        return self.answer(self.model(ids, cache=cache))

    def answer(self, logits: Real) -> Real:
        return logits

    def __getattr__(self, name: str) -> Real:
        return getattr(self.model, name)


class OutputLanguage(Language):
    """The same for mlx-vlm, which asks for the logits of an output."""

    def answer(self, logits: Real) -> Real:
        module: Real = importlib.import_module("mlx_vlm.models.base")
        return module.LanguageModelOutput(logits=logits)


class Seeing:
    """A model that reads images: the embeddings of one are those of its tokens."""

    def __init__(self, language: Language) -> None:
        self.language_model = language
        config = {"image_token_index": PLACEHOLDER, "model_type": "toy"}
        self.config = type("Config", (), config)()

    def __call__(
        self, inputs: Real, cache: Real = None, pixel_values: Real = None, **_: Real
    ) -> Real:
        return self.language_model(self.read(inputs, pixel_values), cache=cache)

    def get_input_embeddings(self, inputs: Real, pixel_values: Real = None, **_: Real) -> Real:
        """For mlx-vlm: the ids of text and images in place of their embeddings."""
        mx: Real = importlib.import_module("mlx.core")
        module: Real = importlib.import_module("mlx_vlm.models.base")
        ids = self.read(inputs, pixel_values).astype(mx.float32)
        return module.InputEmbeddingsFeatures(inputs_embeds=ids[..., None])

    @staticmethod
    def read(inputs: Real, pixel_values: Real) -> Real:
        mx: Real = importlib.import_module("mlx.core")
        pixels = iter([] if pixel_values is None else pixel_values.tolist())
        row = [
            next(pixels) if each == PLACEHOLDER else each for each in inputs.reshape(-1).tolist()
        ]
        return mx.array([row])


class Blankless:
    """A tokenizer of words whose template writes no spaces between them, as those of users."""

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
    if "whole" in workload:
        engine = Whole(workload, folders)
        return [engine.served(each) for each in workload["requests"]]
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
    """Tokens that a request fed, and the keys and lengths that are stored after it."""
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


class Whole:
    """The default engine's model, which answers in one piece or streams."""

    def __init__(self, workload: Json, folders: Folders) -> None:
        folder = folders.of(workload["model"], workload["template"], workload["vocabulary"])
        model, tokenizer = importlib.import_module("mlx_lm").load(str(folder))
        module: Real = importlib.import_module("vllm_mlx.models.mllm")
        text: Real = tokenizer._tokenizer
        text.stopping_criteria = importlib.import_module("mlx_vlm.utils").StoppingCriteria(
            [tokenizer.eos_token_id], text
        )
        text.detokenizer = importlib.import_module(
            "mlx_vlm.tokenizer_utils"
        ).NaiveStreamingDetokenizer(text)
        self.language = OutputLanguage(model)
        self.model = module.MLXMultimodalLM("toy")
        self.model._loaded, self.model.model = True, Seeing(self.language)
        self.model.config = self.model.model.config
        self.model.config.eos_token_id = tokenizer.eos_token_id
        self.model.processor = text
        self.stored = self.model._cache_manager
        self.stored.max_size = workload["limits"]["max_entries"]
        self.first: dict[str, int] = {}
        self.count = 0

    def served(self, wanted: Json) -> Json:
        """Tokens that a request fed, and the entries by the request that stored them first."""
        images = wanted["images"]
        parts = [
            {"type": "image_url", "image_url": {"url": as_url([of, wanted["prompt"][at : at + n]])}}
            for of, at, n in images
        ]
        rendered = " ".join(words(wanted["prompt"], images))
        template: Real = importlib.import_module("mlx_vlm.prompt_utils")
        template.get_chat_template = lambda *_, **__: rendered
        self.language.fed = []
        asked = self.model.stream_chat if wanted["stream"] else self.model.chat
        answer = asked(
            [{"role": "user", "content": parts}],
            max_tokens=len(wanted["reply"]),
            temperature=0.0,
            logits_processors=[script(wanted)],
        )
        if wanted["stream"]:
            list(answer)
        for key in self.stored._cache:
            self.first.setdefault(key, self.count)
        self.count += 1
        return {
            "fed": self.language.fed,
            "entries": [
                [self.first[key], offsets(entry.kv_cache)]
                for key, entry in self.stored._cache.items()
            ],
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
