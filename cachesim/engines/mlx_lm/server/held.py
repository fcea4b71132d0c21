"""What mlx-lm's server holds between requests: the stored prompt caches."""

from cachesim.engines.held import Amounts, EntryHeld, Held
from cachesim.engines.mlx_lm.server.provenance import holdings as proof_of
from cachesim.engines.mlx_lm.server.store import ServerStore
from cachesim.model.arithmetic import Network
from cachesim.units import as_tokens


def held(store: ServerStore, network: Network) -> Held:
    """Every entry of the store, and the tokens of places that hold something else than its key."""
    return Held(
        entries=tuple(
            EntryHeld(
                tokens=as_tokens(tokens),
                checkpoints=0,
                size=int(entry.nbytes),
                kind=entry.cache_type,
                held=tuple(
                    (each.place, each.tokens)
                    for each in proof_of(network, entry.prompt_cache, as_tokens(tokens))
                    if not each.sound
                ),
            )
            for _, tokens, entry in store.cache.trie.items()
        )
    )


def amounts(store: ServerStore) -> Amounts:
    """The bytes of all entries; a release that limits none counts none."""
    return Amounts(parked=store.cache.nbytes if store.cache.rules.limits_bytes else 0)
