"""Scripts of cache operations on a release's models; a process of its own.

A line of JSON {"family", "attention", "scripts"} comes in, with "import" if a module registers the
model; a line {"fields", "layers", "results"} goes out. A script is a list of steps:

    ["cache", "static"]     the class of the cache, else dynamic; "fp8", "grouped": quantised;
                            "quanto", "hqq": rounded, with ["near"] to compare keys in the end
    ["encoder", 7]          number of encoder states, given to each call
    ["rows", 3]             a batch; ["pad", 14, 9, 5] one with padding on the left, "right": there
    ["feed", 5]             new tokens, whose logits are compared with the uncached ones
    ["crop", -3]            and ["record"], ["reset"], ["fork"]
    ["try", -3]             a crop; the script continues if it is refused
    ["other", 9]            tokens of another conversation, which has a cache of its own
    ["mask"]                each call is given the mask of all tokens, also without padding
    ["reorder", 2, 0, 1]    the same with "select"; ["repeat", 3]
    ["generate", 4, "plain"] a further turn by `generate`, of 4 new tokens (0: none, below:
                            a shorter prompt); the last step may have another manner, no cache
    ["batch", 14, 9, 5]     `generate` on prompts with padding on the left
    ["paged", 20, 16, 23]   prompts with one beginning, by continuous batching; "packed": no prefix;
                            "offloaded": the same with too few blocks

Cold is `use_cache=False` over all tokens of each row, without padding, on an equal model: a module
may hold a state. The first of the REMEDIES that makes a wrong script right is its cause, unless a
call without a cache differs.
"""

import copy
import gc
import importlib
import inspect
import json
import resource
import sys
from collections.abc import Iterator
from functools import partial, partialmethod
from typing import Any

Real = Any  # modules and objects of the release: known only when it runs
Step = list[Any]

MEMORY = 12 << 30
"""Bytes of address space: a model whose sizes are not all known here is refused, not built."""

NEW = 6
"""Tokens that `generate` adds."""

RIGHT, SINGLE, WRONG = 1e-6, 1e-5, 1e-3
"""Largest distance of right logits in float64, of right ones with parts in float32, which round by
another 1e-6 on another processor, and smallest of wrong ones; in deviations of the cold logits."""

INFINITE = 1e9

torch: Any = None
library: Any = None  # transformers
changes: Any = None  # `patches_worker`, and further modules beside this one
parts: Any = None
tiny: Any = None

POSITIONS = "positions given"
SINGLY = "token by token"
UNLIMITED = "a cache without windows"
REORDER = "reorder_cache"
DYNAMIC = "a dynamic cache"
SHORTER = "a cache shorter than the prompt"
CALLS = "calls of the model"
NEW_MASK = "a mask of the new tokens"
UNSHARED = "no shared blocks"
REBUILT = "a new cache"
WHOLE_MASK = "a mask of four dimensions"
ALONE = "each row alone"
SELECTED = "batch_select_indices for reorder_cache"
PER_CALL = "a paged store for each call of attention"
PER_CYCLE = "paged layers counted in each cycle"
MOVED = "states in modules moved"
LIMITED = "time steps limited in each call"
CHANGES = ("crop", "try", "reset", "fork", "other", "reorder", "select", "repeat")
ROUNDED = ("quanto", "hqq")
KEYS = ("past_key_values", "cache_params", "cache")  # the last since 5.24

METHODS = {
    "record": "activate_past_recording",
    "crop": "crop",
    "try": "crop",
    "reset": "reset",
    "reorder": "reorder_cache",
    "select": "batch_select_indices",
    "repeat": "batch_repeat_interleave",
}
"""Methods of a cache that steps call."""

