"""Runs scripts of cache operations on a release's models; a process of its own.

A line of JSON {"family", "scripts"} comes in; a line {"fields", "layers", "results"} goes out. A
script is a list of steps, each with its arguments:

    ["cache", "static"]     the class of the cache; the first step, else it is dynamic
    ["rows", 3]             a batch; ["pad", 14, 9, 5] one with padding on the left
    ["feed", 5]             new tokens, whose logits are compared with the cold ones
    ["crop", -3]            and ["record"], ["reset"], ["fork"]
    ["reorder", 2, 0, 1]    the same with "select"; ["repeat", 3]
    ["generate", 4, "plain"] a further turn by `generate`, of so many new tokens; with 0 the prompt
                            is what the cache holds, with less it is shorter. "plain" is given
                            the cache; the last step may have another manner and no cache

Cold is the same model's `use_cache=False` over all tokens of each row, without padding.
"""

import copy
import importlib
import json
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
Real = Any  # modules and objects of the release: known only when it runs
Step = list[Any]

SECONDS = 25
"""Time of one script."""

MEMORY = 12 << 30
"""Bytes of address space: a model whose sizes are not all known here is refused, not built."""

NEW = 6
"""Tokens that `generate` adds."""

RIGHT, WRONG = 1e-6, 1e-3
"""Largest distance of right logits and smallest of wrong ones, in deviations of the cold logits."""

torch: Any = None


class Timeout(Exception):  # noqa: N818 - it ends a script
    """A script took too long."""


def tokens(seed: int, count: int, rows: int = 1) -> Real:
    """Drawn tokens; the same ones for a seed."""
    source = torch.Generator().manual_seed(seed)
    return torch.randint(2, 100, (rows, count), generator=source)


