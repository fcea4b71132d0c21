"""Snapshot of mlx-lm's server between requests: prompt caches and their trie."""

from collections.abc import Iterator

from cachesim.engines.held import Amounts, EntryHeld, Held, NodeHeld, Texts, TreeHeld
from cachesim.engines.mlx_lm.server.provenance import holdings as proof_of
from cachesim.engines.mlx_lm.server.store import ServerStore
from cachesim.engines.mlx_lm.store.lru_prompt_cache import CacheEntry
from cachesim.model.arithmetic import Network
from cachesim.units import Tokens, as_tokens


def held(store: ServerStore, network: Network) -> Held:
    """Every entry of the store, and the tokens of places that hold something else than its key."""
    return Held(
        entries=tuple(
            EntryHeld(
                tokens=as_tokens(tokens),
                checkpoints=0,
                size=int(entry.nbytes),
                kind=entry.cache_type,
                held=_astray(network, entry, as_tokens(tokens)),
            )
            for _, tokens, entry in store.cache.trie.items()
        ),
        tree=TreeHeld(name="prompt trie", of="entries", nodes=tuple(_nodes(store, network))),
    )


def _nodes(store: ServerStore, network: Network) -> Iterator[NodeHeld]:
    """The trie; what leads to no entry any more is left of those that were taken out."""
    for each in store.cache.trie.stretches():
        tokens = as_tokens(each.tokens)
        saved = [f"{entry.cache_type} cache".strip() for entry in each.values]
        yield NodeHeld(
            number=each.number,
            parent=each.parent,
            tokens=tokens,
            count=each.count,
            kept="here" if saved or each.leads_on else "gone",
            saved=saved[0] if saved else "",
            held=tuple(place for entry in each.values for place in _astray(network, entry, tokens)),
        )


def _astray(network: Network, entry: CacheEntry, tokens: Tokens) -> tuple[tuple[str, Tokens], ...]:
    return tuple(
        (each.place, each.tokens)
        for each in proof_of(network, entry.prompt_cache, tokens)
        if not each.sound
    )


def texts(store: ServerStore) -> Texts:
    """The keys of the entries alone."""
    return Texts(entries=tuple(as_tokens(tokens) for _, tokens, _ in store.cache.trie.items()))


def amounts(store: ServerStore) -> Amounts:
    """The bytes of all entries; a release that limits none counts none."""
    return Amounts(parked=store.cache.nbytes if store.cache.rules.limits_bytes else 0)
