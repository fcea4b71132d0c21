"""Replay of recorded results of mlx-lm's own server."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final

import numpy as np

from cachesim.engines.base import Reply, Request, Ticket
from cachesim.engines.chat import Message
from cachesim.engines.events import Event
from cachesim.engines.family import Family, Profile
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.kv_cache import (
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    SparseCache,
)
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache
from cachesim.engines.mlx_lm.families import RecurrentRules, family_of
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import PromptCache, leaves
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import CacheRules, MlxRules
from cachesim.engines.mlx_lm.server.engine import MlxLm
from cachesim.engines.mlx_lm.server.thread import DEAD, DISCONNECTED, UNANSWERED
from cachesim.engines.mlx_lm.vocabulary import (
    Insertion,
    ModelCalled,
    PromptProgress,
    RequestAdmitted,
    RequestFinished,
)
from cachesim.model.arithmetic import Network
from cachesim.model.build import build
from cachesim.model.presets import tiny
from cachesim.model.spec import ModelSpec
from cachesim.prove.mlx_lm.families import OTHERS, toy_of
from cachesim.prove.playing import Difference
from cachesim.prove.rows import read_row, write_row
from cachesim.typed import Json
from cachesim.units import Array, Tokens, as_tokens
from cachesim.verify.oracle import Oracle


class ColdStates:
    """Recomputed states of keys, compared with stored ones.

    `within` is the tolerance, as a share of the largest number: a chunk from a later position
    differs by the rounding of rotations.
    """

    def __init__(
        self, network: Network, recurrent: RecurrentRules | None = None, *, within: float = 0.0
    ) -> None:
        self._forward = Forward(network, CacheRules(), recurrent=recurrent)
        self._within = within
        self._known: dict[Tokens, PromptCache] = {}

    def state(self, key: Tokens) -> PromptCache:
        """The caches after a cold run over the key."""
        if key not in self._known:
            cache = self._forward.make_cache()
            if key:
                self._forward(np.array([key], dtype=np.int64), cache)
            self._known[key] = cache
        return self._known[key]

    def agree(self, key: Tokens, cache: PromptCache) -> list[bool | None]:
        """Layer by layer: the same tokens, at the same places, with the same numbers.

        Layers of a draft model are last, and not judged.
        """
        cold, held = leaves(self.state(key)), leaves(cache)
        found = [_agrees(*pair, len(key), self._within) for pair in zip(cold, held, strict=False)]
        return [*found, *[None] * (len(held) - len(cold))]


def _agrees(cold: LayerCache, layer: LayerCache, count: int, within: float) -> bool | None:
    if isinstance(layer, QuantizedKVCache):
        return None  # packed numbers are never the computed ones
    if isinstance(cold, ArraysCache) and isinstance(layer, ArraysCache):
        return _is_equal(cold.cache, layer.cache, within)
    if getattr(layer, "offset", None) != count:
        return False
    return _is_equal(rows(cold), rows(layer), within)


def _is_equal(one: Sequence[Array | None], other: Sequence[Array | None], within: float) -> bool:
    return all(_same(*pair, within) for pair in zip(one, other, strict=True))


def _same(one: Array | None, two: Array | None, within: float) -> bool:
    if one is None or two is None:
        return one is two
    if not within or one.shape != two.shape or not one.size:
        return np.array_equal(one, two)
    return bool(np.abs(one - two).max() <= within * np.abs(one).max())


def rows(layer: LayerCache) -> tuple[Array | None, Array | None]:
    """Keys and values that a query may still see, oldest first."""
    if isinstance(layer, RotatingKVCache) and layer.keys is not None:
        kept = slice(-layer.size(), None) if layer.size() else slice(0, 0)
        keys, values = layer.temporal_order(layer.keys), layer.temporal_order(layer.values)
        return keys[:, :, kept], values[:, :, kept]
    if isinstance(layer, ChunkedKVCache) and layer.keys is not None and layer.values is not None:
        first = layer.offset // layer.chunk_size * layer.chunk_size  # of the chunk that continues
        kept = slice(first - layer.start_position, layer.offset - layer.start_position)
        return layer.keys[:, :, kept], layer.values[:, :, kept]
    if isinstance(layer, KVCache | SparseCache) and layer.keys is not None:
        return layer.keys_and_values()
    return None, None


PRESETS: Final = {"attn": "dense", "swa": "swa", "hyb": "hybrid-delta"}
"""The models of the vectors, and the presets that have their caches."""

FAMILIES: Final = {"hyb": "qwen3_next"}
"""The classes of the recorded models, where they are not the layers' default."""