class Play:
    """One script on one model: what was fed, row by row, and the cache."""

    def __init__(self, model: Real, key: str, *, positions: bool) -> None:
        self.model, self.key, self.positions = model, key, positions
        self.rows: list[Real] = [torch.zeros(1, 0, dtype=torch.long)]  # tokens of each, unpadded
        self.widths = 0  # of the batch, with padding
        self.cache: Real = None
        self.static = False
        self.drawn = 0
        self.gap = 0.0
        self.place = ""  # of the first cache content that is not the cold one's

    def play(self, script: list[Step]) -> None:
        for name, *given in script:
            if self.cache is None and name not in ("cache", "rows", "pad"):
                self.cache = self.new("dynamic")
            getattr(self, f"do_{name}")(*given)

    # -- the cache ---------------------------------------------------------------------------

    def new(self, kind: str) -> Real:
        library: Any = importlib.import_module("transformers")
        config = self.model.config
        if kind == "static":
            return library.StaticCache(config, max_cache_len=64)
        if kind == "offloaded":
            return library.DynamicCache(config=config, offloading=True)
        return library.DynamicCache(config=config)

    def do_cache(self, kind: str) -> None:
        self.cache = self.new(kind)

    def do_rows(self, count: int) -> None:
        self.rows = self.rows * count

    def do_pad(self, *lengths: int) -> None:
        """Prefill a batch of rows of several lengths, padded on the left.

        0 0 a a a      length 3
        b b b b b      length 5
        """
        self.cache = self.new("dynamic")
        self.rows = [tokens(20 + row, count) for row, count in enumerate(lengths)]
        self.widths = max(lengths)
        wide = [torch.nn.functional.pad(row, (self.widths - row.shape[1], 0)) for row in self.rows]
        logits = self._feed(torch.cat(wide))
        self._compare(logits[:, -1:], 1)

    def do_record(self) -> None:
        self.cache.activate_past_recording()

    def do_crop(self, length: int) -> None:
        """Of a negative length the last tokens go, else the first ones stay."""
        self.cache.crop(length)
        self.rows = [row[:, :length] if length else row[:, :0] for row in self.rows]
        self.widths = self.rows[0].shape[1]

    def do_reset(self) -> None:
        self.cache.reset()
        self.rows = [row[:, :0] for row in self.rows]
        self.widths = 0

    def do_fork(self) -> None:
        """Feed a copy of the cache; what is fed to the original later must not show in it."""
        original, rows, widths = self.cache, self.rows, self.widths
        self.cache = copy.deepcopy(original)
        self.do_feed(3)
        self.cache, self.rows, self.widths = original, rows, widths

    def do_reorder(self, *order: int) -> None:
        self.cache.reorder_cache(torch.tensor(order))
        self.rows = [self.rows[row] for row in order]

    def do_select(self, *order: int) -> None:
        self.cache.batch_select_indices(torch.tensor(order))
        self.rows = [self.rows[row] for row in order]

    def do_repeat(self, count: int) -> None:
        self.cache.batch_repeat_interleave(count)
        self.rows = [row for row in self.rows for _ in range(count)]

    # -- tokens ------------------------------------------------------------------------------

    def _more(self, count: int) -> Real:
        self.drawn += 1
        return tokens(100 + self.drawn, count, len(self.rows))

    def do_feed(self, count: int) -> None:
        more = self._more(count)
        self.rows = [torch.cat([row, more[at : at + 1]], 1) for at, row in enumerate(self.rows)]
        self.widths += count
        self._compare(self._feed(more)[:, -count:], count)

    def _feed(self, ids: Real) -> Real:
        given: dict[str, Any] = {}
        if any(row.shape[1] != self.widths for row in self.rows):
            spaces = torch.arange(self.widths)
            mask = torch.stack([(spaces >= self.widths - row.shape[1]).long() for row in self.rows])
            given["attention_mask"] = mask
            if self.positions:
                given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return self.model(ids, use_cache=True, **{self.key: self.cache}, **given).logits

    def cold(self, ids: Real) -> Real:
        return self.model(ids, use_cache=False).logits

    def _compare(self, got: Real, count: int) -> None:
        cold = torch.cat([self.cold(row)[:, -count:] for row in self.rows])
        self._measure(got, cold)

    def _measure(self, got: Real, cold: Real) -> None:
        if got.shape != cold.shape:
            msg = f"{tuple(got.shape)} logits in place of {tuple(cold.shape)}"
            raise AssertionError(msg)
        spread = float(cold.double().std()) if cold.numel() > 1 else 1.0
        far = (got.double() - cold.double()).abs().nan_to_num(1e9).max()
        self.gap = max(self.gap, float(far) / spread)
        if self.gap > WRONG and not self.place:
            self.place = self._first_difference()

    def _first_difference(self) -> str:
        """The first layer whose content is not that of a new cache after the same tokens."""
        if len({row.shape[1] for row in self.rows}) > 1 or self.cache is None:
            return ""
        mine, self.cache = self.cache, self.new("dynamic")
        fresh = self.cache
        try:
            self._feed(torch.cat(self.rows))
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

    # -- generate ----------------------------------------------------------------------------

    def do_generate(self, more: int, how: str) -> None:
        """A further turn; afterwards the cache holds all tokens but the last one."""
        held = torch.cat(self.rows)
        ids = (
            torch.cat([held, self._more(more)], 1) if more > 0 else held[:, : held.shape[1] + more]
        )
        given: dict[str, Any] = {"use_cache": True, **self._manner(how)}
        if how == "plain":
            given[self.key] = self.cache
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            do_sample=False,
            return_dict_in_generate=True,
            disable_compile=True,
            **given,
        )
        if how == "beams":
            del given["use_cache"]
            cold = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW,
                do_sample=False,
                return_dict_in_generate=True,
                disable_compile=True,
                use_cache=False,
                **given,
            )
            self._measure(out.sequences_scores, cold.sequences_scores)
            return
        whole, logits = self._greedy(ids)
        if out.sequences.shape != whole.shape:
            msg = f"{tuple(out.sequences.shape)} tokens in place of {tuple(whole.shape)}"
            raise AssertionError(msg)
        if how == "plain":
            self.rows = [row[None, :-1] for row in out.sequences]
            self.widths = self.rows[0].shape[1]
        self._measure(torch.stack(out.logits, 1), logits)

    def _manner(self, how: str) -> dict[str, Any]:
        if how == "beams":
            return {"num_beams": 3, "output_scores": True}
        manner: dict[str, Any] = {"output_logits": True}
        if how == "chunks":
            manner["prefill_chunk_size"] = 5
        elif how == "static":
            manner["cache_implementation"] = "static"
        elif how == "lookup":
            manner |= {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 2}
        elif how == "assisted":
            manner["assistant_model"] = self._assistant()
        return manner

    def _assistant(self) -> Real:
        """A model that is right now and then."""
        helper = copy.deepcopy(self.model)
        for weight in helper.parameters():
            source = torch.Generator().manual_seed(3)
            weight.add_(torch.randn(weight.shape, generator=source).to(weight) * 0.05)
        helper.generation_config.num_assistant_tokens = 4
        helper.generation_config.assistant_confidence_threshold = 0.0
        return helper

    def _greedy(self, ids: Real) -> tuple[Real, Real]:
        logits = []
        for _ in range(NEW):
            logits.append(self.cold(ids)[:, -1])
            ids = torch.cat([ids, logits[-1].argmax(-1, keepdim=True)], 1)
        return ids, torch.stack(logits, 1)


def contents(layer: Real) -> Iterator[tuple[str, Real]]:
    """Keys, values and states of a layer's cache."""
    for name, value in vars(layer).items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        for key, part in parts:
            if isinstance(part, torch.Tensor) and part.is_floating_point() and part.dim() > 1:
                yield f"{name}[{key}]" if key != "" else name, part


