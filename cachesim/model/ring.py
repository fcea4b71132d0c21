"""`ring`: the exact twin of the float network over the integers modulo 2^64.

The layers are those of the spec, with the same cells, rows and Store; only the numbers are words:
every operation wraps, none rounds, and sums come in any order. So whatever happened to a memory
either changes the answer or does not, and a context of a million tokens is two sums.

    attention   linear and relative: out[i] = sum over visible j of  q[i] k[j] v[j] g^(p[j] - p[i])
                A key is stored as k[j] g^p[j]: one at a wrong position, one left unrotated, one
                missing and one too many all change the sum. Without rope g is 1, as it is there.
    conv        a polynomial in the last few inputs, kept in the row
    ssm         a conv, then a chain of everything, decayed by a gate that each token sets
    delta       a conv, then a chain of chains
    mix         a one-to-one scramble between layers that neither sums nor products undo, so that
                an error of any layer survives

Approximations show as in float. After a context shift a re-rotated key is exact, but above the
first layer words were computed among removed tokens: only a network whose one attention layer
is its first answers like a cold one. The query's place in a window comes from the Store alone.
"""

from functools import lru_cache
from hashlib import blake2b
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cachesim.errors import ContractError
from cachesim.model.arithmetic import LayerShape, Network, Output, Place
from cachesim.model.network import check
from cachesim.model.spec import RECURRENT_KINDS, LayerKind, ModelSpec
from cachesim.model.store import Ending, Lane, Padding, Store, Ubatch
from cachesim.units import Array, Integers, Token

Words: TypeAlias = NDArray[np.uint64]

BASE: Final = 0xD1342543DE82EF95  # 5 modulo 8: its powers differ for 2^62 positions
MASK: Final = (1 << 64) - 1
SCRAMBLER: Final = 0x9E3779B97F4A7C15

# Arrays without dimensions: NumPy takes them sooner than its scalars, and these are everywhere.
_ONE: Final[Words] = np.array(1, np.uint64)
_TWO: Final[Words] = np.array(2, np.uint64)
_THREE: Final[Words] = np.array(3, np.uint64)
_HALF: Final[Words] = np.array(32, np.uint64)
_SCRAMBLE: Final[Words] = np.array(SCRAMBLER, np.uint64)

FEW: Final = 12
"""Number of tokens up to which recurrent layers are faster in plain integers than in arrays."""

DIGIT: Final = 16
"""Bits of one table lookup; two lookups cover every position of the real servers."""

_DIGIT: Final = np.array(DIGIT)
_LOWER: Final = np.array((1 << DIGIT) - 1)

CHAINS: Final[dict[LayerKind, int]] = {"conv": 0, "ssm": 1, "delta": 2}
"""Chains of a recurrent layer beside the inputs of its convolution."""


def salt(seed: int, name: str, count: int = 1) -> Words:
    """Words (count,) drawn from a seed and a name, in place of weights."""
    drawn = (blake2b(f"{seed} {name} {i}".encode(), digest_size=8) for i in range(count))
    return np.array([int.from_bytes(digest.digest(), "little") for digest in drawn], np.uint64)


def mix(words: Words) -> Words:
    """Scramble words one to one: multiplication spreads bits upwards, the fold downwards."""
    words = words * _SCRAMBLE
    return words ^ (words >> _HALF)


def inverse(odd: Words) -> Words:
    """The multiplicative inverses of odd words: five correct bits, doubled four times."""
    guess = (odd * _THREE) ^ _TWO
    for _ in range(4):
        guess = guess * (_TWO - odd * guess)
    return guess


def fold(start: Words, gates: Words, inputs: Words) -> Words:
    """The states (S, n) of chains that begin at `start` (S,), with odd `gates`, (S, n).

    s[i] = gate[i] * s[i-1] + input[i], divided by the product of all gates up to i, is a running
    sum. Odd words have inverses, so the division is exact and the chain takes no loop.
    """
    products = np.multiply.accumulate(gates, axis=1)
    sums = np.add.accumulate(inputs * inverse(products), axis=1)
    return products * (start[:, None] + sums)