FLOAT32: Final = 4
VOCABULARY: Final = 64
FILLER: Final = 20
"""Filler token after the worker's death, where the recording ends."""

UNUSED_TOKEN: Final = 21
MOST_DRAFTED: Final = 3

TOLERANCE: Final = 1e-3
"""Largest accepted difference of log probabilities; the real model computes in float32."""

CLOSE: Final = 1e-5
"""Largest accepted difference of a stored state from its key's own, as in `server_worker`."""

PACKED: Final = 0.1
"""Accepted difference of packed keys and values: one between two steps is rounded up or down."""

FIELDS: Final = tuple(field.name for field in FAMILY.fields)
BY_SIZE: Final = ("nbytes",)
"""Fields compared by size for classes with layers of their own."""

BY_WEIGHTS: Final = ("difference", "distance")

STORE_OPTION: Final = "prompt_cache_size"
"""Older servers do not have it; the recordings gave it to their store directly."""


def spec_of(model: Mapping[str, Any]) -> ModelSpec:
    """The toy with the caches, the bytes and, of a family, the weights of a recorded model."""
    if "family" in model:
        return toy_of(model, VOCABULARY)
    window = {"window": model["window"]} if "window" in model else {}
    preset = PRESETS[model["kind"]]
    family = FAMILIES.get(model["kind"], "")
    return tiny(preset, vocabulary=VOCABULARY, family=family, **window)


