"""Bugs of ik_llama.cpp and mlx-lm: releases and proposals that have one, and switches."""

import copy
from typing import Any, Final

import numpy as np

from cachesim.engines.ik_llama import prepare, server
from cachesim.engines.ik_llama.context import Cells, Context
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache, RotatingKVCache
from cachesim.engines.mlx_lm.store import lru_prompt_cache
from cachesim.engines.mlx_lm.store.lru_prompt_cache import LRUPromptCache, PromptTrie
from conformance.mutants.llama_cpp import LLAMA_CPP
from conformance.mutants.switches import always, answers, counts, swap, wrapped

IK: Final = "ik_llama.cpp@d2da6da05+2105"
MLX: Final = "mlx-lm@0.32.2"


def _without_rows(original: Any, self: Context, seq: Any, state: Any) -> bool:
    kept = {layer: rows[seq].copy() for layer, rows in self.rows.items()}
    done = bool(original(self, seq, state))
    for layer, row in kept.items():
        self.rows[layer][seq] = row
    return done


def _usable_at(reach: int) -> Any:
    return lambda _: lambda _self, checkpoint, thold, _next: checkpoint.pos_max < thold + reach


IK_LLAMA: Final = (
    answers(
        "no-checkpoint-is-applied",
        "a hybrid keeps the whole prefix over a state that holds more",
        profile="ik_llama.cpp@d2da6da05+1689",
        cured=IK,
        model="hybrid-delta",
        upstream="ikawrakow/ik_llama.cpp#1689",
    ),
    answers(
        "one-token-too-far",
        "a checkpoint that has folded in the first other token is restored",
        profile="ik_llama.cpp@d2da6da05+1888",
        cured=IK,
        model="hybrid-delta",
        shape={"longest": 200, "flags": False},
        upstream="ikawrakow/ik_llama.cpp#1888",
    ),
    answers(
        "last-token-enters-twice",
        "the last-token rule takes a token back after the checkpoint was chosen",
        profile="ik_llama.cpp@d2da6da05",
        cured=IK,
        model="hybrid-delta",
        upstream="ikawrakow/ik_llama.cpp#2105",
    ),
    answers(
        "ik-restore-without-rows",
        "a restored conversation keeps the recurrent row of the one before",
        swap(Context, "restore", wrapped(_without_rows)), profile=IK, model="hybrid-delta",
    ),
    answers(
        "ik-trim-does-nothing", "removed cells stay", swap(Cells, "seq_rm", always(True)),
        profile=IK, model="dense",
    ),
    counts(
        "ik-exact-boundary-accepted", "a checkpoint right at the match is used",
        swap(prepare.Preparation, "_usable", _usable_at(1)), records="server-ik-d2da6da05",
    ),
    counts(
        "ik-no-tolerance-point", "no checkpoint before the prompt's end",
        swap(server.Checkpointing, "after_prefill", always(None)), records="server-ik-d2da6da05",
    ),
)  # fmt: skip


def _zeroing(self: ArraysCache, n: int) -> int:
    self.cache = [None if state is None else np.zeros_like(state) for state in self.cache]
    return n


def _skips_one(original: Any, self: PromptTrie[Any], model: Any, tokens: Any) -> Any:
    popped = original(self, model, tokens)
    for length, value in popped[:1]:
        self.add(model, tokens[:length], value)
    return popped[1:]


MLX_LM: Final = (
    answers(
        "hybrid-batch-folds-padding",
        "0.31.3: a fresh parallel hybrid batch folds padding into its states",
        profile="mlx-lm@0.31.3",
        cured=MLX,
        model="hybrid-delta",
        shape={"together": True, "longest": 60, "flags": False},
        upstream="ml-explore/mlx-lm#1169",
    ),
    answers(
        "shorter-rest-is-lost",
        "the scan takes the last row of a batch, and keeps nothing where it is padding",
        profile="mlx-lm@0.32.0",
        cured=MLX,
        model="hybrid",
        shape={"together": True, "longest": 60, "flags": False},
        upstream="ml-explore/mlx-lm#1908",
    ),
    answers(
        "padding-decays-the-state", "the chunked scan lets padding fade what earlier turns left",
        profile="mlx-lm@0.32.0", cured=MLX, model="recurrent",
        shape={"together": True, "longest": 60, "flags": False},
    ),
    answers(
        "trim-resets-the-state",
        "a recurrent cache forgets instead of refusing",
        swap(ArraysCache, "is_trimmable", always(True))
        + swap(ArraysCache, "trim", lambda _: _zeroing),
        profile=MLX,
        model="hybrid-delta",
        upstream="ml-explore/mlx-lm#1254",
    ),
    answers(
        "trim-ignores-the-arrays",
        "a recurrent cache says it was cut",
        swap(ArraysCache, "is_trimmable", always(True))
        + swap(ArraysCache, "trim", lambda _: lambda _self, n: n),
        profile=MLX,
        model="hybrid-delta",
        upstream="ml-explore/mlx-lm#1186",
    ),
    answers(
        "trim-one-too-few", "a cut leaves one row too many",
        swap(KVCache, "trim", wrapped(lambda original, self, n: original(self, max(0, n - 1)) + 1)),
        profile=MLX, model="dense",
    ),
    counts(
        "full-ring-may-be-cut",
        "a ring that has passed its window says it can be cut",
        swap(RotatingKVCache, "is_trimmable", always(True)),
        records="mlx-store",
        upstream="ml-explore/mlx-lm#980",
    ),
    counts(
        "prefix-pop-off-by-one",
        "the shortest prefix stays when a longer entry comes",
        swap(PromptTrie, "pop_prefixes", wrapped(_skips_one)),
        records="mlx-store",
        upstream="ml-explore/mlx-lm#1078",
    ),
    counts(
        "nothing-is-pruned", "prefixes of a new entry stay",
        swap(LRUPromptCache, "_prune", always(None)), records="mlx-store",
    ),
    counts(
        "nothing-is-evicted",
        "a full store keeps everything",
        swap(LRUPromptCache, "_evict", always(None)),
        records="mlx-store",
        upstream="ml-explore/mlx-lm#1118",
    ),
    answers(
        "no-deep-copies-answers",
        "what a seeded request computes is written into the stored conversation",
        swap(
            lru_prompt_cache,
            "copy_prompt_cache",
            lambda _: lambda caches: list(map(copy.copy, caches)),
        ),
        profile=MLX,
        model="dense",
    ),
    counts(
        "no-deep-copies",
        "copies share their arrays",
        swap(
            lru_prompt_cache,
            "copy_prompt_cache",
            lambda _: lambda caches: list(map(copy.copy, caches)),
        ),
        records="mlx-store",
    ),
)  # fmt: skip

ALL: Final = LLAMA_CPP + IK_LLAMA + MLX_LM
