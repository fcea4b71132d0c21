"""The float network beside mlx-lm's own models: same weights, same tokens, the same logits.

mlx-lm computes in float32 here; the rest is rounding. Prompts go in as pieces of random lengths, so
its caches are in it too. Batches of unequal rests follow, padded as the release pads them: there
the logits are the same where they are right and where they are wrong.
"""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from cachesim.engines.chat import FIRST_WORD
from cachesim.engines.family import Profile
from cachesim.engines.mlx_lm.caches.layer_cache import UpstreamRaise, name_of
from cachesim.engines.mlx_lm.families import FAMILIES
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.generate.batch_generator import batch_form_of
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import left_padded, merge_caches, right_padded
from cachesim.model.build import build
from cachesim.model.spec import ModelSpec
from cachesim.prove.mlx_lm.families import CLASSES, order_of, spec_of, windows_at
from cachesim.prove.mlx_lm.process import RealProcess
from cachesim.units import Array, Tokens, as_tokens
from cachesim.verify.oracle import cold_logits
from conformance.real.mlx_lm.players import feed_batch

TOLERANCE: Final = 1e-3
"""Largest accepted difference of logits."""

LENGTH: Final = 100
"""Tokens of a prompt."""

STEPS: Final = 4
"""Tokens that a batch decodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBatch:
    """A batch: cached tokens of each sequence, tokens prefilled together, decoded tokens."""

    past: tuple[Tokens, ...]
    rests: tuple[Tokens, ...]
    decoded: tuple[Tokens, ...]  # per step, one token for each sequence
    step: int  # with it all rests take as many pieces

    def calls(self, *, before_1072: bool) -> tuple[list[int] | None, list[tuple[Any, ...]]]:
        """Left padding of a fresh batch, and the columns to be fed with their lengths and padding.

        Follows the generators: before #1072 all at once, fresh batches padded on the left; since
        then in pieces of at most a step, padded on the right where their lengths differ.
        """
        if before_1072:
            longest = max(map(len, self.rests))
            padding = [longest - len(rest) for rest in self.rests]
            if not any(self.past):
                return padding, [(left_padded(self.rests, longest), None, None)]
            lengths = [len(rest) for rest in self.rests]
            return None, [(right_padded(self.rests), lengths, padding)]
        found = []
        for start in range(0, max(map(len, self.rests)), self.step):
            pieces = [rest[start : start + self.step] for rest in self.rests]
            lengths = [len(piece) for piece in pieces]
            padding = [max(lengths) - length for length in lengths]
            padded = (lengths, padding) if any(padding) else (None, None)
            found.append((right_padded(pieces), *padded))
        return None, found


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsAgreement:
    """The comparison of a family's logits over some prompts and some batches."""

    family: str
    prompts: int
    largest: float  # distance of two logits
    batches: int
    wrong: int  # batches in which a row is not the cold one
    largest_in_batches: float

    @property
    def agrees(self) -> bool:
        return max(self.largest, self.largest_in_batches) <= TOLERANCE


def compare_mlx_logits(
    release: str, *, prompts: int = 5, batches: int = 6, seed: int
) -> list[LogitsAgreement]:
    """Run the same prompts and batches on mlx-lm's models and on the network, for each family."""
    new = FAMILY.release(release).rules.server.segments
    found = []
    with RealProcess(release, "conformance.real.mlx_lm.class_worker") as process:
        for name in (each for each in CLASSES if FAMILIES[each].is_at(release, FAMILY.names())):
            windows = windows_at(release, name)
            window: dict[str, Any] = {"window": windows[0]} if len(windows) == 1 else {}
            spec = spec_of(name, seed=seed, **window)
            random = Random(f"{name}/{seed}")
            cut = [_pieces(random, LENGTH, spec.vocabulary) for _ in range(prompts)]
            in_steps = new or not FAMILIES[name].rules.chunked
            planted = [_planted(random, spec, n, in_steps=in_steps) for n in range(batches)]
            found.append(_compare(process, release, spec, cut, planted))
    return found


