"""Provenance: marks that every memory carries without knowing it."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.model.arithmetic import ArithmeticName, Network, PlainStore
from cachesim.model.build import build
from cachesim.model.presets import PRESETS, tiny
from cachesim.model.store import Lane, Lanes, Ubatch
from cachesim.model.trace import ROOT, Fault, Reading, Traced, _Cells
from cachesim.typed import there_is
from cachesim.units import Array, Pos, Token, Tokens, as_tokens

PROMPT = as_tokens(range(300, 330))
OTHER = as_tokens(range(400, 430))
every_preset = pytest.mark.parametrize("preset", PRESETS)


def traced(preset: str, **changes: int) -> Traced:
    return Traced(build(tiny(preset, **changes), "ring"))


def feed(network: Network, store: PlainStore, ids: Sequence[int], first: int = 0) -> Array:
    positions = np.arange(first, first + len(ids))
    return network.run(Ubatch(tokens=np.array(ids), positions=positions), store).logits


def fed(network: Network, ids: Sequence[int]) -> PlainStore:
    store = PlainStore(network)
    feed(network, store, ids)
    return store


def put_cells(network: Traced, into: PlainStore, source: PlainStore, cells: slice) -> None:
    """Overwrite cells in every layer that has some, the marks included."""
    for shape in network.shapes:
        if shape.place != "recurrent":
            mine, theirs = into._cells[shape.layer][0], source._cells[shape.layer][0]
            mine._keys.data[cells] = theirs._keys.data[cells]
            mine._values.data[cells] = theirs._values.data[cells]


def put_states(network: Traced, into: PlainStore, source: PlainStore) -> None:
    for shape in network.shapes:
        if shape.place == "recurrent":
            into._states[shape.layer] = source._states[shape.layer].copy()


@every_preset
@pytest.mark.parametrize("arithmetic", ["float", "ring"])
def test_logits_and_hidden_states_are_the_wrapped_network_s(
    preset: str, arithmetic: ArithmeticName
) -> None:
    network = build(tiny(preset), arithmetic)
    ubatch = Ubatch(
        tokens=np.array(PROMPT), positions=np.arange(len(PROMPT)), outputs=np.array([7, 29])
    )

    plain = network.run(ubatch, PlainStore(network))
    with_ledger = Traced(network)
    kept = with_ledger.run(ubatch, PlainStore(with_ledger))

    assert np.array_equal(plain.logits, kept.logits)
    assert np.array_equal(plain.hidden, kept.hidden)
    assert network.companion() is with_ledger.companion() or preset == "hybrid-mtp"
    assert network.sample(plain.logits[0]) == with_ledger.sample(plain.logits[0])


def test_a_ledger_for_each_place_in_the_order_layers_run() -> None:
    network = traced("hybrid")

    marks = network.shapes[len(network.spec.layers) :]

    assert [("recurrent", 2), ("attention", 3)] == [(s.place, s.layer) for s in marks]


def test_keys_of_a_ledger_do_not_rotate() -> None:
    network = traced("dense")
    words = np.array([[5], [6]])

    assert np.array_equal(words, network.rotate(2, words, np.array([1, 2])))
    assert not np.array_equal(words, network.rotate(0, words.astype(np.uint64), np.array([1, 2])))


@given(
    st.sampled_from(sorted(PRESETS)),
    st.lists(st.integers(300, 303), min_size=1, max_size=40),
    st.integers(1, 8),
    st.data(),
)
def test_a_cold_run_is_clean_however_it_is_cut(
    preset: str, ids: list[int], window: int, data: st.DataObject
) -> None:
    network = traced(preset, **({"window": window} if PRESETS[preset].window else {}))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids)))) | {0, len(ids)})
    store = PlainStore(network, planes=data.draw(st.integers(1, 3)))

    rows = [row for a, b in pairwise(cuts) for row in feed(network, store, ids[a:b], a)]

    clean = network.histories.clean(as_tokens(ids))
    assert clean[1:] == [network.node(row, Pos(i)) for i, row in enumerate(rows)]
    assert as_tokens(ids) == network.history(clean[-1])
    assert network.fault(rows[-1], as_tokens(ids)) is None


def test_sets_have_histories_of_their_own() -> None:
    network = traced("hybrid")
    ubatch = Ubatch(tokens=np.array([*PROMPT, *OTHER]), positions=np.tile(np.arange(30), 2), sets=2)

    rows = network.run(ubatch, PlainStore(network, sets=2)).logits

    for row, tokens in ((29, PROMPT), (59, OTHER)):
        node = there_is(network.node(rows[row], Pos(29)))
        assert tokens == network.history(node)


@pytest.mark.sampled(3)
@every_preset
@given(st.integers(1, 20), st.integers(0, 29), st.integers(0, 5), st.booleans())
def test_memory_is_clean_exactly_where_the_answer_is_the_cold_one(
    preset: str, shared: int, start: int, count: int, states: bool
) -> None:
    network = traced(preset)
    store = fed(network, PROMPT)
    source = fed(network, PROMPT[:shared] + OTHER[shared:])
    put_cells(network, store, source, slice(start, min(start + count, 30)))
    if states:
        put_states(network, store, source)
    asked = as_tokens([501, 502])

    rows = feed(network, store, asked, len(PROMPT))

    cold = feed(network, PlainStore(network), PROMPT + asked)[-2:]
    for i in range(2):
        same = np.array_equal(cold[i], rows[i])
        assert same == (network.fault(rows[i], PROMPT + asked[: i + 1]) is None)


class LooseStore:
    """Cells at any positions, in any order, the newest first or last."""

    planes = 1

    def __init__(self, network: Traced, *, newest_first: bool) -> None:
        self.windows = {shape.layer: shape.place == "window" for shape in network.shapes}
        self.spec = network.spec
        self.cells: dict[int, list[tuple[int, int, int]]] = {}  # position, key, value
        self.positions: list[int] = []
        self.newest_first = newest_first

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        fresh = list(zip(self.positions, keys[:, 0].tolist(), values[:, 0].tolist(), strict=True))
        older = self.cells.get(layer, [])
        cells = self.cells[layer] = fresh + older if self.newest_first else older + fresh
        places, keys, values = np.array(cells).T
        low = high = np.array(self.positions)
        if not self.windows[layer]:
            low = low * 0
        elif self.spec.chunked:
            low = low // self.spec.window * self.spec.window
        else:
            low = np.maximum(0, low - self.spec.window + 1)
        rows = np.arange(len(high))
        return (Lane(rows, keys[:, None], values[:, None], places, low, high),)


@pytest.mark.parametrize("chunked", [False, True])
@given(
    st.integers(3, 12),
    st.lists(st.integers(0, 8), min_size=1, max_size=12),
    st.integers(2, 9),
    st.data(),
)
def test_readings_are_those_of_readers_that_check_each_line_from_its_start(
    chunked: bool, count: int, jumps: list[int], window: int, data: st.DataObject
) -> None:
    wrong = data.draw(st.none() | st.integers(0, count - 1))
    first = count - data.draw(st.integers(0, 3))
    onward = [first + at + max(0, jump - 6) for at, jump in enumerate(jumps)]
    order = data.draw(st.permutations(onward)) if data.draw(st.booleans()) else onward
    newest_first = data.draw(st.booleans())

    def readings() -> list[tuple[Token, tuple[Reading, ...]]]:
        network = traced("swa", window=window, chunked=chunked)
        store = LooseStore(network, newest_first=newest_first)
        for positions in (list(range(count)), order, [max(order) + 1, max(order) + 2]):
            store.positions = positions
            tokens = np.arange(300, 300 + len(positions))
            network._run_marks(Ubatch(tokens=tokens, positions=np.array(positions)), store)
            for cells in store.cells.values() if wrong is not None else ():
                position, key, value = cells[wrong or 0]
                cells[wrong or 0] = position, key, (value + 1) % 3
        return network.histories._nodes

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_Cells, "continued", lambda *_: None)
        expected = readings()
    assert expected == readings()


def test_a_stale_state_is_named_with_the_tokens_it_has_folded_in() -> None:
    network = traced("hybrid")
    store = fed(network, PROMPT)
    put_states(network, store, fed(network, OTHER[:7]))

    rows = feed(network, store, [501, 502], 30)

    expected = Fault(
        layer=0, place="recurrent", token=30, position=29, holds=OTHER[:7], expected=PROMPT
    )
    assert expected == network.fault(rows[0], as_tokens([*PROMPT, 501]))
    assert expected == network.fault(rows[1], as_tokens([*PROMPT, 501, 502]))


def test_a_line_of_cells_that_is_too_long_or_too_short_is_named_where_it_ends() -> None:
    drafts, network = as_tokens([7, 7]), traced("dense")
    row = feed(network, fed(network, PROMPT + drafts), [501], 32)[0]

    fault = there_is(network.fault(row, as_tokens([*PROMPT, 501])))

    assert (30, PROMPT + drafts, PROMPT, True) == _named(fault)

    network = traced("dense")
    row = feed(network, fed(network, PROMPT[:29]), [501], 29)[0]

    fault = there_is(network.fault(row, as_tokens([*PROMPT, 501])))

    assert (29, PROMPT[:29], PROMPT, False) == _named(fault)
    assert fault.short


def _named(fault: Fault) -> tuple[int, Tokens, Tokens, bool]:
    return fault.position, fault.holds, fault.expected, fault.extra


def test_a_state_is_named_as_it_was_when_the_request_first_read_it() -> None:
    network = traced("recurrent")
    store = fed(network, PROMPT[:20])
    put_states(network, store, fed(network, OTHER[:7]))
    row = feed(network, store, PROMPT[20:], 20)[-1]

    first = network.fault(row, PROMPT, cached=20)
    last = network.fault(row, PROMPT)

    assert first is not None
    assert last is not None
    assert (20, OTHER[:7]) == (first.token, first.holds)
    assert (29, OTHER[:7] + PROMPT[20:29]) == (last.token, last.holds)


def test_a_foreign_cell_is_named_with_the_history_it_was_computed_in() -> None:
    network = traced("hybrid")
    store = fed(network, PROMPT)
    put_cells(network, store, fed(network, OTHER), slice(11, 13))

    fault = there_is(network.fault(feed(network, store, [501], 30)[0], as_tokens([*PROMPT, 501])))

    assert (1, "attention", 30, 12) == (fault.layer, fault.place, fault.token, fault.position)
    assert (OTHER[:13], PROMPT[:13]) == (fault.holds, fault.expected)


def test_a_missing_cell_holds_nothing() -> None:
    network = traced("dense")
    store = fed(network, PROMPT)
    put_cells(network, store, PlainStore(network), slice(11, 12))

    fault = there_is(network.fault(feed(network, store, [501], 30)[0], as_tokens([*PROMPT, 501])))

    assert (11, ()) == (fault.position, fault.holds)


def test_a_cell_computed_over_a_wrong_state_stays_wrong_when_the_state_is_put_right() -> None:
    network = traced("hybrid")
    store = fed(network, PROMPT[:20])
    put_states(network, store, fed(network, OTHER[:5]))
    feed(network, store, PROMPT[20:25], 20)
    put_states(network, store, fed(network, PROMPT[:25]))

    fault = network.fault(feed(network, store, [501], 25)[0], as_tokens([*PROMPT[:25], 501]))

    assert fault is not None
    assert ("recurrent", 20, OTHER[:5]) == (fault.place, fault.token, fault.holds)


def test_a_row_that_was_never_computed_has_no_history() -> None:
    network = traced("dense")

    assert network.node(np.zeros((1,), np.uint64), Pos(0)) is None
    assert network.fault(np.zeros((1,), np.uint64), PROMPT) is None
    assert () == network.history(ROOT)
