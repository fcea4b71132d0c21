"""Queries of upstream's generation tests to `mlx_lm`, on a toy model.

`conformance.upstream_mlx_lm` runs them. The generators, the caches and the single path are the
port's; a toy with its tokenizer takes the place of the model that those tests load from a hub.
"""

import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from cachesim.engines.base import Ticket
from cachesim.engines.chat import ByteTokenizer, Message
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache, QuantizedKVCache, RotatingKVCache
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.generate.batch_generator import BatchGenerator, OldBatchGenerator
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import PromptCache, Sampler, Stopper, extend_cache
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import MlxRules, StoreRules
from cachesim.engines.mlx_lm.server.single import stream
from cachesim.engines.mlx_lm.store.lru_prompt_cache import LRUPromptCache
from cachesim.model.build import build
from cachesim.model.presets import tiny
from cachesim.model.spec import ModelSpec
from cachesim.units import Array, as_tokens

HEAD_SIZE: Final = 32
"""Keys and values as wide as the smallest group of a quantised cache."""

WORDS: Final = 1024
"""More than the random tokens of the tests that build a model of their own."""


class ToyModel:
    """A model as the tests call it; they may give it another `make_cache`, and take that away."""

    def __init__(self, spec: ModelSpec, rules: MlxRules) -> None:
        layers = rules.of_class(family_of(spec))
        self.rules = rules
        self.forward = Forward(build(spec), rules.caches, recurrent=layers)
        self.network = self.forward.network
        self.layers = spec.layers

    def set_dtype(self, _kind: object) -> None:
        """The toy computes in float64."""

    def __call__(self, inputs: Any, cache: PromptCache) -> Array:
        """Feed columns."""
        return self.forward(np.asarray(inputs), cache)

    def caches(self, max_kv_size: int | None = None) -> PromptCache:
        """Follows `make_prompt_cache`; a size is ignored where the model makes its own caches."""
        own = self.__dict__.get("make_cache")
        if own is not None:
            return list(own())
        made = self.forward.make_cache()
        if max_kv_size is None:
            return made
        rings = (RotatingKVCache(self.rules.caches, max_kv_size, keep=4) for _ in made)
        return [
            ring if isinstance(layer, KVCache) else layer
            for layer, ring in zip(made, rings, strict=True)
        ]


class Limited:
    """The model as the port's generators call it, its caches limited in size."""

    def __init__(self, model: ToyModel, max_kv_size: int | None) -> None:
        self._model, self._size = model, max_kv_size

    def __call__(self, inputs: Any, cache: PromptCache) -> Array:
        """Feed columns."""
        return self._model(inputs, cache)

    def make_cache(self) -> PromptCache:
        return self._model.caches(self._size)