def _differs(one: Real, other: Real) -> bool:
    """True if the last positions, as many as both hold, are not equal."""
    if one.dim() != other.dim():
        return False
    both = tuple(
        slice(-min(mine, theirs), None) for mine, theirs in zip(one.shape, other.shape, strict=True)
    )
    return bool((one[both] - other[both]).abs().nan_to_num(1e9).max() > RIGHT)


def is_causal(play: Play) -> bool:
    """True if cold logits do not depend on later tokens, and are the same twice."""
    ids = tokens(1, 30)
    whole = play.cold(ids)
    if not torch.equal(whole, play.cold(ids)):
        return False
    return all(
        float((play.cold(ids[:, :n])[:, -1] - whole[:, n - 1]).abs().max()) < RIGHT * 100
        for n in (3, 7, 12, 19, 25)
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
        tiny: Any = importlib.import_module("tiny_worker")
        self.model = tiny.model_of(kind, fields, attention)
        inspect: Any = importlib.import_module("inspect")
        names = inspect.signature(self.model.forward).parameters
        keys = ("past_key_values", "cache_params")
        self.key = next((each for each in keys if each in names), "")
        self.positions = "position_ids" in names

    def result(self, script: list[Step]) -> dict[str, Any]:
        play = Play(self.model, self.key, positions=self.positions)
        try:
            limited(lambda: play.play(script))
        except Exception as error:
            return {"verdict": "refused" if is_clear(error) else "crash", **about(error)}
        verdict = "right" if play.gap < RIGHT else "wrong" if play.gap > WRONG else "unclear"
        return {"verdict": verdict, "gap": play.gap, "place": play.place}


def limited(call: Callable[[], T]) -> T:
    """The result of a function that takes some seconds at most."""

    def late(*_: object) -> None:
        msg = f"not done after {SECONDS} seconds"
        raise Timeout(msg)

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        return call()
    finally:
        signal.alarm(0)


def is_clear(error: Exception) -> bool:
    """True if the library itself raises, and with a message."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    raises = (frame.line or "").startswith("raise") and "transformers" in frame.filename
    return raises and bool(str(error))


def about(error: Exception) -> dict[str, str]:
    """The message, and the line that raises."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    file = frame.filename.split("site-packages/")[-1]
    return {
        "error": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}",
        "place": f"{file}:{frame.lineno}",
    }


def answer(order: dict[str, Any]) -> dict[str, Any]:
    """The results of a family's scripts; `unbuilt` with the reason where it has no model."""
    tiny: Any = importlib.import_module("tiny_worker")
    found: dict[str, Any] = {}
    try:
        fields = found["fields"] = tiny.fields_of(order["family"])
        family = limited(lambda: Family.of(order["family"], fields, order["attention"]))
        if not family.key:
            return {"unbuilt": "its forward pass takes no cache"}
        play = Play(family.model, family.key, positions=family.positions)
        found["key"] = family.key
        found["layers"] = [type(each).__name__ for each in getattr(play.new(""), "layers", ())]
        found["causal"] = limited(lambda: is_causal(play))
    except Exception as error:
        return {"unbuilt": about(error)["error"]}
    if found["causal"]:
        found["results"] = [family.result(each) for each in order["scripts"]]
    return found


def plant(name: str) -> None:
    """A bug in the library, for tests of the scripts."""
    utils: Any = importlib.import_module("transformers.cache_utils")
    if name == "crop":
        utils.DynamicLayer.crop = lambda *_: None
    elif name == "mask":
        sizes = utils.DynamicSlidingWindowLayer.get_mask_sizes

        def later(self: Real, *given: Real) -> tuple[int, int]:
            length, offset = sizes(self, *given)
            return length, offset + 1

        utils.DynamicSlidingWindowLayer.get_mask_sizes = later
    elif name == "states":
        utils.LinearAttentionLayer.reset = lambda *_: None
    elif name == "positions":
        whole = utils.Cache.get_seq_length
        utils.Cache.get_seq_length = lambda self, *at, **by: min(8, whole(self, *at, **by))


def main() -> None:
    """Answer orders until the input ends; what the library prints goes to standard error."""
    out, sys.stdout = sys.stdout, sys.stderr
    global torch  # noqa: PLW0603 - one module, imported late
    torch = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")
    transformers.logging.set_verbosity_error()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    importlib.import_module("tiny_worker").keep_double()
    for line in sys.stdin:
        order = json.loads(line)
        if "plant" in order:
            plant(order["plant"])
        if order.get("families"):
            found: Any = sorted(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        else:
            found = answer(order)
        out.write(json.dumps(found) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