def _compare(
    process: RealProcess,
    release: str,
    spec: ModelSpec,
    cut: list[list[list[int]]],
    planted: list[DrawnBatch],
) -> LogitsAgreement:
    old = not FAMILY.release(release).rules.server.segments
    with TemporaryDirectory() as folder:
        order = order_of(spec, Path(folder) / "weights.npz")
        order |= {"prompts": cut, "batches": [_as_order(each, old=old) for each in planted]}
        real = process.order(order)
    network = build(spec)
    largest = 0.0
    for pieces, rows in zip(cut, real["prompts"], strict=True):
        tokens = as_tokens([token for piece in pieces for token in piece])
        ours = cold_logits(network, tokens)
        largest = max(largest, float(np.abs(ours - np.array(rows)).max()))
    distances, wrong = [0.0], 0
    for each, rows in zip(planted, real["batches"], strict=True):
        try:
            profile = Profile("mlx-lm", release)
            rules = FAMILY.rules(profile)
            recurrent = rules.of_class(FAMILIES[spec.family])
            forward = Forward(build(spec), rules.caches, recurrent=recurrent)
            left, calls = each.calls(before_1072=not rules.server.segments)
            if left is not None:
                batch = [batch_form_of(layer, left) for layer in forward.make_cache()]
            else:
                single = [forward.make_cache() for _ in each.past]
                for past, cache in zip(each.past, single, strict=True):
                    if past:
                        forward(np.array([past], dtype=np.int64), cache)
                batch = merge_caches(single)
            fed = partial(forward, cache=batch)
            feed_batch(fed, batch, calls, step=each.step, is_padded=left is not None)
            columns_of_steps = (np.array(tokens, np.int64)[:, None] for tokens in each.decoded)
            played = np.stack([forward(column, batch) for column in columns_of_steps])
        except UpstreamRaise as error:
            distances.append(0.0 if rows == {"error": name_of(error)} else math.inf)
            continue
        off = math.inf if isinstance(rows, dict) else np.abs(played - np.array(rows)).max()
        distances.append(float(off))
        wrong += not np.array_equal(played, _cold(spec, each))
    return LogitsAgreement(
        family=spec.family,
        prompts=len(cut),
        largest=largest,
        batches=len(planted),
        wrong=wrong,
        largest_in_batches=max(distances),
    )


def _cold(spec: ModelSpec, planted: DrawnBatch) -> Array:
    network, rows = build(spec), []
    for index, (past, rest) in enumerate(zip(planted.past, planted.rests, strict=True)):
        tokens = tuple(step[index] for step in planted.decoded)
        rows.append(cold_logits(network, (*past, *rest, *tokens))[-len(tokens) :])
    return np.stack(rows, axis=1)


def _as_order(planted: DrawnBatch, *, old: bool) -> dict[str, Any]:
    left, calls = planted.calls(before_1072=old)
    return {
        "past": [list(past) for past in planted.past],
        "left_padding": left,
        "calls": [[columns.tolist(), *padded] for columns, *padded in calls],
        "step": planted.step,
        "said": [list(tokens) for tokens in planted.decoded],
    }


def _planted(random: Random, spec: ModelSpec, number: int, *, in_steps: bool) -> DrawnBatch:
    """Fresh batches and such with a past take turns; every third has rests of several steps.

    Not `in_steps`: before #1072 the lengths of a batch reach beyond a step's columns, and a chunked
    scan that receives them reads any memory there.
    """

    def words(count: int) -> Tokens:
        return as_tokens([random.randrange(FIRST_WORD, spec.vocabulary) for _ in range(count)])

    rows = random.choice((2, 2, 3))
    pasts = [0] * rows if number % 2 else [random.choice((5, 30, 70)) for _ in range(rows)]
    if number % 4 == 0 and random.random() < 0.5:
        pasts[random.randrange(rows)] = 0
    step = 16 if in_steps and number % 3 == 2 else 2048
    longest = random.choice((6, 20, 60)) if step > 60 else 16
    rests = [longest, *(random.choice((1, 2, longest)) for _ in range(rows - 1))]
    whole = 0 if step > 60 else step * random.choice((0, 1, 3))  # steps that all of them fill
    return DrawnBatch(
        past=tuple(words(count) for count in pasts),
        rests=tuple(words(whole + rest) for rest in rests),
        decoded=tuple(words(rows) for _ in range(STEPS)),
        step=step,
    )


def _pieces(random: Random, length: int, vocabulary: int) -> list[list[int]]:
    tokens = [random.randrange(FIRST_WORD, vocabulary) for _ in range(length)]
    pieces = []
    while tokens:
        count = random.choice((1, 1, 5, 17, 40))
        pieces.append(tokens[:count])
        tokens = tokens[count:]
    return pieces
