"""Parts of `script_worker`, which alone imports them: limits, continuous batching, rounding caches.

What rounding leaves of an answer is documented, so that a script's logits are compared with those
of another cache of the kind, to which each row's tokens were fed in the same pieces. Of that cache
the first layer's keys, which depend on no other layer, are compared with exact ones (`near`).
"""

import importlib
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T")
Real = Any  # modules and objects of the release: known only when it runs

# -- limits of a script: its time and its errors --------------------------------------------------

PACKAGE = "site-packages/transformers/"

SECONDS = 25
"""Processor time of one script; ten times that on the clock, for threads that wait."""

CLOCKS = (
    (signal.ITIMER_PROF, signal.SIGPROF, SECONDS),
    (signal.ITIMER_REAL, signal.SIGALRM, 10 * SECONDS),
)


class Timeout(Exception):  # noqa: N818 - it ends a script
    """A script took too long."""


def limited(call: Callable[[], T]) -> T:
    """The result of a function that takes some seconds at most."""

    def late(*_: object) -> None:
        raise Timeout(f"not done after {SECONDS} seconds")

    for clock, sign, seconds in CLOCKS:
        signal.signal(sign, late)
        signal.setitimer(clock, seconds)
    try:
        return call()
    finally:
        for clock, *_ in CLOCKS:
            signal.setitimer(clock, 0)


def is_clear(error: Exception) -> bool:
    """True if the library itself raises, and with a message."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    raises = (frame.line or "").startswith("raise") and PACKAGE in frame.filename
    return raises and bool(str(error))


def about(error: Exception) -> dict[str, str]:
    """The message and the line that raises; a file outside packages is named without a folder."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    _, installed, file = frame.filename.rpartition("site-packages/")
    file = file if installed else Path(file).name
    return {
        "error": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}",
        "place": f"{file}:{frame.lineno}",
    }


# -- continuous batching on a model ---------------------------------------------------------------

BATCHING = "transformers.generation.continuous_batching"
OFFLOADING = "cpu_offload_space"


def is_there(*, offloads: bool) -> bool:
    """True if the release batches continuously, with a configuration; `offloads`: to the CPU."""
    library: Any = importlib.import_module("transformers")
    settings: Any = getattr(library, "ContinuousBatchingConfig", None)
    return settings is not None and (not offloads or hasattr(settings, OFFLOADING))


