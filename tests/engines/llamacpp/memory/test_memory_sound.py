"""Whatever sound operations did, going on from memory equals a cold run, bit for bit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachesim.engines.llamacpp.memory.blob import Blob, pack, unpack
from cachesim.engines.llamacpp.memory.context import NO_SLOT
from cachesim.engines.llamacpp.memory.rules import B9094, B9509, B11434, MemoryRules
from cachesim.model.presets import PRESETS
from tests.engines.llamacpp.memory.bench import BOTH, NAMES, Bench
from tests.engines.llamacpp.memory.lab import Lab, tokens_of

RULES = (B9094, B9509, B11434)
SEQUENCES = 3


class Sound:
    """Random operations, held to what upstream's memory can do without damage.

    `depth[s]` is how far back the planes of a sequence reach: as far as its last ubatch did, and
    not at all once its cell was shared, moved, restored, or rolled back.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.depth = [0] * SEQUENCES
        self.saved: list[tuple[Blob, list[int]]] = []
        self.parked: list[tuple[int, Blob, list[int]]] = []

    def decode(self, draw: st.DrawFn) -> None:
        """New tokens for one or several sequences."""
        ids, counts = st.integers(0, SEQUENCES - 1), st.integers(1, 7)
        lengths = draw(st.dictionaries(ids, counts, min_size=1))
        windowed = self.lab.network.spec.window > 0
        if windowed:
            # Several ubatches in one batch are unsound here: see
            # test_a_dry_run_purges_what_an_earlier_ubatch_still_needs.
            lengths = {s: min(n, self.lab.context.n_ubatch) for s, n in list(lengths.items())[:1]}
        if sum(lengths.values()) > 60 - sum(map(len, self.lab.said)):
            return
        of = draw(st.integers(0, 3))
        before = self.tails()
        right = self.lab.say({s: tokens_of(n, of=of + s) for s, n in lengths.items()})
        if windowed and self.lab.ret == NO_SLOT:  # shared cells are never reclaimed
            self.mend()
            return
        assert right
        self.watch_planes(before)

    def watch_planes(self, before: list[int]) -> None:
        """The reach of each sequence's planes after a decode."""
        rows = self.lab.recurrent
        if rows is None:
            return
        for s, (old, new) in enumerate(zip(before, self.tails(), strict=True)):
            if old != new:
                self.depth[s] = 0
        for ubatch, _ in self.lab.context.reached:
            for ids in set(ubatch.seqs):
                self.depth[ids[0]] = min(ubatch.n_seq_tokens - 1, rows.n_rs_seq)

    def tails(self) -> list[int]:
        rows = self.lab.recurrent
        return [-1] * SEQUENCES if rows is None else list(rows.cells.tail)

    def cut(self, draw: st.DrawFn) -> None:
        """Remove the end of a sequence, or all of it; a recurrent part may refuse."""
        s = draw(st.integers(0, SEQUENCES - 1))
        said = self.lab.said[s]
        if not said:
            return
        n = draw(st.integers(0, len(said)))
        if self.lab.recurrent is not None and n and len(said) - n > self.depth[s]:
            n = 0
        before = len(said)
        assert self.lab.cut(s, n)
        if n < before:
            self.depth[s] = 0
        self.mend()

    def mend(self) -> None:
        """Give up sequences whose window lacks what they need next."""
        while not self.lab.window_is_whole:
            self.lab.cut(max(range(SEQUENCES), key=lambda s: len(self.lab.said[s])), 0)

    def copy(self, draw: st.DrawFn) -> None:
        """Give a sequence to another id."""
        src, dst = draw(st.permutations(range(SEQUENCES)))[:2]
        rows = self.lab.recurrent
        if rows is not None and (rows.rs_idx[src] or rows.rs_idx[dst]):
            return
        self.lab.copy(src, dst)
        self.depth[src] = self.depth[dst] = 0

    def keep(self, draw: st.DrawFn) -> None:
        """Drop all other sequences; without streams, for they would keep theirs."""
        rows = self.lab.recurrent
        if not self.lab.unified or (rows is not None and any(rows.rs_idx)):
            return
        s = draw(st.integers(0, SEQUENCES - 1))
        self.lab.context.seq_keep(s)
        self.lab.said = [said if i == s else [] for i, said in enumerate(self.lab.said)]
        self.depth = [d if i == s else 0 for i, d in enumerate(self.depth)]

    def save(self, draw: st.DrawFn) -> None:
        """Park a whole conversation, on disk's terms, or take a checkpoint of one."""
        s = draw(st.integers(0, SEQUENCES - 1))
        if not self.lab.said[s] or self.copy_is_pending():
            return
        if draw(st.booleans()):
            blob = self.lab.context.state_seq_get_data(s)
            self.saved.append((unpack(pack(blob)), list(self.lab.said[s])))
        else:
            blob = self.lab.context.state_seq_get_data(s, partial=True)
            self.parked.append((s, blob, list(self.lab.said[s])))

    def copy_is_pending(self) -> bool:
        """A copy of a stream is only done by the next decode; a state saved before is wrong."""
        caches = [self.lab.context.memory, getattr(self.lab.context.memory, "attention", None)]
        caches += [getattr(caches[0], "base", None), getattr(caches[1], "base", None)]
        return any(getattr(cache, "copies", None) for cache in caches)

    def load(self, draw: st.DrawFn) -> None:
        """Bring back a whole conversation, under any id."""
        if not self.saved or self.copy_is_pending():
            return
        blob, said = draw(st.sampled_from(self.saved))
        s = draw(st.integers(0, SEQUENCES - 1))
        size = self.lab.context.state_seq_set_data(blob, s)
        assert size in {0, blob.size + 8}
        self.lab.said[s] = list(said) if size else []
        self.depth[s] = 0
        self.mend()

    def rewind(self, draw: st.DrawFn) -> None:
        """Go back to a checkpoint of the same conversation, and cut off what came after."""
        usable = [
            (s, blob, said)
            for s, blob, said in self.parked
            if self.lab.said[s][: len(said)] == said and not self.copy_is_pending()
        ]
        if not usable:
            return
        s, blob, said = draw(st.sampled_from(usable))
        if not self.lab.context.state_seq_set_data(blob, s, partial=True):
            self.lab.cut(s, 0)
            return
        assert self.lab.cut(s, len(said))
        self.depth[s] = 0
        self.mend()

    OPERATIONS = (decode, decode, decode, cut, copy, keep, save, load, rewind)


