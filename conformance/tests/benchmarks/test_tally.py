"""The accounts of a profile: whose calls, whose memory."""

from collections.abc import Mapping

import numpy as np

from benchmarks.tally import Account, Clock, Memory
from cachesim.model import parts
from cachesim.model.tiles import LADDER, padded

ROWS = np.ones((100, 1000))
SIGMOID = "model.parts.sigmoid"
NORM = "model.parts.rms_norm"


def some_work() -> None:
    parts.sigmoid(ROWS)
    parts.rms_norm(ROWS, 1e-6)
    parts.sigmoid(ROWS)


def test_each_function_of_ours_has_its_calls_in_the_order_they_begin() -> None:
    accounts = Clock().of(some_work)

    names = [(name, account.calls) for name, account in accounts.items()]
    assert [(SIGMOID, 2), (NORM, 1), ("model.parts.squares", 1)] == names
    assert all(account.spent > 0 for account in accounts.values())


def test_what_a_library_takes_counts_for_the_function_that_asked() -> None:
    accounts = Memory().of(some_work)

    size = ROWS.nbytes
    assert 2 * size <= accounts[SIGMOID].spent < 2.1 * size
    assert size <= accounts[NORM].spent < 1.1 * size


def test_what_is_nobodys_of_ours_has_no_account() -> None:
    assert {} == dict(Clock().of(lambda: sorted(np.arange(5), key=lambda number: -number)))


def test_a_loop_in_brackets_counts_for_the_function_it_stands_in() -> None:
    padded.cache_clear()

    assert {"model.tiles.padded": 1} == calls(Clock().of(lambda: padded(3, LADDER)))


def calls(accounts: Mapping[str, Account]) -> dict[str, int]:
    return {name: account.calls for name, account in accounts.items()}