@contextmanager
def manager(model: Real, new: int, *, sharing: bool, scarce: bool) -> Iterator["Batching"]:
    """A started manager of small pages, stopped at the end; `scarce`: some have to be offloaded."""
    library: Any = importlib.import_module("transformers")
    settings = library.ContinuousBatchingConfig
    page = "page_size" if hasattr(settings, "page_size") else "block_size"  # before 5.18
    started = model.init_continuous_batching(
        generation_config=library.GenerationConfig(
            max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=settings(
            **{page: 4},
            num_blocks=12 if scarce else 64,
            max_batch_tokens=32,
            use_cuda_graph=False,
            allow_block_sharing=sharing,
            **({OFFLOADING: 2**-10} if scarce else {}),
        ),
    )
    noting: AbstractContextManager[list[Real]] = _offloading() if scarce else nullcontext([])
    with noting as moved:
        started.start()
        try:
            yield Batching(started, new, moved)
        finally:
            started.stop(block=True, timeout=5)


@contextmanager
def _offloading() -> Iterator[list[Real]]:
    """Memory that is not pinned, for which an accelerator is needed; yields what is offloaded."""
    torch: Any = importlib.import_module("torch")
    offloading: Any = importlib.import_module(f"{BATCHING}.offloading_manager")
    empty, kind = torch.empty, offloading.OffloadingManager
    offload, moved = kind._offload_to_cpu, list[Real]()

    def unpinned(*given: Real, **by: Real) -> Real:
        return empty(*given, **{name: value for name, value in by.items() if name != "pin_memory"})

    def noted(self: Real, *given: Real) -> Real:
        offloaded: Real = offload(self, *given)
        moved.extend(offloaded)
        return offloaded

    with patch.object(torch, "empty", unpinned), patch.object(kind, "_offload_to_cpu", noted):
        yield moved


class Batching:
    """Requests of a manager."""

    def __init__(self, manager: Real, new: int, moved: list[Real]) -> None:
        self.manager, self.new, self.moved = manager, new, moved

    def add(self, ids: Real) -> str:
        return str(self.manager.add_request(ids[0].tolist(), max_new_tokens=self.new))

    def tokens_of(self, name: str) -> list[int]:
        """Generated tokens of a request; AssertionError if generation ends."""
        while True:
            running = self.manager.is_running()  # before: a thread that ends leaves its error
            result = self.manager.get_result(request_id=name, timeout=1)
            if result is not None and result.is_finished():
                error = result.error
                break
            if not running:  # it ended before it took the request
                status = getattr(self.manager, "background_thread_status", None)
                error = str(getattr(status, "fatal_error", None) or "continuous batching ended")
                break
        if error:
            raise AssertionError(error)
        return list(result.generated_tokens)


# -- quantised caches that round, with their backends ---------------------------------------------

SMALL = {"q_group_size": 4, "residual_length": 4}  # divides each size of a tiny head
SETTINGS: dict[str, dict[str, int]] = {
    "quanto": {"nbits": 4} | SMALL,
    # The axes that the documentation recommends; with fewer bits HQQ stops its search for scales
    # by the error of all rows, so that a row's keys depend on the others.
    "hqq": {"nbits": 8, "axis_key": 1, "axis_value": 1} | SMALL,
}
NEAR = 0.5
"""Largest distance of a rounded key from the exact one, in deviations; 4 bits round by 0.2."""


def cache(config: Real, kind: str) -> Real:
    """A cache that rounds; the library refuses windows and states."""
    utils: Any = importlib.import_module("transformers.cache_utils")
    if kind == "quanto" and utils.is_optimum_quanto_available():
        _unpack_in_python()
    return utils.QuantizedCache(kind, config, **SETTINGS[kind])


def _unpack_in_python() -> None:
    """Unpack quanto's bits without the function for a CPU, which is compiled at its first use."""
    torch: Any = importlib.import_module("torch")
    extensions: Any = importlib.import_module("optimum.quanto.library.extensions")

    def unpack(packed: Real, bits: int) -> Real:
        return torch.cat([(packed >> at) & (2**bits - 1) for at in range(0, 8, bits)])

    extensions.get_extension("quanto_cpp")._lib = SimpleNamespace(unpack=unpack)


class Replay:
    """A second cache of the kind, given the same tokens in the same pieces."""

    def __init__(self, play: Real, kind: str) -> None:
        self.play, self.kind = play, kind
        self.ends: list[int] = []  # of the pieces

    def cold(self, count: int) -> Real:
        """Logits of the last tokens, which are one piece."""
        end = self.play.widths
        kept = [
            earlier for earlier in self.ends if earlier < end - count
        ]  # the others were cropped
        self.ends = [*kept, *([end - count] if end > count else []), end]
        mine, self.play.cache = self.play.cache, self.play.new(self.kind)
        try:
            start, ids = 0, importlib.import_module("torch").cat(self.play.rows)
            for stop in self.ends:
                logits = self.play._call(ids[:, start:stop], stop)
                start = stop
        finally:
            self.play.cache = mine
        return logits

    def is_near(self) -> bool:
        """True if the first layer's keys are the exact ones, but for the rounding."""
        exact = self.play.new("dynamic")
        ids = importlib.import_module("torch").cat(self.play.rows)
        self.play.model(ids, use_cache=True, **{self.play.key: exact})
        [layer, own] = exact.layers[0], self.play.cache.layers[0]
        keys, _ = own.update(layer.keys[..., :0, :], layer.values[..., :0, :])
        far = (keys.double() - layer.keys.double()).abs().nan_to_num(1e9).max()
        return bool(far < NEAR * layer.keys.double().std())
