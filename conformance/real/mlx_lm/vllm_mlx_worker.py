"""Inside mlx-lm's environment: workloads on a scheduler and prefix cache of vllm-mlx's kin.

One line of JSON in, one line out: a model and requests go in, the cached tokens of each and the
cache's content come out. The folder of the unpacked wheel is the program's argument. The replies
are forced by logits processors; the limits of the cache are a workload's, all other settings those
of the wheel's own `serve`. The statements on which they depend are those of its `serve_command`;
the others, which download a model and open a port, are left out.
"""

import argparse
import ast
import base64
import importlib
import inspect
import json
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import MagicMock

from cachesim.prove.mlx_lm.server_models import Folders
from cachesim.prove.mlx_lm.server_worker import namespace
from cachesim.prove.worker_side import EmptyModules, Json, Real, answer_each, own_output

CONFIG = "SchedulerConfig"

ABSENT = ("jsonschema", "websockets")
"""Requirements of Rapid-MLX for calls of tools and for `rapid-mlx share`, which do not run here."""


def arguments_of(folder: str, workload: Json) -> list[str]:
    """The command line of a workload, after `vllm-mlx` or `rapid-mlx`."""
    if "serve" not in workload:
        return ["serve", folder, "--continuous-batching"]
    entries = workload["serve"]["entries"]
    more = [] if entries is None else ["--hybrid-cache-entries", str(entries)]
    return ["serve", folder, *more]


def config_of(arguments: Sequence[str], alias: str | None = None) -> tuple[Json, Real]:
    """The parsed flags, and the settings of the scheduler that `serve_command` starts with them.

    `alias`: a model that Rapid-MLX lists, by which it knows a cache that cannot be cut.
    """
    line: Real = importlib.import_module("vllm_mlx.cli")
    sys.argv = [line.__name__, *arguments]  # read for flags that a user typed
    for package in ABSENT:
        sys.modules.setdefault(package, MagicMock())
    parsed = vars(namespace(line, list(arguments)))
    named = argparse.Namespace(**parsed, _original_alias=alias)
    function: Any = ast.parse(inspect.getsource(line.serve_command)).body[0]
    call = next(
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and _name(node.func) == CONFIG
    )
    needed, kept = _names(call, ast.Load), list[ast.stmt]()
    for statement in reversed(_before(function.body, call)):
        if _names(statement, ast.Store) & needed:
            kept.insert(0, statement)
            needed |= _names(statement, ast.Load)
    function.body = [*kept, ast.Return(call)]
    made = ast.fix_missing_locations(ast.Module([function], []))
    names = dict(vars(line))
    exec(compile(made, str(line.__file__), "exec"), names)  # noqa: S102 - the wheel's own source
    return parsed, names[function.name](named)


def _before(block: Sequence[ast.stmt], call: ast.Call) -> list[ast.stmt]:
    at = next(n for n, each in enumerate(block) if any(part is call for part in ast.walk(each)))
    blocks = (getattr(block[at], field, None) or [] for field in ("body", "orelse"))
    inner = next(
        (each for each in blocks if any(part is call for one in each for part in ast.walk(one))),
        None,
    )
    return [*block[:at], *([] if inner is None else _before(inner, call))]


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Names and flags that a statement reads or binds; imports bind, too."""
    found = {
        _name(each)
        for each in ast.walk(node)
        if isinstance(each, (ast.Name, ast.Attribute)) and isinstance(each.ctx, context)
    }
    if context is ast.Store:
        imports = (ast.Import, ast.ImportFrom)
        taken = (each for each in ast.walk(node) if isinstance(each, imports))
        found |= {one.asname or one.name for each in taken for one in each.names}
    return found - {""}


def _name(node: ast.AST) -> str:
    """A name, or a flag as `args.flag`."""
    if isinstance(node, ast.Attribute):
        return f"args.{node.attr}" if _name(node.value) == "args" else ""
    return node.id if isinstance(node, ast.Name) else ""


def main() -> None:
    """Run workloads until the input ends; with mlx-vlm's wheel those with images."""
    answers, wheels = own_output(), sys.argv[1:]
    sys.path += wheels
    logging.disable(logging.CRITICAL)
    if len(wheels) > 1:
        stand_in_for_images()
    with tempfile.TemporaryDirectory() as place:
        answer_each(answers, partial(answer, folders=Folders(Path(place))))