REMEDIES: dict[tuple[str, ...], tuple[str, ...]] = {
    (LIMITED,): ("feed", "generate", "pad", "batch"),
    (POSITIONS,): ("feed",),
    (SINGLY,): ("feed", "generate"),
    (DYNAMIC,): ("cache", "generate"),
    (UNLIMITED,): ("feed", "generate", "pad", "right", "batch", "paged", "packed"),
    (REORDER,): ("select",),
    (SHORTER,): ("generate",),
    (SHORTER, UNLIMITED): ("generate",),
    (LIMITED, SHORTER): ("generate",),
    (CALLS,): ("generate",),
    (CALLS, SINGLY): ("generate",),
    (NEW_MASK,): ("pad", "right", "mask"),
    (WHOLE_MASK,): ("pad", "right"),
    (CALLS, WHOLE_MASK): ("batch",),
    (SELECTED,): ("reorder", "generate"),
    (MOVED,): ("generate",),
    (UNSHARED,): ("paged", "packed"),
    (PER_CALL,): ("paged", "packed"),
    (PER_CYCLE,): ("paged", "packed"),
    (REBUILT,): CHANGES,
    (SINGLY, REBUILT): CHANGES,
    (ALONE,): ("pad", "right", "batch"),
}
"""Replacement of a step of a wrong script, by the steps that it is for."""


class AbsentError(Exception):
    """The release, or the model, lacks the function of a step."""


def tokens(seed: int, count: int, rows: int = 1) -> Real:
    """Drawn tokens; the same ones for a seed."""
    source = torch.Generator().manual_seed(seed)
    return torch.randint(2, 100, (rows, count), generator=source)