def play(lab: Lab, draw: st.DrawFn, steps: int) -> None:
    sound = Sound(lab)
    for _ in range(steps):
        draw(st.sampled_from(Sound.OPERATIONS))(sound, draw)
        lab.context.check_integrity()
    for s in range(SEQUENCES):
        if sum(map(len, lab.said)) < 60:
            assert lab.go_on(s) or lab.ret == NO_SLOT


def share(part: int) -> settings:
    """A part of the examples that the running profile asks for."""
    return settings(max_examples=max(2, settings.default.max_examples // part))


@pytest.mark.sampled(3)
@share(4)
@pytest.mark.parametrize("preset", sorted(PRESETS))
@given(
    data=st.data(), rules=st.sampled_from(RULES), unified=st.booleans(), n_rs_seq=st.integers(0, 2)
)
def test_going_on_equals_a_cold_run(
    preset: str, data: st.DataObject, rules: MemoryRules, unified: bool, n_rs_seq: int
) -> None:
    lab = Lab(preset, rules, unified=unified, swa_cells=18, n_ubatch=6, n_rs_seq=n_rs_seq)

    play(lab, data.draw, steps=10)


@share(20)
@pytest.mark.parametrize("preset", ["dense", "hybrid-delta", "hybrid-swa", "swa"])
@given(data=st.data(), unified=st.booleans(), rules=st.sampled_from([B9509, B11434]))
def test_the_float_network_says_the_same(
    preset: str, rules: MemoryRules, data: st.DataObject, unified: bool
) -> None:
    lab = Lab(
        preset, rules, arithmetic="float", unified=unified, swa_cells=18, n_ubatch=6, n_rs_seq=2
    )

    play(lab, data.draw, steps=6)


# Worked examples of batches and of rollbacks, in both releases.

both = pytest.mark.parametrize("rules", BOTH, ids=NAMES)


@both
def test_batches_must_continue_where_memory_ends(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", n_seq_max=4, cells=32)
    assert (0, [5, 7]) == (b.decode(8, "0:5+3"), b.pos(0))
    assert (-1, -1, -1) == (b.decode(8, "0:9+1"), b.decode(8, "0:7+1"), b.decode(8, "0:8+2 0:11+1"))

    assert b.decode(8, "0:8+2 0:9+1") == 0
    assert ("5 6 7 8 9 9", [5, 9]) == (b.dump(ids=False), b.pos(0))


@pytest.mark.parametrize(("rules", "ret"), [(B9509, 0), (B11434, -1)], ids=NAMES)
def test_ids_beyond_the_sequences_depend_on_the_release(rules: MemoryRules, ret: int) -> None:
    assert ret == Bench(rules, "kv", n_seq_max=4, cells=32).decode(8, "5:0+1")


@pytest.mark.parametrize(("rules", "ret"), [(B9509, 0), (B11434, -1)], ids=NAMES)
def test_decreasing_positions_depend_on_the_release(rules: MemoryRules, ret: int) -> None:
    assert ret == Bench(rules, "kv", n_seq_max=4, cells=32).decode(8, "1:1+1 1:0+1")


@both
def test_a_window_pair_keeps_base_when_its_window_fails(rules: MemoryRules) -> None:
    b = Bench(rules, "iswa", n_seq_max=2, cells=32, swa_cells=16, n_swa=4, swa_type="standard")
    b.decode(8, "0:0+5")
    saved = b.save(0)
    base = b.save(0).size - b.save(0, partial=True).size

    assert not b.load(saved.cut(base + 4 + 4 + 13), 1)
    cells = b.kv.streams.cells[0]
    assert (5, 0) == (cells.members(1).sum(), b.swa.streams.cells[0].members(1).sum())
    assert b.pos(1) == [-1, -1]


@both
def test_a_state_saved_while_a_rollback_is_pending_is_right(rules: MemoryRules) -> None:
    b = Bench(rules, "recurrent", n_seq_max=2, n_rs_seq=3)
    b.decode(16, "0:0+6")
    assert b.rm(0, 4, -1)
    saved = b.save(0)

    assert b.load(saved, 1)
    assert ([3, 3], 4, [2, 0]) == (b.pos(1), b.planes(1)[0], b.recurrent.rs_idx)
    b.decode(16, "1:4+1")
    assert b.state(1) == 5

    assert b.load(saved, 0)
    assert ([0, 0], [4, 5, 4, 3]) == (b.recurrent.rs_idx, b.planes(b.recurrent.cells.tail[0]))


@both
def test_a_shared_cell_rolls_back_for_both_but_only_one_knows(rules: MemoryRules) -> None:
    b = Bench(rules, "recurrent", n_seq_max=2, n_rs_seq=3)
    b.decode(16, "0:0+6")
    b.context.seq_cp(0, 1, -1, -1)
    assert b.rm(0, 4, -1)
    assert ([3, 3], [3, 3], [2, 0]) == (b.pos(0), b.pos(1), b.recurrent.rs_idx)

    b.decode(16, "1:4+1")
    assert b.state(1) == 7
    b.decode(16, "0:4+1")
    assert b.state(0) == 5