class ToyTokenizer(ByteTokenizer):
    """Reads texts and dictionaries of messages."""

    eos_token_ids: Final = frozenset({260})

    def encode(self, text: str, **more: Any) -> Any:
        """A list, or an array of one row if that is asked for."""
        tokens = list(super().encode(text))
        return np.array([tokens]) if more.get("return_tensors") else tokens

    def apply_chat_template(self, messages: Any, **more: Any) -> Any:
        """The prompt of a conversation."""
        chat = [Message(**message) for message in messages]
        prompted = more.get("add_generation_prompt", False)
        return list(super().apply_chat_template(chat, add_generation_prompt=prompted))


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A token, as the generators of upstream hand it out."""

    uid: int = -1
    token: int
    logprobs: Array
    finish_reason: str | None = None
    prompt_cache: PromptCache | None = None
    text: str = ""


def logprobs_of(logits: Array) -> Array:
    """Logits, normalised."""
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


class ToySampler(Sampler):
    """Greedy, or what a test samples by."""

    own: Callable[[Array], Any] | None = None

    def __call__(self, logits: Array) -> Any:
        """The next token."""
        greedy = super().__call__(logits)
        return greedy if self.own is None else int(self.own(logprobs_of(logits)[None])[0])


@dataclass(slots=True)
class Generator:
    """`BatchGenerator` as its tests call it."""

    model: ToyModel
    max_tokens: int = 128
    stop_tokens: Any = ()
    sampler: Any = None
    prefill_batch_size: int = 8
    prefill_step_size: int = 2048
    completion_batch_size: int = 32
    max_kv_size: int | None = None
    inner: Any = None
    _samplers: dict[int, ToySampler] = field(default_factory=dict)
    _given: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        options = MlxOptions(
            prompt_concurrency=self.prefill_batch_size,
            decode_concurrency=self.completion_batch_size,
            prefill_step_size=self.prefill_step_size,
        )
        model: Any = Limited(self.model, self.max_kv_size)
        rules = self.model.rules.server
        if rules.segments:
            self.inner = BatchGenerator(model, rules, options)
            return
        quiet = {"progress": lambda *_: None, "keep_checkpoint": lambda *_: None}
        self.inner = OldBatchGenerator(model, rules, options, **quiet)

    def insert(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: Any = None,
        caches: Any = None,
        samplers: Any = None,
    ) -> list[int]:
        """Prompts with what each is to be served by."""
        each = max_tokens if isinstance(max_tokens, list) else None
        limits = each or [max_tokens or self.max_tokens] * len(prompts)
        if len(limits) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, but max_tokens for {len(limits)}")
        if self.model.rules.server.refuses_empty_prompts and not all(prompts):
            raise ValueError("a sequence has an empty prompt")
        if min(limits) < 1:
            raise ValueError("a sequence's max_tokens must be > 0")
        held = caches or [None] * len(prompts)
        own = samplers or [None] * len(prompts)
        return [
            self._insert(list(map(int, prompt)), limit, cache, sampler)
            for prompt, limit, cache, sampler in zip(prompts, limits, held, own, strict=True)
        ]

    def _insert(self, prompt: list[int], limit: int, cache: Any, own: Any) -> int:
        sampler = ToySampler(self.model.network)
        sampler.own = own or self.sampler
        stopper = Stopper(tuple((token,) for token in self.stop_tokens))
        shared = {"sampler": sampler, "stopper": stopper, "max_tokens": limit}
        if self.model.rules.server.segments:
            uid = self.inner.insert_segments([prompt], cache=cache, all_tokens=(), **shared)
        else:
            made = self.inner.model.make_cache() if cache is None else cache
            uid = self.inner.insert(tuple(prompt), cache=made, checkpoint=-1, **shared)
        self._samplers[uid] = sampler
        return int(uid)

    def next(self) -> Any:
        """One turn; since #1072 with the progress of prompts."""
        found = self.inner.next()
        if not self.model.rules.server.segments:
            return [self._response(each) for each in found]
        prompts, tokens = found
        return prompts, [self._response(token) for token in tokens]

    def _response(self, said: Any) -> Response:
        row = self._samplers[said.uid].rows[self._given[said.uid]]
        self._given[said.uid] += 1
        return Response(
            uid=said.uid,
            token=said.token,
            logprobs=logprobs_of(row),
            finish_reason=said.finish_reason,
            prompt_cache=said.prompt_cache,
        )

    def next_generated(self) -> list[Response]:
        """Turns until there is a token, or nothing at all."""
        while True:
            prompts, tokens = self.next()
            if tokens or not prompts:
                return list(tokens)

    def remove(self, uids: Sequence[int]) -> None:
        """Forget these."""
        self.inner.remove(uids)

    def close(self) -> None:
        """Nothing to free."""

    @property
    def _prompt_batch(self) -> Any:
        return self.inner._prompt_batch

    @property
    def _currently_processing(self) -> Any:
        return self.inner._processing

    @property
    def _unprocessed_sequences(self) -> Any:
        return self.inner._waiting

    def _find_uids(self, uids: Sequence[int]) -> dict[int, tuple[int, int]]:
        stages = (self.inner._waiting, self.inner._prompt_batch.rows)
        waiting = [stage.row.uid for stage in stages[0]]
        found = [(0, waiting), (1, self.inner._prompt_batch.uids)]
        return {uid: (at, all_.index(uid)) for at, all_ in found for uid in uids if uid in all_}


