"""A store of prompt caches in the words of the worked rows: texts of digits in, texts out."""

from collections.abc import Sequence

from cachesim.engines.mlx_lm.caches.prompt_cache import LayerCache
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.store.lru_prompt_cache import UNLIMITED, LRUPromptCache
from tests.engines.mlx_lm.cache_kit import RULES

GENERATIONS = {
    "G0": FAMILY.release("0.30.7").rules.store,
    "G1": FAMILY.release("after-906").rules.store,
    "G2": FAMILY.release("0.31.1").rules.store,
    "G3": FAMILY.release("after-1019").rules.store,
    "G4": FAMILY.release("0.32.2").rules.store,
}


class Mock(LayerCache):
    """A layer whose state is its list of tokens; T: it can be trimmed, N: it cannot."""

    def __init__(self, tokens: Sequence[int], *, trimmable: bool, nbytes: int = 1) -> None:
        super().__init__(RULES)
        self.tokens = list(tokens)
        self._trimmable = trimmable
        self._bytes = nbytes

    def is_trimmable(self) -> bool:
        return self._trimmable

    def trim(self, n: int) -> int:
        n = min(len(self.tokens), n)
        self.tokens = self.tokens[: len(self.tokens) - n]
        return n

    def size(self) -> int:
        return len(self.tokens)

    def count_bytes(self) -> int:
        return self._bytes


class Store(LRUPromptCache):
    """A store with short hands: keys are texts of one-digit tokens."""

    def T(self, key: str, kind: str = "assistant", nbytes: int = 1) -> list[LayerCache]:  # noqa: N802
        return self.put(key, kind, nbytes=nbytes, trimmable=True)

    def N(self, key: str, kind: str = "assistant", nbytes: int = 1) -> list[LayerCache]:  # noqa: N802
        return self.put(key, kind, nbytes=nbytes, trimmable=False)

    def put(
        self, key: str, kind: str, *, nbytes: int, trimmable: bool, model: str = "m"
    ) -> list[LayerCache]:
        cache: list[LayerCache] = [Mock(digits(key), trimmable=trimmable, nbytes=nbytes)]
        self.insert_cache(model, digits(key), cache, cache_type=kind)
        return cache

    def look(self, key: str) -> tuple[str, str] | None:
        """(state, rest), or None for a miss."""
        cache, rest = self.fetch_nearest_cache("m", digits(key))
        if cache is None:
            assert digits(key) == list(rest)
            return None
        layer = cache[0]
        assert isinstance(layer, Mock)
        return "".join(map(str, layer.tokens)), "".join(map(str, rest))

    @property
    def keys(self) -> set[str]:
        return {"".join(map(str, tokens)) for _, tokens, _ in self.trie.items()}

    def queue(self, name: str) -> list[str]:
        return ["".join(map(str, tokens)) for _, tokens in self.order.queues[name]]


def digits(key: str) -> list[int]:
    return [int(digit) for digit in key]


def store(generation: str = "G4", max_size: int = 10, max_bytes: int = UNLIMITED) -> Store:
    return Store(GENERATIONS[generation], max_size, max_bytes)
