"""Continuous batching on a model; imported by `script_worker` alone."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Real = Any  # modules and objects of the release: known only when it runs


def is_there() -> bool:
    """True if the release batches continuously, with a configuration."""
    library: Any = importlib.import_module("transformers")
    return hasattr(library, "ContinuousBatchingConfig")


@contextmanager
def manager(model: Real, new: int, *, sharing: bool) -> Iterator["Batching"]:
    """A started manager of small pages, stopped at the end."""
    library: Any = importlib.import_module("transformers")
    settings = library.ContinuousBatchingConfig
    page = "page_size" if hasattr(settings, "page_size") else "block_size"  # before 5.18
    started = model.init_continuous_batching(
        generation_config=library.GenerationConfig(
            max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=settings(
            **{page: 4},
            num_blocks=64,
            max_batch_tokens=32,
            use_cuda_graph=False,
            allow_block_sharing=sharing,
        ),
    )
    started.start()
    try:
        yield Batching(started, new)
    finally:
        started.stop(block=True, timeout=5)


class Batching:
    """Requests of a manager."""

    def __init__(self, manager: Real, new: int) -> None:
        self.manager, self.new = manager, new

    def add(self, ids: Real) -> str:
        return str(self.manager.add_request(ids[0].tolist(), max_new_tokens=self.new))

    def tokens_of(self, name: str) -> list[int]:
        """What is generated for a request; AssertionError if that ends."""
        while True:
            result = self.manager.get_result(request_id=name, timeout=1)
            if result is not None and result.is_finished():
                break
            if not self.manager.is_running():
                msg = "continuous batching ended"
                raise AssertionError(msg)
        if result.error:
            raise AssertionError(result.error)
        return list(result.generated_tokens)