def generate_step(
    prompt: Any,
    model: ToyModel,
    *,
    max_tokens: int = 256,
    prompt_cache: PromptCache | None = None,
    prefill_step_size: int = 2048,
    sampler: Any = None,
    prompt_progress_callback: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[int, Array]]:
    """The port's single path, outside a server."""
    told = prompt_progress_callback or (lambda *_: None)
    mine = ToySampler(model.network)
    mine.own = sampler
    job: Any = types.SimpleNamespace(
        ticket=Ticket(0), sampler=mine, max_tokens=max_tokens, ready=None
    )
    serving: Any = types.SimpleNamespace(
        model=model,
        rules=model.rules.server,
        options=MlxOptions(prefill_step_size=prefill_step_size),
        emit=lambda event: told(event.done, event.total),
        store=types.SimpleNamespace(cache=LRUPromptCache(StoreRules()), insert=lambda *_: None),
    )
    cache = model.caches() if prompt_cache is None else prompt_cache
    tokens = as_tokens([int(each) for each in np.asarray(prompt).reshape(-1)])
    for index, token in enumerate(stream(serving, job, tokens, cache)):
        yield int(token), logprobs_of(mine.rows[index])


def stream_generate(
    model: ToyModel, tokenizer: ToyTokenizer, prompt: Any, *, max_tokens: int = 256, **more: Any
) -> Iterator[Response]:
    """Tokens one by one, with their texts."""
    if max_tokens == 0 and model.rules.server.no_tokens in {"dies", "refused"}:
        raise ValueError("Maximum number of tokens must be non-zero (use -1 for no limit).")
    limit = max_tokens if max_tokens >= 0 else WORDS
    tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    for token, logprobs in generate_step(tokens, model, max_tokens=limit, **more):
        yield Response(
            token=token, logprobs=logprobs, text=tokenizer.decode([as_tokens([token])[0]])
        )


def generate(model: ToyModel, tokenizer: ToyTokenizer, prompt: Any, **more: Any) -> str:
    """The text of a whole reply."""
    more.pop("verbose", None)
    return "".join(response.text for response in stream_generate(model, tokenizer, prompt, **more))


def to_quantized(self: KVCache, group_size: int = 64, bits: int = 4) -> QuantizedKVCache:
    """`KVCache.to_quantized`; the port packs where the server does."""
    packed = QuantizedKVCache(self.rules, group_size, bits)
    packed.take(self, (1, HEAD_SIZE))
    return packed


class Anything(types.ModuleType):
    """A module of which no cache test uses more than a name."""

    __path__: list[str] = []  # noqa: RUF012 - that makes it a package

    def __getattr__(self, name: str) -> Any:
        """`load` gives no model; other names are there to be imported."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: (None, None)


def modules(rules: MlxRules) -> Iterator[types.ModuleType]:
    """`mlx_lm.utils`, `mlx_lm.generate`, and the classes of models that tests build."""

    def toy(preset: str, **changes: Any) -> ToyModel:
        return ToyModel(tiny(preset, **changes), rules)

    def load(*_: object, **__: object) -> tuple[ToyModel, ToyTokenizer]:
        return toy("dense", vocabulary=512, head_size=HEAD_SIZE), ToyTokenizer()

    utils = types.ModuleType("mlx_lm.utils")
    utils.__dict__["load"] = load
    yield utils
    module = Anything("mlx_lm.generate")
    names: Mapping[str, Any] = {
        "BatchGenerator": Generator,
        "GenerationResponse": Response,
        "generate": generate,
        "generate_step": generate_step,
        "stream_generate": stream_generate,
        "_extend_cache": extend_cache,
    }
    module.__dict__.update(names)
    yield module
    models = Anything("mlx_lm.models")
    for name, preset in {"mamba2": "recurrent", "qwen3_next": "hybrid-delta"}.items():
        made = partial(toy, preset, family=name, vocabulary=WORDS)
        kind = types.SimpleNamespace(ModelArgs=lambda **_: None, Model=lambda _, made=made: made())
        models.__dict__[name] = kind
    yield models