def answer(wanted: Json, folders: Folders) -> Json:
    """Results of a workload's requests, or its settings beside the wheel's own."""
    asks, workload = "settings" in wanted, wanted.get("settings", wanted)
    requests = workload["requests"]
    if "whole" in workload:
        whole = Whole(workload, folders)
        return [whole.served(request) for request in requests]
    if "pixels" in workload:
        mllm = Mllm(workload, folders)
        if asks:
            return [mllm.default, mllm.limits()]
        return [mllm.served(str(number), request) for number, request in enumerate(requests)]
    return settings(workload, folders) if asks else play(workload, folders)


def play(workload: Json, folders: Folders) -> list[Json]:
    """Serve the requests of a workload, one after the other."""
    scheduler, tokenizer = started(workload, folders)
    chats = renderer(tokenizer, scheduler.config) if "serve" in workload else None
    return [
        served(scheduler, str(number), request if chats is None else rendered(chats, request))
        for number, request in enumerate(workload["requests"])
    ]


def started(workload: Json, folders: Folders) -> tuple[Real, Real]:
    """A workload's scheduler, and its tokenizer."""
    folder, model, tokenizer = loaded(workload, folders)
    alias = workload.get("serve", {}).get("model")
    _, config = config_of(arguments_of(folder, workload), alias)
    module: Real = importlib.import_module("vllm_mlx.scheduler")
    scheduler = module.Scheduler(model, tokenizer, config)
    stored = scheduler.memory_aware_cache
    stored._config = replace(stored._config, **workload["limits"])
    if "refresh" in workload:
        scheduler.SNAPSHOT_REFRESH_TOKENS = workload["refresh"]
    return scheduler, tokenizer


def settings(workload: Json, folders: Folders) -> list[Json]:
    """Flags and settings of `serve MODEL`, and of a workload."""
    folder, model, tokenizer = loaded(workload, folders)
    module: Real = importlib.import_module("vllm_mlx.scheduler")
    bare, config = config_of(["serve", folder])
    own, _ = config_of(arguments_of(folder, workload))
    default = module.Scheduler(model, tokenizer, config)
    return [
        described(flags, scheduler)
        for flags, scheduler in ((bare, default), (own, started(workload, folders)[0]))
    ]