class ServerPlayer:
    """A server of a release, with its results in the recorded form."""

    def __init__(self, line: Mapping[str, Any], rules: MlxRules | None = None) -> None:
        """`rules` take the place of the release's own."""
        self.spec = spec_of(line["model"])
        self.tolerance = PACKED if "kv_bits" in line["options"] else TOLERANCE
        self.profile = Profile.parse(f"mlx-lm@{line['version']}")
        self.rules = rules or FAMILY.rules(self.profile)
        self.family = FAMILY if rules is None else under(self.profile.release, rules)
        template = line["template"]
        options = dict(line["options"])
        known = FAMILY.has(FAMILY.option(STORE_OPTION), self.profile)
        size = None if known else options.pop(STORE_OPTION, None)
        more = {
            "tokenizer": "words",
            "chat_template": template,
            "element_bytes": FLOAT32,
            "provenance": False,
        }
        models = {name: spec_of(model) for name, model in line.get("models", {}).items()}
        networks = {name: build(each) for name, each in {"": self.spec, **models}.items()}
        engine = MlxLm(
            self.profile,
            network=networks[""],
            options=options | more,
            family=self.family,
            models={name: networks[name] for name in models},
        )
        if size is not None:
            engine.server.store.cache.max_size = size
        self.engine = engine
        self.engine.server.store.watch = self._watch
        self._cold = {
            name: ColdStates(network, self.rules.of_class(family_of(network.spec)), within=CLOSE)
            for name, network in networks.items()
        }
        self._oracles = {name: Oracle(network) for name, network in networks.items()}
        self._inserted: list[dict[str, Json]] = []
        self._numbers: list[tuple[PromptCache, int]] = []
        self._seen = 0

    def _watch(self, insertion: Insertion, cache: PromptCache) -> None:
        agree = self._cold[self.engine.server.loaded].agree(insertion.key, cache)
        layers = [
            {**layer, "state_is_key": same}
            | ({"nbytes": {"error": layer["nbytes"]}} if isinstance(layer["nbytes"], str) else {})
            for layer, same in zip(insertion.layers, agree, strict=True)
        ]
        self._numbers.append((cache, insertion.number))
        self._inserted.append(
            {
                "number": insertion.number,
                "key": write_row(insertion.key),
                "length": insertion.length,
                "layers": layers,
                "type": None if insertion.type == "all" else insertion.type,
            }
        )

    def play(
        self, requests: Sequence[Mapping[str, Any]], recorded: Sequence[Mapping[str, Any]]
    ) -> dict[str, Json]:
        """Serve one group, with the sampled tokens of the recording."""
        self._inserted = []
        tickets = self._serve(requests, recorded)
        self.engine.check_integrity()
        events = self.engine.events[self._seen :]
        self._seen = len(self.engine.events)
        return {
            "requests": [
                self._result(ticket, events, result, request.get("model", ""))
                for ticket, result, request in zip(tickets, recorded, requests, strict=True)
            ],
            "inserted": self._inserted,
            "forwards": [[each.rows, each.columns] for each in of_kind(ModelCalled, events)],
            "store": self._store(),
        }

    def _serve(
        self, requests: Sequence[Mapping[str, Any]], recorded: Sequence[Mapping[str, Any]]
    ) -> list[Ticket | None]:
        server, tickets = self.engine.server, dict[int, Ticket]()
        start, pairs = server.turns, list(zip(requests, recorded, strict=True))
        later = sorted(range(len(pairs)), key=lambda index: requests[index].get("at", 0))
        busy = True
        while busy or later:
            while later and (not busy or requests[later[0]].get("at", 0) <= server.turns - start):
                index, busy = later.pop(0), True
                if "refused" not in requests[index]:  # the HTTP side turned it away
                    tickets[index] = self.engine.submit(self._request(*pairs[index]))
            for index, ticket in tickets.items():
                leaves = requests[index].get("leaves_after")
                if leaves is not None and self.engine.n_generated(ticket) >= leaves:
                    self.engine.cancel(ticket)
            busy = self.engine.step()
        return [tickets.get(index) for index in range(len(pairs))]

    def _request(self, request: Mapping[str, Any], result: Mapping[str, Any]) -> Request:
        reply = read_row(result["generated"] or "")
        if result.get("error") or result.get("finish") == DISCONNECTED:
            reply += [FILLER] * (max(1, request["max_tokens"]) - len(reply))
        options = {name: request[name] for name in FIELDS if name in request}
        tokenizer = self.engine.tokenizer
        return Request(
            prompt=tokenizer.encode(request["text"]) if "text" in request else (),
            messages=tuple(Message(**message) for message in request.get("messages", ())),
            predict=request["max_tokens"],
            reply=as_tokens(reply),
            drafts=_drafts(request["drafts"], len(reply)) if "drafts" in request else None,
            options=options,
            model=request.get("model", ""),
        )

    def _result(
        self,
        ticket: Ticket | None,
        events: Sequence[Event],
        recorded: Mapping[str, Json],
        model: str,
    ) -> dict[str, Json]:
        if ticket is None:
            return dict(REFUSED)
        mine = [event for event in events if event.task == ticket]
        reply = self.engine.reply(ticket)
        admitted = next(iter(of_kind(RequestAdmitted, mine)), None)
        finished = next(iter(of_kind(RequestFinished, mine)), None)
        result: dict[str, Json] = {
            "prompt": "" if reply is None else write_row(reply.prompt),
            "n": 0 if reply is None else len(reply.prompt),
            "generated": "" if reply is None else write_row(reply.generated),
            "finish": None if finished is None else finished.reason,
            "error": _error_of(reply, recorded),
            "progress": [[each.done, each.total] for each in of_kind(PromptProgress, mine)],
            "cached": None if admitted is None else admitted.cached,
            "reported": None if admitted is None else admitted.reported,
        }
        if "logprobs" in recorded:
            rows = recorded["logprobs"]
            result["logprobs"] = (
                "as real" if reply is None else _as_real(reply, rows, self.tolerance)
            )
        elif "answer" in recorded:
            result["answer"] = None if reply is None else self._answer(reply, model)
        if recorded.get("wire") is not None and reply is not None:
            sent = reply.generated[: len(reply.generated) - self.engine.trimmed(ticket)]
            result["wire"] = recorded["wire"] | {
                "status": HTTPStatus.OK,
                "prompt_tokens": len(reply.prompt),
                "cached_tokens": result["reported"],
            }
            if self.rules.server.tells_marks:
                tokens = None if recorded["wire"]["tokens"] is None else list(sent)
                result["wire"] |= {"completion_tokens": len(sent), "tokens": tokens}
        if admitted is not None and self.rules.server.segments:
            result["segments"] = [list(segment) for segment in admitted.segments]
        if admitted is not None and admitted.checkpoint is not None:
            result["checkpoint"] = list(admitted.checkpoint)
        return result

    def _answer(self, reply: Reply, model: str) -> str | None:
        if reply.error is not None or not reply.generated:
            return None
        cold = self._oracles[model].logits(reply.prompt, reply.generated)
        return "same" if np.array_equal(cold, reply.logits) else "diverged"

    def _store(self) -> dict[str, Json]:
        cache = self.engine.server.store.cache
        items = [((model, tuple(key)), entry) for model, key, entry in cache.trie.items()]
        numbers = {key: self._number(entry.prompt_cache) for key, entry in items}
        typed = len(cache.rules.queues) > 2
        counted = cache.rules.same_key == "counts"
        entries = [
            {"insertion": numbers[key], "length": len(key[1])}
            | ({"count": entry.count} if counted else {"nbytes": entry.nbytes})
            | ({"type": entry.cache_type} if typed else {})
            for key, entry in items
        ]
        order = {
            name: [numbers[model, tuple(tokens)] for model, tokens in queue]
            for name, queue in cache.order.queues.items()
        }
        limits = cache.rules.limits_bytes
        return {"entries": entries, "order": order} | ({"nbytes": cache.nbytes} if limits else {})

    def _number(self, cache: PromptCache) -> int:
        return next((number for held, number in reversed(self._numbers) if held is cache), 0)