class Play:
    """A script on a model: the tokens fed, row by row, and the cache."""

    def __init__(
        self, models: Real, key: str, *, positions: bool, remedies: tuple[str, ...] = ()
    ) -> None:
        self.model, self.cold_model = models  # cold runs have one of their own
        self.key, self.positions, self.remedies = key, positions, remedies
        self.own_cache = False  # a class of the model's own
        self.colds: dict[str, Real] = {}  # logits without a cache
        self.rows: list[Real] = [torch.zeros(1, 0, dtype=torch.long)]  # tokens of each, unpadded
        self.widths = 0  # of the batch, with padding
        self.on_right: list[range] = []  # columns of each row's padding after its prompt
        self.cache: Real = None
        self.replay: Real = None  # of a cache that rounds
        self.recording = self.masked = False
        self.encoded: dict[str, Any] = {}  # states of an encoder, which each call is given
        self.drawn = 0
        self.gap = 0.0
        self.uncached_gap = 0.0  # of the same calls without a cache
        self.padding_gap = 0.0  # of the same calls without a cache, from cold
        self.limit = ""  # that the library documents
        self.place = ""  # of the first cache content that is not the cold one's

    def play(self, script: list[Step]) -> None:
        with changes.patched(self.model, self.remedies):
            for name, *given in script:
                if self.cache is None and name not in ("cache", "rows", "pad", "right", "encoder"):
                    self.cache = self.new("dynamic")
                if name in METHODS and not hasattr(self.cache, METHODS[name]):
                    raise AbsentError(f"{type(self.cache).__name__} has no {METHODS[name]}")
                getattr(self, f"do_{name}")(*given)
                if REBUILT in self.remedies and name in CHANGES:
                    self.cache = self.new("dynamic")
                    if self.widths:
                        self._call(self._padded(), self.widths)
                    if self.recording:
                        self.cache.activate_past_recording()

    def is_right(self) -> bool:
        """True if logits are the uncached ones, or those of the same calls without a cache."""
        return self.gap <= WRONG or self.uncached_gap < RIGHT

    # -- the cache ---------------------------------------------------------------------------------

    def new(self, kind: str) -> Real:
        config = self.model.config
        if self.own_cache:
            return None  # the model makes it
        if UNLIMITED in self.remedies:
            return library.DynamicCache()
        if kind == "static" and DYNAMIC not in self.remedies:
            return library.StaticCache(config, max_cache_len=64)
        if kind == "offloaded":
            return library.DynamicCache(config=config, offloading=True)
        if kind == "crossed":
            return library.EncoderDecoderCache(
                library.DynamicCache(config=config), library.DynamicCache(config=config)
            )
        if kind in ("fp8", "grouped") and DYNAMIC not in self.remedies:
            return changes.quantised(config, kind)
        if kind in ROUNDED and DYNAMIC not in self.remedies:
            return parts.cache(config, kind)
        return library.DynamicCache(config=config)

    def do_cache(self, kind: str) -> None:
        if kind in ROUNDED:
            self.replay = parts.Replay(self, kind)
        self.cache = self.new(kind)

    def do_near(self) -> None:
        """The first layer's keys are off by no more than a rounding."""
        if not self.replay.is_near():
            self.gap = self.uncached_gap = INFINITE

    def do_encoder(self, count: int) -> None:
        """States of an encoder: drawn ones, the same in each call."""
        config = self.model.config
        size = getattr(config, "hidden_size", None) or getattr(config, "d_model", 0)
        if "encoder_hidden_states" not in inspect.signature(self.model.forward).parameters:
            raise AbsentError(f"{type(self.model).__name__} takes no encoder_hidden_states")
        source = torch.Generator().manual_seed(5)
        self.encoded = {"encoder_hidden_states": torch.randn(1, count, size, generator=source)}

    def do_rows(self, count: int) -> None:
        self.rows = self.rows * count

    def do_pad(self, *lengths: int, right: bool = False) -> None:
        """Prefill a batch of rows of several lengths, padded on the left, or on the right.

        0 0 a a a      length 3;      a a a 0 0 c      where c is fed later
        b b b b b      length 5       b b b b b d
        """
        self.cache = self.new("dynamic")
        self.rows = [tokens(20 + row, count) for row, count in enumerate(lengths)]
        self.widths = max(lengths)
        self.on_right = [range(length, self.widths) for length in lengths] if right else []
        self._compare(self._ends(self._feed(self._padded()), 1), 1)

    do_right = partialmethod(do_pad, right=True)

    @property
    def _padding(self) -> list[range]:
        return self.on_right or [range(self.widths - row.shape[1]) for row in self.rows]

    def _padded(self) -> Real:
        return torch.cat(
            [
                torch.cat(
                    [row[:, : hole.start], row.new_zeros(1, len(hole)), row[:, hole.start :]], 1
                )
                for row, hole in zip(self.rows, self._padding, strict=True)
            ]
        )

    def _ends(self, logits: Real, count: int) -> Real:
        """Logits of the last tokens of each row, where padding may come after them."""
        after = [
            len(hole)
            if hole.start and hole.stop == self.widths and ALONE not in self.remedies
            else 0
            for hole in self._padding
        ]
        ends = [logits.shape[1] - padding for padding in after]
        return torch.stack([row[end - count : end] for row, end in zip(logits, ends, strict=True)])

    def do_record(self) -> None:
        self.cache.activate_past_recording()
        self.recording = True

    def do_crop(self, length: int) -> None:
        """Crop: a negative length drops the last tokens, another keeps the first."""
        croppable = getattr(self.cache, "is_croppable", True)
        self.cache.crop(length)
        if not croppable:
            self.limit = "is_croppable is False"
        self.rows = [row[:, :length] if length else row[:, :0] for row in self.rows]
        self.widths = self.rows[0].shape[1]

    def do_mask(self) -> None:
        self.masked = True

    def do_other(self, count: int) -> None:
        cache = {self.key: self.new("dynamic")}
        self.model(tokens(7, count), use_cache=True, **cache, **self.encoded)

    def do_try(self, length: int) -> None:
        """A crop; one that is refused should have changed nothing."""
        try:
            self.do_crop(length)
        except Exception as error:
            if not parts.is_clear(error):
                raise

    def do_reset(self) -> None:
        self.cache.reset()
        self.rows = [row[:, :0] for row in self.rows]
        self.widths = 0

    def do_fork(self) -> None:
        """Feed a copy of the cache; later tokens of the original must not affect it."""
        original, rows, widths = self.cache, self.rows, self.widths
        self.cache = copy.deepcopy(original)
        self.do_feed(3)
        self.cache, self.rows, self.widths = original, rows, widths

    def do_reorder(self, *order: int) -> None:
        self.cache.reorder_cache(torch.tensor(order))
        self.rows = [self.rows[row] for row in order]

    def do_select(self, *order: int) -> None:
        if REORDER in self.remedies:
            self.cache.reorder_cache(torch.tensor(order))
        else:
            self.cache.batch_select_indices(torch.tensor(order))
        self.rows = [self.rows[row] for row in order]

    def do_repeat(self, count: int) -> None:
        self.cache.batch_repeat_interleave(count)
        self.rows = [row for row in self.rows for _ in range(count)]

    # -- tokens ------------------------------------------------------------------------------------

    def _more(self, count: int) -> Real:
        self.drawn += 1
        return tokens(100 + self.drawn, count, len(self.rows))

    def do_feed(self, count: int) -> None:
        more = self._more(count)
        self.rows = [torch.cat([row, more[at : at + 1]], 1) for at, row in enumerate(self.rows)]
        self.widths += count
        self._compare(self._feed(more)[:, -count:], count)

    def _feed(self, ids: Real) -> Real:
        count = ids.shape[1]
        if ALONE in self.remedies:
            # Logits of the last tokens of each row, fed to a cache of its own.
            found = []
            for row in self.rows:
                own, new = self.new("dynamic"), min(count, row.shape[1])
                for part in row.split([row.shape[1] - new, new], 1):
                    if part.shape[1]:
                        out = self.model(part, use_cache=True, **{self.key: own})
                        own = getattr(out, self.key) if self.own_cache else own
                logits = out.logits[:, -new:]
                found.append(torch.nn.functional.pad(logits, (0, 0, count - new, 0)))
            return torch.cat(found)
        if SINGLY in self.remedies and count < self.widths:
            ends = range(self.widths - count + 1, self.widths + 1)
            found = [self._call(ids[:, at : at + 1], end) for at, end in enumerate(ends)]
            return torch.cat(found, 1)
        return self._call(ids, self.widths)

    def _call(self, ids: Real, end: int) -> Real:
        given = self._batching(ids.shape[1], end)
        if NEW_MASK in self.remedies and "attention_mask" in given:
            given["attention_mask"] = given["attention_mask"][:, -ids.shape[1] :]
        if WHOLE_MASK in self.remedies and "attention_mask" in given:
            given["attention_mask"] = changes.whole_mask(given["attention_mask"], ids.shape[1])
        out = self.model(ids, use_cache=True, **{self.key: self.cache}, **given, **self.encoded)
        if self.own_cache:
            self.cache = getattr(out, self.key)
        return out.logits

    def _batching(self, count: int, end: int) -> dict[str, Any]:
        """Mask and positions of a batch with padding; without padding where they are asked for."""
        given: dict[str, Any] = {}
        starts, stops = torch.tensor([(hole.start, hole.stop) for hole in self._padding]).T
        columns = torch.arange(end)[None]
        mask = ((columns < starts[:, None]) | (columns >= stops[:, None])).long()
        padded = any(row.shape[1] != self.widths for row in self.rows)
        if padded or self.masked:
            given["attention_mask"] = mask
        if self.positions and (padded or POSITIONS in self.remedies):
            given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)[:, -count:]
        return given

    def cold(self, ids: Real) -> Real:
        """Logits of a row without a cache, computed once: they depend on the tokens alone."""
        known = str((ids.tolist(), [output.shape for output in self.encoded.values()]))
        if known not in self.colds:
            self.colds[known] = self.cold_model(ids, use_cache=False, **self.encoded).logits
        return self.colds[known]

    def _compare(self, got: Real, count: int) -> None:
        if self.replay is None:
            cold = torch.cat([self.cold(row)[:, -count:] for row in self.rows])
        else:
            cold = self.replay.cold(count)
        if self._measure(got, cold):
            given = self._batching(self.widths, self.widths)
            if "attention_mask" not in given:
                self.uncached_gap = INFINITE
                return
            same = self.cold_model(self._padded(), use_cache=False, **given).logits
            same = self._ends(same, count)
            self._uncached(got, same, cold)

    def _measure(self, got: Real, cold: Real) -> bool:
        if got.shape != cold.shape:
            raise AssertionError(f"{tuple(got.shape)} logits in place of {tuple(cold.shape)}")
        gap = distance(got, cold, cold)
        self.gap = max(self.gap, gap)
        if self.gap > WRONG and not self.place:
            self.place = self._first_difference()
        return gap > WRONG

    def _uncached(self, got: Real, same: Real, cold: Real) -> None:
        """Distance of wrong logits from those of the same calls without a cache."""
        self.uncached_gap = max(self.uncached_gap, distance(got, same, cold))
        self.padding_gap = max(self.padding_gap, distance(same, cold, cold))

    def _first_difference(self) -> str:
        """The first layer whose content is not that of a new cache after the same tokens."""
        if len({row.shape[1] for row in self.rows}) > 1 or self.cache is None or self.replay:
            return ""
        mine, self.cache = self.cache, self.new("dynamic")
        fresh = self.cache
        try:
            self._call(torch.cat(self.rows), self.widths)
        except Exception:
            return ""
        finally:
            self.cache = mine
        pairs = zip(getattr(mine, "layers", ()), getattr(fresh, "layers", ()), strict=False)
        for number, (one, other) in enumerate(pairs):
            theirs = dict(contents(other))
            for name, value in contents(one):
                if name in theirs and _differs(value, theirs[name]):
                    return f"layer {number}, {type(one).__name__}.{name}"
        return ""

    # -- generate ----------------------------------------------------------------------------------

    def do_generate(self, more: int, how: str) -> None:
        """A further turn; afterwards the cache holds all tokens but the last one."""
        held = torch.cat(self.rows)
        ids = (
            torch.cat([held, self._more(more)], 1) if more > 0 else held[:, : held.shape[1] + more]
        )
        if {SHORTER, CALLS}.intersection(self.remedies) and more <= 0:
            self.cache = self.new("dynamic")
            self.rows, self.widths = [ids[:, :-1]], ids.shape[1] - 1
            self._call(ids[:, :-1], self.widths)
        elif SINGLY in self.remedies and CALLS not in self.remedies and self.widths and more > 1:
            for at in range(self.widths, ids.shape[1] - 1):
                self._call(ids[:, at : at + 1], at + 1)
        given = self._manner(how)
        if how == "plain" and not (self.own_cache and self.cache is None):
            given[self.key] = self.cache
        elif UNLIMITED in self.remedies and how != "static":
            given[self.key] = self.new("dynamic")
        if CALLS in self.remedies and how == "plain":
            new = ids[:, self.widths :]
            self.rows, self.widths = [ids], ids.shape[1]
            logits = self._by_calls(new)
            sequences = torch.cat(self.rows)
        else:
            out = self.generate(self.model, ids, use_cache=True, **given)
            sequences = out.sequences
            if self.own_cache:
                self.cache = getattr(out, self.key, None)
            logits = out.sequences_scores if how == "beams" else torch.stack(out.logits, 1)
        if how == "beams":
            given.pop(self.key, None)
            cold = self.generate(self.cold_model, ids, use_cache=False, **given)
            if self._measure(logits, cold.sequences_scores):
                self.uncached_gap = INFINITE
            return
        whole, cold = self._greedy(ids)
        if sequences.shape != whole.shape:
            msg = f"{tuple(sequences.shape)} tokens in place of {tuple(whole.shape)}"
            raise AssertionError(msg)
        if how == "plain":
            self.rows = [row[None, :-1] for row in sequences]
            self.widths = self.rows[0].shape[1]
        if self._measure(logits, cold):
            plain = self.generate(self.cold_model, ids, use_cache=False, output_logits=True)
            self._uncached(logits, torch.stack(plain.logits, 1), cold)

    def _by_calls(self, new: Real) -> Real:
        """Logits of `generate` by calls of the model; the rows have its tokens then."""
        logits = []
        for _ in range(NEW):
            logits.append(self._feed(new)[:, -1])
            new = logits[-1].argmax(-1, keepdim=True)
            self.rows = [torch.cat([row, new[at : at + 1]], 1) for at, row in enumerate(self.rows)]
            self.widths += 1
        return torch.stack(logits, 1)

    def do_batch(self, *lengths: int) -> None:
        """`generate` on a batch with padding, as `pad` makes it."""
        self.rows = [tokens(20 + row, count) for row, count in enumerate(lengths)]
        self.widths = max(lengths)
        ids, given = self._padded(), self._batching(self.widths, self.widths)
        mask = given["attention_mask"]
        cold = torch.cat([self._greedy(row)[1] for row in self.rows])
        if {CALLS, ALONE}.intersection(self.remedies):
            self.cache = self.new("dynamic")
            self._measure(self._by_calls(ids), cold)
            return
        cache = {} if self.own_cache else {self.key: self.new("dynamic")}
        out = self.generate(
            self.model, ids, use_cache=True, attention_mask=mask, output_logits=True, **cache
        )
        if self._measure(torch.stack(out.logits, 1), cold):
            same = self.generate(
                self.cold_model, ids, use_cache=False, attention_mask=mask, output_logits=True
            )
            self._uncached(torch.stack(out.logits, 1), torch.stack(same.logits, 1), cold)

    def generate(self, model: Real, ids: Real, **given: Any) -> Real:
        """Result of greedy `generate`."""
        return model.generate(
            ids,
            **{"attention_mask": torch.ones_like(ids), **given},
            max_new_tokens=NEW,
            do_sample=False,
            return_dict_in_generate=True,
            disable_compile=True,
        )

    def do_paged(self, *lengths: int) -> None:
        """Prompts that begin alike, one after another, so that later ones find blocks."""
        with self._batching_continuously() as manager:
            for length in lengths:
                ids = tokens(20, max(lengths))[:, :length]
                self._measure_tokens(ids, manager.tokens_of(manager.add(ids)))

    def do_packed(self, *lengths: int, scarce: bool = False) -> None:
        """Prompts that have nothing in common, all at once, so that they share batches."""
        prompts = [tokens(20 + row, length) for row, length in enumerate(lengths)]
        with self._batching_continuously(scarce=scarce) as manager:
            names = [manager.add(ids) for ids in prompts]
            for ids, name in zip(prompts, names, strict=True):
                self._measure_tokens(ids, manager.tokens_of(name))
        if scarce and not manager.moved:
            raise AbsentError("no request was offloaded")

    do_offloaded = partialmethod(do_packed, scarce=True)

    def _batching_continuously(self, *, scarce: bool = False) -> Real:
        if not parts.is_there(offloads=scarce):
            raise AbsentError("no ContinuousBatchingConfig, or none that offloads")
        how = {"sharing": UNSHARED not in self.remedies, "scarce": scarce}
        return parts.manager(copy.deepcopy(self.model), NEW, **how)

    def _measure_tokens(self, ids: Real, got: list[int]) -> None:
        """The first other token is as wrong as the uncached logits prefer theirs to it."""
        whole, logits = self._greedy(ids)
        cold = whole[0, -NEW:].tolist()
        if len(got) != len(cold):
            raise AssertionError(f"{len(got)} tokens in place of {len(cold)}")
        for at, (mine, theirs) in enumerate(zip(got, cold, strict=True)):
            if mine != theirs:
                margin = (logits[0, at, theirs] - logits[0, at, mine]) / logits.std()
                self.gap = max(self.gap, float(margin))
                plain = self.generate(self.cold_model, ids, use_cache=False).sequences
                if got != plain[0, -NEW:].tolist():
                    self.uncached_gap = INFINITE
                return

    def _manner(self, how: str) -> dict[str, Any]:
        if how == "beams":
            # no token twice, and all three: else a best beam may never move
            beams = {"num_beams": 3, "num_return_sequences": 3, "no_repeat_ngram_size": 1}
            return beams | {"output_scores": True}
        manner: dict[str, Any] = {"output_logits": True}
        if how == "chunks":
            manner["prefill_chunk_size"] = 1 if SINGLY in self.remedies else 5
        elif how in ("static", "offloaded") and UNLIMITED in self.remedies:
            manner[self.key] = self.new("dynamic")
        elif how in ("static", "offloaded") and DYNAMIC not in self.remedies:
            manner["cache_implementation"] = how
        elif how == "mtp":
            if not changes.give_mtp(self.model):
                raise AbsentError("no num_mtp_layers")
            manner["use_mtp"] = True
        elif how == "lookup":
            manner |= {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 2}
        elif how == "assisted":
            manner["assistant_model"] = changes.assistant_of(self.model)
        return manner

    def _greedy(self, ids: Real) -> tuple[Real, Real]:
        logits = []
        for _ in range(NEW):
            logits.append(self.cold(ids)[:, -1])
            ids = torch.cat([ids, logits[-1].argmax(-1, keepdim=True)], 1)
        return ids, torch.stack(logits, 1)


