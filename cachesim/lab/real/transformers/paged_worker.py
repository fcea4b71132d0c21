"""Continuous batching on a model; imported by `script_worker` alone."""

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

Real = Any  # modules and objects of the release: known only when it runs


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
        return empty(*given, **{name: each for name, each in by.items() if name != "pin_memory"})

    def noted(self: Real, *given: Real) -> Real:
        found: Real = offload(self, *given)
        moved.extend(found)
        return found

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