def _drafts(drawn: Sequence[Sequence[int]], count: int) -> tuple[Tokens, ...]:
    rest = [[UNUSED_TOKEN] * MOST_DRAFTED] * count
    return tuple(
        as_tokens([*step, *[UNUSED_TOKEN] * (MOST_DRAFTED - len(step))]) for step in (*drawn, *rest)
    )


def of_kind(kind: type[Any], events: Iterable[Event]) -> list[Any]:
    """The events of one class."""
    return [event for event in events if isinstance(event, kind)]


def under(release: str, rules: MlxRules) -> Family[MlxRules, MlxOptions]:
    """mlx-lm with these rules in place of a release's own."""
    releases = (replace(e, rules=rules) if e.name == release else e for e in FAMILY.releases)
    return replace(FAMILY, releases=tuple(releases))


def mismatch(line: Mapping[str, Any], rules: MlxRules | None = None) -> Difference | None:
    """The first group that differs; None if all are equal."""
    player, family = ServerPlayer(line, rules), line["model"].get("family")
    before = 0
    for group, recorded in zip(line["steps"], line["results"], strict=True):
        expected = _as_compared(recorded, without=BY_SIZE if family in OTHERS else ())
        if family == "falcon_h1":
            expected["inserted"] = [_without_attention(each) for each in expected["inserted"]]
        actual = recorded_part(expected, player.play(group, recorded["requests"]))
        if expected != actual:
            pairs = zip(expected["requests"], actual["requests"], strict=True)
            wrong = next((i for i, (one, two) in enumerate(pairs) if one != two), 0)
            return Difference(step=before + wrong, real=expected, simulated=actual)
        before += len(group)
    return None


def _error_of(reply: Reply | None, recorded: Mapping[str, Json]) -> str | None:
    """A reply's error; recordings of requests after the worker's death contain no other."""
    if reply is None or reply.error not in {DEAD, UNANSWERED}:
        return None if reply is None else reply.error
    return TOO_LATE if recorded.get("error") == TOO_LATE else reply.error


TOO_LATE: Final = "came too late"

REFUSED: Final[Mapping[str, Json]] = {
    "error": "refused",
    "cached": None,
    "reported": None,
    "finish": None,
    "generated": "",
    "progress": [],
    "wire": None,
    "logprobs": "as real",
}
"""Requests that the HTTP side rejects before the generation thread."""


def _without_attention(insertion: Mapping[str, Json]) -> dict[str, Json]:
    """Without the verdict on attention: it is beside a recurrent layer, the toy's comes after."""
    layers = [
        {name: value for name, value in layer.items() if name != "state_is_key"}
        if "offset" in layer
        else layer
        for layer in insertion["layers"]
    ]
    return {**insertion, "layers": layers}


def _as_compared(recorded: Json, without: Sequence[str]) -> Json:
    """A recording without the distances of wrong states and answers, which depend on weights.

    Rows of the toy's own weights are compared themselves, instead of a verdict on them.
    """
    if isinstance(recorded, Mapping):
        rows = {"logprobs": "as real"} if "logprobs" in recorded else {}
        left_out = (*BY_WEIGHTS, *without, *(("answer", "logprobs") if rows else ()))
        kept = {name: value for name, value in recorded.items() if name not in left_out}
        return {name: _as_compared(value, without) for name, value in kept.items()} | rows
    if isinstance(recorded, list):
        return [_as_compared(each, without) for each in recorded]
    return recorded


def _as_real(reply: Reply, recorded: Sequence[Sequence[float]], tolerance: float) -> str:
    for index, (ours, theirs) in enumerate(zip(reply.logits, recorded, strict=False)):
        shifted = ours - ours.max()
        off = np.abs(shifted - np.log(np.exp(shifted).sum()) - np.array(theirs)).max()
        if off > tolerance:
            return f"token {index} is off by {off:.1e}"
    return "as real"


def recorded_part(recorded: Json, played: Json) -> Json:
    """The results of a run, reduced to the recorded fields."""
    if isinstance(recorded, Mapping) and isinstance(played, Mapping):
        return {key: recorded_part(value, played.get(key)) for key, value in recorded.items()}
    if isinstance(recorded, list) and isinstance(played, list) and len(recorded) == len(played):
        return [recorded_part(one, two) for one, two in zip(recorded, played, strict=True)]
    return played