def described(flags: Json, scheduler: Real) -> Json:
    """Flags, the scheduler's settings and those of its cache, as text."""
    found = {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
    for held in (scheduler.config, scheduler.memory_aware_cache._config):
        found |= vars(held)
    found["SNAPSHOT_REFRESH_TOKENS"] = getattr(scheduler, "SNAPSHOT_REFRESH_TOKENS", None)
    return {name: str(value) for name, value in found.items()}


def renderer(tokenizer: Real, config: Real) -> Real:
    """Renderer of Rapid-MLX's chats, which also finds the prefix of their next turns."""
    engine: Real = importlib.import_module("vllm_mlx.engine.batched").BatchedEngine
    made = engine.__new__(engine)
    made._tokenizer, made._scheduler_config = tokenizer, config
    made._is_mllm, made._processor, made._model_name = False, None, "toy"
    return made


def rendered(chats: Real, wanted: Json) -> Json:
    """A request with its prompt, and the next turn's divergence from it."""
    if "messages" not in wanted:
        return wanted
    messages = wanted["messages"]
    prompt = chats.tokenizer.encode(chats._apply_chat_template(messages))
    ends = chats._needs_prefix_boundary_snapshot()
    return wanted | {
        "prompt": prompt,
        "prefix_boundary": chats._compute_prefix_boundary(messages) if ends else 0,
    }


def served(scheduler: Real, name: str, wanted: Json) -> Json:
    """Cached tokens of a request, and the keys and lengths that are stored after it."""
    asked: Real = importlib.import_module("vllm_mlx.request")
    forced, more = script(wanted), {}
    if "logits_processors" in asked.SamplingParams.__dataclass_fields__:
        more = {"logits_processors": [forced]}
    sampling = asked.SamplingParams(max_tokens=len(wanted["reply"]), temperature=0.0, **more)
    request = asked.Request(request_id=name, prompt=wanted["prompt"], sampling_params=sampling)
    request.suppressed_tokens_logits_processor = forced  # Rapid-MLX's place for one
    request.prefix_boundary = wanted.get("prefix_boundary", 0)
    scheduler.add_request(request)
    kind, found, before = request.cache_hit_type, request.cached_tokens, scheduler.batch_generator
    fed = 0 if before is None else -before._prompt_tokens_counter
    given = given_by(scheduler)
    after = scheduler.batch_generator
    fed = after._prompt_tokens_counter + (fed if after is before else 0)
    return {
        "kind": kind,
        "prompt": list(wanted["prompt"]),
        "found": found,
        "cached": len(wanted["prompt"]) - 1 - fed,  # the last one begins the reply
        "reply": given,
        "entries": stored_in(scheduler.memory_aware_cache),
    }


def loaded(workload: Json, folders: Folders) -> tuple[str, Real, Real]:
    """A workload's folder, model and tokenizer, by mlx-lm's own loader."""
    folder = str(folders.of(workload["model"], workload["template"], workload["vocabulary"]))
    return folder, *importlib.import_module("mlx_lm").load(folder)


def given_by(scheduler: Real) -> list[int]:
    """Run a scheduler until its requests are done; return their tokens."""
    given: list[int] = []
    while scheduler.has_requests():
        for output in scheduler.step().outputs:
            given += output.new_token_ids
    return [int(token) for token in given]


def stored_in(cache: Real) -> list[Json]:
    """The keys of a cache, each with the lengths of its layers."""
    return [[list(key), offsets(entry.cache)] for key, entry in cache._entries.items()]


def script(wanted: Json) -> Real:
    """A logits processor that leaves one token of the reply after the other."""
    mx: Real = importlib.import_module("mlx.core")
    turn = iter(wanted["reply"])

    def processor(_: Real, logits: Real) -> Real:
        token = next(turn, 0)
        return mx.where(mx.arange(logits.shape[-1]) == token, logits, -mx.inf)

    return processor


def offsets(cache: Real) -> list[int]:
    """Tokens that each layer of a stored cache has; -1 for a state."""
    return [int(getattr(layer, "offset", -1)) for layer in cache]


# -- requests with images --------------------------------------------------------------------------

PLACEHOLDER: Final = 1 << 20
"""The id in place of each token of any image: as in users' models, after those of all words."""

IMAGE: Final = "image"
"""The word of an image's place in a prompt."""

LOADERS: Final = ("requests", "PIL")
"""Requirements that load and draw images, which are files of tokens here."""


def stand_in_for_images() -> None:
    """Make `import mlx_vlm` work without its requirements; images are read as tokens."""
    absent = (*LOADERS, *ABSENT)
    sys.meta_path.append(EmptyModules(lambda name: name.partition(".")[0] in absent))
    for name in ("mlx_vlm.utils", "mlx_vlm.generate.dispatch"):
        module: Real = importlib.import_module(name)
        module.prepare_inputs = prepared


class Language:
    """A model of mlx-lm that records its input."""

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
    """A recording model for mlx-vlm, which reads the logits of an output."""

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


class Mllm:
    """A workload's scheduler for models that read images."""

    def __init__(self, workload: Json, folders: Folders) -> None:
        _, model, tokenizer = loaded(workload, folders)
        self.language = Language(model)
        module: Real = importlib.import_module("vllm_mlx.mllm_scheduler")
        processor = SimpleNamespace(tokenizer=Blankless(tokenizer))  # `prepared` is called instead
        self.scheduler = module.MLLMScheduler(Seeing(self.language), processor)
        self.scheduler._ensure_batch_generator()
        self.default, self.generator = self.limits(), self.scheduler.batch_generator
        stored = self.generator.prefix_cache
        stored._config = replace(stored._config, **workload["limits"])
        self.generator.vision_cache.max_pixel_entries = workload["pixels"]

    def limits(self) -> Json:
        """Limits of the caches, as text."""
        generator = self.scheduler.batch_generator
        found = vars(generator.prefix_cache._config)
        found |= {"max_pixel_entries": generator.vision_cache.max_pixel_entries}
        return {name: str(value) for name, value in found.items()}

    def served(self, name: str, wanted: Json) -> Json:
        """Tokens that a request fed, and the keys and lengths that are stored after it."""
        images = wanted.get("images", [])
        tokens = [(of, wanted["prompt"][at : at + count]) for of, at, count in images]
        self.language.fed = []
        self.scheduler.add_request(
            " ".join(words(wanted["prompt"], images)),
            images=[as_url(token) for token in tokens],
            max_tokens=len(wanted["reply"]),
            temperature=0.0,
            request_id=name,
            logits_processors=[script(wanted)],
        )
        given = given_by(self.scheduler)
        return {
            "fed": self.language.fed,
            "reply": given,
            "prepared": len(self.generator.vision_cache._pixel_cache),
            "entries": stored_in(self.generator.prefix_cache),
        }


class Whole:
    """The default engine's model, which answers in one piece or streams."""

    def __init__(self, workload: Json, folders: Folders) -> None:
        _, model, tokenizer = loaded(workload, folders)
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
