"""Random operation sequences on mlx-lm's store of prompt caches, and on its trie."""

from random import Random
from typing import Any, Final

from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.real.mlx_lm.cache_sequences import Operation, Sequenced
from cachesim.real.mlx_lm.rows import read_row, write_row
from cachesim.real.mlx_lm.store_player import StorePlayer

KINDS: Final = ("attn", "swa", "hyb", "chunked")
TYPES: Final = ("assistant", "assistant", "user", "system")


def draw_store_sequence(release: str, random: Random) -> Sequenced:
    """10 to 30 operations on a store; some conversations use one kind of model, some mix them."""
    args: dict[str, int] = {"max_size": random.choice((1, 2, 3, 5, 10))}
    if FAMILY.release(release).rules.store.limits_bytes and random.random() < 0.4:
        args["max_bytes"] = random.choice((60, 200, 1000, 7000))
    drawing = _StoreDrawing(release, args, random)
    for _ in range(random.randint(10, 30)):
        if not drawing.one_more():
            break
    return {
        "version": release,
        "group": "store",
        "args": args,
        "ops": drawing.ops,
        "until_error": True,
    }


class _StoreDrawing:
    """A sequence in the making."""

    def __init__(self, release: str, args: dict[str, int], random: Random) -> None:
        self.random = random
        self.rules = FAMILY.release(release).rules.store
        self.player = StorePlayer(FAMILY.release(release).rules.caches, self.rules, args)
        self.ops: list[Operation] = []
        self.kinds = KINDS if random.random() < 0.4 else (random.choice(KINDS),)
        self.alphabet = random.choice((2, 3, 5))
        self.window = random.choice((4, 8))
        self._tag = 0
        self._keys: list[list[int]] = []

    def one_more(self) -> bool:
        """Draw and play an operation; False when it raised."""
        op = self._draw()
        self.ops.append(op)
        return "error" not in self.player.play(op)

    def _draw(self) -> Operation:
        draws = [self._insert, self._fetch, self._turn, self._search]
        weights = [8, 5, 6, 2]
        if self.rules.limits_bytes:
            draws, weights = [*draws, self._trim_to], [*weights, 1]
        if self.player.built:
            draws, weights = [*draws, self._grow], [*weights, 1]
        return self.random.choices(draws, weights)[0]()

    def _key(self, shortest: int = 1) -> str:
        key: list[int] = []
        if self._keys and self.random.random() < 0.75:
            known = self.random.choice(self._keys)
            key = known[: self.random.randint(0, len(known))]
        for _ in range(self.random.randint(0, 6)):
            key.append(self.random.randint(1, self.alphabet))
        while len(key) < shortest:
            key.append(self.random.randint(1, self.alphabet))
        return write_row(key)

    def _entry(self) -> dict[str, Any]:
        self._tag += 1
        entry: dict[str, Any] = {
            "kind": self.random.choice(self.kinds),
            "exact": self.random.random() < 0.7,
            "tag": self._tag,
        }
        if entry["kind"] in ("swa", "chunked"):
            entry["window"] = self.window
        return entry

    def _insert(self) -> Operation:
        key = self._key(int(self.random.random() < 0.95))
        self._keys.append(read_row(key))
        pieces, left = [], len(read_row(key))
        while left:
            pieces.append(self.random.randint(1, left))
            left -= pieces[-1]
        return {
            "op": "insert",
            "model": self.random.choice("mmmn"),
            "key": key,
            "type": self.random.choice(TYPES),
            "entry": self._entry() | {"pieces": pieces},
        }

    def _fetch(self) -> Operation:
        return {"op": "fetch", "model": self.random.choice("mmmn"), "key": self._key()}

    def _search(self) -> Operation:
        return {"op": "search", "model": self.random.choice("mmmn"), "key": self._key(0)}

    def _turn(self) -> Operation:
        key = self._key()
        count = self.random.randint(1, 4)
        reply = [self.random.randint(1, self.alphabet) for _ in range(count)]
        self._keys.append([*read_row(key), *reply])
        entry = self._entry()
        return {
            "op": "turn",
            "model": self.random.choice("mmmn"),
            "key": key,
            "reply": write_row(reply),
            "type": self.random.choice(TYPES),
            **entry,
        }

    def _grow(self) -> Operation:
        self._tag += 1
        tokens = write_row([90, 91, 92][: self.random.randint(1, 3)])
        tag = self.random.choice(list(self.player.built))
        return {"op": "grow", "tag": tag, "tokens": tokens, "new_tag": self._tag}

    def _trim_to(self) -> Operation:
        op: Operation = {"op": "trim_to"}
        if self.random.random() < 0.6:
            op["n_sequences"] = self.random.randint(-1, 5)
        if self.random.random() < 0.5:
            op["n_bytes"] = self.random.choice((-5, 0, 100, 500, 3000))
        return op


def draw_trie_sequence(release: str, random: Random) -> Sequenced:
    """10 to 40 operations on the trie alone."""
    keys: list[list[int]] = [[]]
    ops: list[Operation] = []
    for value in range(random.randint(10, 40)):
        known = random.choice(keys)
        key = known[: random.randint(0, len(known))]
        key = [*key, *(random.randint(1, 3) for _ in range(random.randint(0, 5)))]
        name = random.choice(
            ("add", "add", "add", "search", "search", "get", "pop", "pop_prefixes")
        )
        op: Operation = {"op": name, "model": random.choice("mmn"), "key": write_row(key)}
        if name == "add":
            op["value"] = value
            keys.append(key)
        ops.append(op)
    return {"version": release, "group": "trie", "ops": ops}