def contents(layer: Real) -> Iterator[tuple[str, Real]]:
    """Keys, values and states of a layer's cache."""
    for name, value in vars(layer).items():
        held = value.items() if isinstance(value, dict) else [("", value)]
        for key, part in held:
            if isinstance(part, torch.Tensor) and part.is_floating_point() and part.dim() > 1:
                yield f"{name}[{key}]" if key != "" else name, part


def distance(one: Real, other: Real, cold: Real) -> float:
    """The largest distance of two results, in deviations of the uncached one."""
    spread = float(cold.double().std()) if cold.numel() > 1 else 1.0
    far = (one.double() - other.double()).abs().nan_to_num(1e9).max()
    return float(far) / spread


def _differs(one: Real, other: Real) -> bool:
    if one.dim() != other.dim():
        return False
    both = tuple(
        slice(-min(mine, theirs), None) for mine, theirs in zip(one.shape, other.shape, strict=True)
    )
    return bool((one[both] - other[both]).abs().nan_to_num(1e9).max() > RIGHT)


def is_causal(play: Play) -> bool:
    """True if uncached logits do not depend on later tokens, and are the same twice."""
    ids = tokens(1, 30)
    whole, again, *cut = (
        play.cold_model(ids[:, :n], use_cache=False).logits for n in (30, 30, 3, 7, 12, 19, 25)
    )
    return torch.equal(whole, again) and all(
        float((part[:, -1] - whole[:, part.shape[1] - 1]).abs().max()) < RIGHT * 100 for part in cut
    )


