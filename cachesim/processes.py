"""Pools of worker processes."""

import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor


def pool_of(count: int, begin: Callable[[], None] | None = None) -> ProcessPoolExecutor:
    """A pool whose processes have the engines that were registered in this one.

    On Linux they are forked, which Python 3.14 no longer does by default.
    """
    method = "fork" if sys.platform == "linux" else None
    context = multiprocessing.get_context(method)
    return ProcessPoolExecutor(count, mp_context=context, initializer=begin)