class Powers:
    """The powers of an odd word, for exponents of 32 bits with their sign."""

    def __init__(self, base: int) -> None:
        size = 1 << DIGIT
        low = np.multiply.accumulate(np.full(size, base, np.uint64))
        step = low[-1:]  # base^size
        up = np.multiply.accumulate(np.repeat(step, size // 2))
        down = np.multiply.accumulate(np.full(size, pow(base, -1, 1 << 64), np.uint64))
        below = np.multiply.accumulate(np.repeat(down[-1:], size // 2))
        self._low = np.concatenate([[_ONE], low[:-1]])
        self._down = np.concatenate([[_ONE], down[:-1]])
        self._high = np.concatenate([[_ONE], up[:-1], below[::-1]])  # from -1 back: negative digits

    def __call__(self, exponents: Integers) -> Words:
        """base^exponent, word by word: one lookup per digit, the upper one signed."""
        product: Words = self._low[exponents & _LOWER] * self._high[exponents >> _DIGIT]
        return product

    def up(self, exponents: Integers) -> Words:
        """base^exponent, of exponents with one digit: those of short prompts."""
        power: Words = self._low[exponents]
        return power

    def down(self, exponents: Integers) -> Words:
        """base^-exponent, of exponents with one digit."""
        power: Words = self._down[exponents]
        return power

    def of(self, exponent: int) -> int:
        """base^exponent, as a plain integer."""
        low: int = self._low.item(exponent & (1 << DIGIT) - 1)
        high: int = self._high.item(exponent >> DIGIT)
        return low * high & MASK


@lru_cache(maxsize=8)
def powers(base: int) -> Powers:
    """The tables of a base; networks share them."""
    return Powers(base)


class PrefixSums:
    """Prefix sums over a lane in the order of its positions: a row sums a range of them.

    A cell that is not there has the highest position of all, which no row sees.
    """

    __slots__ = ("_below", "_order", "_upto", "lane")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        positions = lane.positions
        self._order: slice | Integers = slice(None)
        if np.count_nonzero(positions[1:] < positions[:-1]):
            self._order = positions.argsort(kind="stable")
            positions = positions[self._order]
        self._upto = positions.searchsorted(lane.high, side="right")
        self._below: Integers | None = None
        if np.count_nonzero(lane.low):
            self._below = positions.searchsorted(lane.low, side="left")
            self._upto = np.maximum(self._upto, self._below)

    def sums(self, keys: Words, values: Words) -> Words:
        """The sums (q,) of key times value (n,) over the visible cells of each row."""
        totals = np.zeros(len(keys) + 1, np.uint64)
        np.add.accumulate(keys[self._order] * values[self._order], out=totals[1:])
        sums: Words = totals[self._upto]
        return sums if self._below is None else sums - totals[self._below]


class Pass:
    """The pass of a ubatch through the layers, and their shared data."""

    __slots__ = ("_back", "_short", "_sums", "_there", "powers", "store", "ubatch")

    def __init__(self, ubatch: Ubatch, store: Store, powers: Powers, bits: int) -> None:
        """`powers`: those of g, used to rotate keys; `bits`: those that the positions have."""
        self.ubatch, self.store, self.powers = ubatch, store, powers
        self._there: Words | None = None
        self._back: Words | None = None
        self._short = bits < 1 << DIGIT
        self._sums: dict[tuple[int, int, int], PrefixSums] = {}

    @property
    def there(self) -> Words:
        """g^position of each row, which turns its key."""
        if self._there is None:
            positions = self.ubatch.positions
            self._there = self.powers.up(positions) if self._short else self.powers(positions)
        return self._there

    @property
    def back(self) -> Words:
        """g^-position of each row, which turns what its query sees."""
        if self._back is None:
            positions = self.ubatch.positions
            self._back = self.powers.down(positions) if self._short else self.powers(-positions)
        return self._back

    def sums(self, lane: Lane) -> PrefixSums:
        """The prefix sums of a lane, or those of an earlier lane with the same arrays."""
        key = (id(lane.positions), id(lane.low), id(lane.high))
        known = self._sums.get(key)
        if known is None:  # the lane is kept, so that no other can take its arrays' ids
            known = self._sums[key] = PrefixSums(lane)
        return known


class Layer(Protocol):
    """A layer with data in a memory."""

    shape: LayerShape

    def __call__(self, hidden: Words, run: Pass) -> Words:
        """The rows' words (T,) plus the layer's output."""
        ...

    def of_some(self, hidden: Words, run: Pass, rows: list[int]) -> list[int]:
        """The same of a few rows, in plain integers: the others of a last layer have no reader."""
        ...


class Attention:
    """out[i] = sum over visible j of q[i] k[j] v[j] g^(p[j] - p[i]), with odd q, k and v."""

    def __init__(self, layer: int, place: Place, salts: Words, *, turns: bool) -> None:
        self.shape = LayerShape(layer=layer, place=place, dtype="uint64", key=(1,), value=(1,))
        self._salts = salts[:, None]  # (3, 1)
        self._numbers: list[int] = salts.tolist()
        self._turns = turns

    def __call__(self, hidden: Words, run: Pass) -> Words:
        """Store keys and values (T, 1), and sum the visible ones of each row."""
        if len(hidden) == 1:
            return np.array(self.of_some(hidden, run, [0]), np.uint64)
        queries, keys, values = mix(hidden + self._salts) | _ONE
        if self._turns:
            keys, queries = keys * run.there, queries * run.back
        seen = np.empty(len(keys), np.uint64)
        for lane in run.store.attend(self.shape.layer, keys[:, None], values[:, None]):
            seen[lane.rows] = run.sums(lane).sums(lane.keys[:, 0], lane.values[:, 0])
        return mix(hidden + queries * seen)

    def of_some(self, hidden: Words, run: Pass, rows: list[int]) -> list[int]:
        """Store all keys and values, but sum for a few rows only."""
        positions, (of_query, of_key, of_value) = run.ubatch.positions, self._numbers
        if len(hidden) == 1:
            word = hidden.item()
            key, value = _mixed(word + of_key) | 1, _mixed(word + of_value) | 1
            if self._turns:
                key = key * run.powers.of(positions.item()) & MASK
            keys, values = np.array([[key]], np.uint64), np.array([[value]], np.uint64)
        else:
            keys, values = (mix(hidden + self._salts[1:]) | _ONE)[:, :, None]
            if self._turns:
                keys = keys * run.there[:, None]
        words: list[int] = []
        lanes = run.store.attend(self.shape.layer, keys, values)
        if not rows:  # the part of a prompt before its end: a store need not pick what it sees
            return words
        lanes = tuple(lanes)
        for row in rows:
            (lane, at), word = _place_of(row, lanes), hidden.item(row)
            query = _mixed(word + of_query) | 1
            if self._turns:
                query *= run.powers.of(-positions.item(row))
            words.append(_mixed(word + query * _seen(lane, at)))
        return words


def _place_of(row: int, lanes: tuple[Lane, ...]) -> tuple[Lane, int]:
    """The lane with a row, and the row's place in it."""
    if len(lanes) == 1 and lanes[0].rows.item(row) == row:  # the rows of one sequence, in order
        return lanes[0], row
    places = ((lane, np.flatnonzero(lane.rows == row)) for lane in lanes)
    return next((lane, at.item()) for lane, at in places if at.size)


def _seen(lane: Lane, at: int) -> int:
    """The sum of key times value over the cells that a lane's row sees."""
    inside = lane.positions <= lane.high.item(at)
    if lane.low.item(at) > 0:
        inside &= lane.positions >= lane.low.item(at)
    return int((lane.keys * lane.values)[:, 0].dot(inside))


class Recurrent:
    """A convolution over the last inputs and, in `ssm` and `delta`, chains of all of them.

    The row of a sequence, oldest input first:  [ taps - 1 inputs | a word for each chain ]
    """

    def __init__(self, layer: int, kind: LayerKind, taps: int, salts: Words) -> None:
        self._past = taps - 1
        self._chains = CHAINS[kind]
        self._salt = np.array(salts[0])
        tap = int(salts[1]) | 1
        self._tap = tap
        self._taps = np.array([pow(tap, i, 1 << 64) for i in range(taps)][::-1], np.uint64)
        row = self._past + self._chains
        self.shape = LayerShape(
            layer=layer, place="recurrent", dtype="uint64", row=row, conv=self._past
        )

    def __call__(self, hidden: Words, run: Pass) -> Words:
        """Fold each set's tokens into its row."""
        store, padding = run.store, run.ubatch.padding
        before = store.states(self.shape.layer)
        if padding is None and len(hidden) <= FEW:
            words, states = self._fold_few(hidden.tolist(), before.tolist(), store.planes)
            store.keep_states(self.shape.layer, np.array(states, np.uint64))
            return np.array(words, np.uint64)
        inputs = mix(hidden + self._salt).reshape(len(before), -1)  # (S, n)
        if padding is not None:
            added, kept = self._fold_padded(inputs, before, padding)
        else:
            added, kept = self._fold(inputs, before, store.planes)
        store.keep_states(self.shape.layer, kept)
        return mix(hidden + added.reshape(-1))

    def of_some(self, hidden: Words, run: Pass, rows: list[int]) -> list[int]:
        """All tokens are folded, so all rows are there."""
        words: list[int] = self(hidden, run)[rows].tolist()
        return words

    def _fold(self, inputs: Words, before: Words, planes: int) -> tuple[Words, Words]:
        past = np.concatenate([before[:, : self._past], inputs], axis=1)
        word = self._convolve(past)
        chains = []
        for start in before[:, self._past :].T:
            word = fold(start, mix(word) | _ONE, word)
            chains.append(word)
        count = inputs.shape[1]
        depth = min(count, planes)
        rows = np.empty((len(past), depth, self.shape.row), np.uint64)
        for plane, end in enumerate(range(count, count - depth, -1)):
            rows[:, plane, : self._past] = past[:, end : end + self._past]
            for i, chain in enumerate(chains, self._past):
                rows[:, plane, i] = chain[:, end - 1]
        return word, rows

    def _fold_few(
        self, hidden: list[int], before: list[list[int]], planes: int
    ) -> tuple[list[int], list[list[list[int]]]]:
        """`_fold` for few tokens, in plain integers: the rows' words, and the rows to store."""
        count, past, salt = len(hidden) // len(before), self._past, self._salt.item()
        tap, words, kept = self._tap, [], []
        for one, start in enumerate(before):
            row, after = start, [start]
            for value in hidden[one * count : (one + 1) * count]:
                # `_mixed` and `_step` are written out: their calls would take most of the time.
                token = (value + salt) * SCRAMBLER & MASK
                inputs, word = [*row[:past], token ^ token >> 32], 0
                for tapped in inputs:
                    word = word * tap + tapped
                word = word * SCRAMBLER & MASK
                word ^= word >> 32
                following = inputs[1:]
                for state in row[past:]:
                    gate = word * SCRAMBLER & MASK
                    word = (state * (gate ^ gate >> 32 | 1) + word) & MASK
                    following.append(word)
                total = (value + word) * SCRAMBLER & MASK
                words.append(total ^ total >> 32)
                row = following
                after.append(row)
            kept.append(after[:0:-1][:planes])
        return words, kept

    def _convolve(self, past: Words) -> Words:
        """A polynomial in the tap word over each input and the `taps - 1` before it, (S, n)."""
        along = np.correlate(past.reshape(-1), self._taps, "full")[self._past :]
        return mix(along.reshape(past.shape)[:, : -self._past])  # no window is in two sets

    def _fold_padded(self, inputs: Words, before: Words, padding: Padding) -> tuple[Words, Words]:
        """`_fold` with padding rows: words (S, n), rows to store (S, 1, row)."""
        words = np.zeros(inputs.shape, np.uint64)
        joined = np.concatenate(
            [before[:, : self._past], np.where(padding.real, inputs, np.uint64(0))], axis=1
        )
        convolved = self._convolve(joined).tolist()
        ends = np.full(len(inputs), inputs.shape[1])
        if padding.conv_ends is not None:
            ends = np.clip(padding.conv_ends, 0, inputs.shape[1])
        rows = []
        for one, end in enumerate(ends):
            state = before[one, self._past :].tolist()
            for ending in padding.endings(one):
                added, state = self._fold_chunk(convolved[one], ending, state, padding)
                words[one, ending.rows] = added
            rows.append([[*joined[one, end : end + self._past].tolist(), *state]])
        return words, np.array(rows, np.uint64)

    def _fold_chunk(
        self, inputs: list[int], ending: Ending, former: list[int], padding: Padding
    ) -> tuple[list[int], list[int]]:
        """The words of one chunk's rows, and the chains kept after it."""
        tokens = {*ending.folded.tolist(), *ending.undecayed.tolist(), *ending.lost.tolist()}
        fading = set(ending.fading.tolist())
        chains, alone, added = former, former, []
        for row in ending.rows.tolist():
            word, after = _step(inputs[row], chains)
            if row in tokens:
                chains = after
            if self._chains == 1 and padding.chunked:
                if row in tokens or row in fading:
                    alone = [_decayed(alone[0], inputs[row])]
                word = word if row in tokens else alone[0]
            added.append(word)
        if ending.keeps_former:
            return added, former
        if self._chains != 1 or ending.plain(fresh=not any(former)):
            return added, chains
        kept = 0
        for row in ending.folded.tolist():
            kept = _step(inputs[row], [kept])[0]
        return added, [(kept + sum(inputs[i] for i in ending.undecayed) + alone[0]) & MASK]


def _step(word: int, chains: list[int]) -> tuple[int, list[int]]:
    after = []
    for state in chains:
        word = (_decayed(state, word) + word) & MASK
        after.append(word)
    return word, after


def _decayed(state: int, word: int) -> int:
    """A chain's word times the gate of a row's word."""
    return state * (_mixed(word) | 1) & MASK


def _mixed(word: int) -> int:
    """`mix` of a plain integer."""
    word = word * SCRAMBLER & MASK
    return word ^ word >> 32


class WordNetwork:
    """A network whose logits are one word for each row."""

    _spec: ModelSpec
    _shapes: tuple[LayerShape, ...]

    @property
    def spec(self) -> ModelSpec:
        """The spec that it was built from."""
        return self._spec

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The layers that keep something, in the order they run."""
        return self._shapes

    def sample(self, logits: Array) -> Token:
        """The greedy token of a row's word, among those that decoding may yield."""
        first = self._spec.first_plain
        return Token(first + (int(logits[0]) >> 32) % (self._spec.vocabulary - first))


class RingNetwork(WordNetwork):
    """A spec's network in words: stateless, like the float one."""

    def __init__(self, spec: ModelSpec, *, mtp: bool = False, flavour: str = "") -> None:
        """`flavour`: an adapter's name, which salts keys, values and states."""
        self._spec = spec
        self._mtp = mtp
        count = len(spec.layers)
        numbers = range(count, count + spec.mtp_depth) if mtp else range(count)
        self._powers = powers(1 if spec.rope == "none" else BASE)
        layers = [_layer(spec, number) for number in numbers]
        *self._body, self._last = layers
        ids = np.arange(spec.vocabulary, dtype=np.uint64)
        self._shapes = tuple(layer.shape for layer in layers)
        self._tokens = mix(mix(ids + salt(spec.seed, f"tokens{flavour}")))
        self._head = salt(spec.seed, "mtp head" if mtp else "head")
        self._head_number = int(self._head[0])

    def run(self, ubatch: Ubatch, store: Store) -> Output:
        """Run one ubatch through all layers."""
        run = Pass(ubatch, store, self._powers, check(ubatch, self._spec))
        words = self._enter(ubatch)
        for layer in self._body:
            words = layer(words, run)
        outputs = ubatch.outputs
        if outputs is not None and len(outputs) <= FEW and not self._spec.mtp_depth:
            few = self._last.of_some(words, run, outputs.tolist())
            logits = [_mixed(word + self._head_number) for word in few]
            return Output(np.array(logits, np.uint64)[:, None])
        words = self._last(words, run)
        wanted = words if outputs is None else words[outputs]
        hidden = words[:, None] if self._spec.mtp_depth else None
        return Output(mix(wanted + self._head)[:, None], hidden)

    def _enter(self, ubatch: Ubatch) -> Words:
        words = self._tokens[ubatch.tokens]
        if not self._mtp:
            return words
        if ubatch.hidden is None or ubatch.hidden.shape != (len(words), 1):
            msg = f"an MTP head reads one hidden word with each of {len(words)} tokens"
            raise ContractError(msg)
        return mix(words + mix(ubatch.hidden[:, 0]))

    def rotate(self, layer: int, keys: Array, shifts: Integers) -> Array:
        """Keys (n, 1) shifted by `shifts` (n,) positions."""
        if not self._spec.turns(layer):
            return keys.copy()
        return keys * self._powers(shifts)[:, None]

    def difference(self, one: Array, other: Array) -> float:
        """1.0 if any word differs, else 0.0."""
        return 0.0 if one.shape == other.shape and one.tobytes() == other.tobytes() else 1.0

    def companion(self) -> Network | None:
        """The network of the MTP head, or None."""
        return None if self._mtp or not self._spec.mtp_depth else RingNetwork(self._spec, mtp=True)


def _layer(spec: ModelSpec, number: int) -> Layer:
    kind = spec.kind(number)
    salts = salt(spec.seed, f"layer {number} {kind}", 3)
    if kind in RECURRENT_KINDS:
        return Recurrent(number, kind, spec.conv_size, salts[:2])
    place: Place = "window" if kind == "window" else "attention"
    return Attention(number, place, salts, turns=spec.turns(number))