class Family:
    """A model, and the results of scripts on it."""

    last: "tuple[Any, Family] | None" = None

    @classmethod
    def of(cls, kind: str, fields: dict[str, Any], attention: str) -> "Family":
        """The family's model; the last one is kept."""
        if cls.last is None or cls.last[0] != (kind, attention):
            cls.last = ((kind, attention), cls(kind, fields, attention))
        return cls.last[1]

    def __init__(self, kind: str, fields: dict[str, Any], attention: str) -> None:
        self.model = tiny.model_of(kind, fields, attention)
        self.pristine = copy.deepcopy(self.model)  # what is run is a copy: no module has a state
        names = inspect.signature(self.model.forward).parameters
        module: Any = inspect.getmodule(type(self.model))
        self.key = next((key for key in KEYS if key in names), "")
        self.key = self.key or next((key for key in KEYS if self._fills(key)), "")
        self.positions = "position_ids" in names
        self.own_cache, self.colds = False, dict[str, Real]()
        if self.key:
            held = getattr(self.model(tokens(1, 2), use_cache=True), self.key, None)
            classes = (member for member in vars(module).values() if isinstance(member, type))
            own = (member.__name__ for member in classes if member.__module__ == module.__name__)
            if held is None and any("Cache" in name for name in own):
                msg = f"{type(self.model).__name__} makes no cache where it is given none"
                raise AbsentError(msg)
            kinds = (library.DynamicCache, library.EncoderDecoderCache)
            self.own_cache = held is not None and type(held) not in kinds
        self.replaceable = "ALL_ATTENTION_FUNCTIONS" in inspect.getsource(module)

    def _fills(self, key: str) -> bool:
        """True if a call fills a cache that it takes among other keywords."""
        cache = library.DynamicCache(config=self.model.config)
        try:
            self.model(tokens(1, 2), use_cache=True, **{key: cache})
        except Exception:
            return False
        return any(True for layer in cache.layers for _ in contents(layer))

    def result(self, script: list[Step]) -> dict[str, Any]:
        """The verdict of a script; of a wrong one with its cause."""
        play = self.play()
        try:
            parts.limited(lambda: play.play(script))
        except AbsentError as error:
            return {"verdict": "absent", "error": str(error)}
        except Exception as error:
            verdict = "refused" if parts.is_clear(error) else "crash"
            return {"verdict": verdict, **parts.about(error)}
        facts: dict[str, Any] = {"gap": play.gap, "place": play.place}
        if play.gap <= WRONG:
            return {"verdict": "right" if play.gap < SINGLE else "unclear", **facts}
        if play.is_right():
            return {"verdict": "limit", "cause": "the same without a cache", **facts}
        cause = self.cause(script)
        layers = {type(layer).__name__ for layer in getattr(play.new(""), "layers", ())}
        if play.on_right and len(script) > 1 and layers != {"DynamicLayer"}:
            return {"verdict": "limit", "cause": "tokens after padding on the right", **facts}
        if cause == ALONE and play.padding_gap > WRONG:
            return {"verdict": "limit", "cause": "padding changes it without a cache too", **facts}
        if play.limit and cause in ("", REBUILT, DYNAMIC, UNLIMITED):  # with no cache that is so
            return {"verdict": "limit", "cause": play.limit, **facts}
        return {"verdict": "wrong", "cause": cause, **facts}

    def play(self, remedies: tuple[str, ...] = ()) -> Play:
        """A new run on a new copy of the model."""
        models = (copy.deepcopy(self.pristine), self.model)
        play = Play(models, self.key, positions=self.positions, remedies=remedies)
        play.own_cache, play.colds = self.own_cache, self.colds
        return play

    def cause(self, script: list[Step]) -> str:
        """The first remedies with which a script is right; empty if there are none."""
        steps = {name for name, *_ in script}
        for remedies, applies in REMEDIES.items():
            if steps.intersection(applies):
                play = self.play(remedies)
                try:
                    parts.limited(partial(play.play, script))
                except Exception:  # noqa: S112 - it is no remedy
                    continue
                if play.is_right():
                    return ", ".join(remedies)
        if steps & {"paged", "packed"} and not self.replaceable:
            return "attention of its own, which is not replaced by the paged one"
        if steps & {"paged", "packed"} and not self.positions:
            return "positions of its own, which do not follow those of the packed prompts"
        return ""


def answer(order: dict[str, Any]) -> dict[str, Any]:
    """The results of a family's scripts; `unbuilt` with the reason where it has no model."""
    found: dict[str, Any] = {}
    try:
        fields = tiny.fields_of(order["family"])
        found["fields"] = tiny.without_defaults(order["family"], fields)
        family = parts.limited(lambda: Family.of(order["family"], fields, order["attention"]))
        if not family.key:
            return {"unbuilt": "its forward pass takes no cache"}
        play = family.play()
        found |= {"key": family.key, "own": family.own_cache, "positions": family.positions}
        found["layers"] = [type(layer).__name__ for layer in getattr(play.new(""), "layers", ())]
        found["causal"] = parts.limited(lambda: is_causal(play))
    except Exception as error:
        return {"unbuilt": parts.about(error)["error"]}
    if found["causal"]:
        found["results"] = [family.result(script) for script in order["scripts"]]
    return found


def load() -> None:
    """Import packages of the release's environment, and the modules beside this one."""
    global torch, library, changes, parts, tiny
    torch, library, changes, parts, tiny = (
        importlib.import_module(name)
        for name in ("torch", "transformers", "patches_worker", "parts_worker", "tiny_worker")
    )


def main() -> None:
    """Answer orders until the input ends; the library's output goes to standard error."""
    out, sys.stdout = sys.stdout, sys.stderr
    load()
    auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")
    library.logging.set_verbosity_error()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    tiny.keep_double()
    changes.keep_streams_out()
    gc.freeze()  # what was imported stays, and is not looked through again
    for line in sys.stdin:
        order = json.loads(line)
        if order.get("import"):
            importlib.import_module(order["import"])
        if order.get("families"):
            found: Any = sorted(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        else:
            found = answer(order)
        out.write(json.dumps(found) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
