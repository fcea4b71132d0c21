"""The external store that the real scheduler is given; runs in the worker."""

import importlib
import sys
from typing import Any, Final

Real = Any  # whatever the release makes of it

CONNECTOR: Final = "WorkloadStore"
"""The connector that a configuration names; `connector` makes it."""


class Store:
    """The scheduler's half of a KV connector; the workload has its number of stored tokens."""

    requires_kv_delivery = False
    supports_divergent_local_hybrid_hits = False

    server: Real = None  # whose workload is run

    def __init__(self, vllm_config: Real, role: Real, kv_cache_config: Real) -> None:
        del vllm_config, role, kv_cache_config

    def __getattr__(self, name: str) -> Real:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def get_num_new_matched_tokens(self, request: Real, local: int) -> tuple[int, bool]:
        """Tokens beyond the local hit, and whether they are loaded in later steps."""
        server = self.server
        wanted = server.wanted[request.request_id]
        if server.groups_apart:
            server.results[request.request_id]["lookups"].append([local])
        found = max(0, self.reached(request) - local)
        return found, found > 0 and "loads" in wanted

    def update_state_after_alloc(self, request: Real, blocks: Real, external: int) -> None:
        """Begin a load."""
        if not external:
            return
        server, tables = self.server, blocks.get_block_ids()
        block = server.config["groups"][0]["block"]
        wanted = server.wanted[request.request_id]
        end = self.reached(request)
        first, count = (end - external) // block, external // block
        server.loads.begin(request.request_id, wanted, tables, first, count)

    def reached(self, request: Real) -> int:
        """End of the tokens that the store has of a request."""
        size, wanted = self.server.sizes[0], self.server.wanted[request.request_id]
        if "leaves" in wanted:  # a prefill server's: not cut to whole blocks
            return int(min(wanted["stored"], request.num_tokens - wanted["leaves"]))
        return int(min(wanted.get("stored", 0), request.num_tokens - 1) // size * size)

    def request_finished_all_groups(self, request: Real, *_: Real) -> tuple[bool, None]:
        """True if the blocks of a request that ran to its end are still to be sent."""
        server = self.server
        wanted = server.wanted[request.request_id]
        if request.status != server.release.ended or "sends" not in wanted:
            return False, None
        server.loads.sending[request.request_id] = wanted["sends"]
        return True, None

    request_finished = request_finished_all_groups

    def take_events(self) -> tuple[()]:
        return ()

    def get_loaded_kv_cache_group_ids(self, *_: Real) -> tuple[()]:
        """Nothing is loaded behind the scheduler's back."""
        return ()

    def has_pending_block_frees(self) -> bool:
        """Nothing is held."""
        return False

    def register_finished_partial_tail(self, *_: Real) -> bool:
        """Nothing is read of the last state, so its block is not waited for (0.30)."""
        return False

    has_pending_push_work = has_pending_block_frees


def connector() -> type[Store]:
    """The store as a KV connector with support for groups, registered by name."""
    made: Real = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.base")
    bases = (Store, made.SupportsHMA, made.KVConnectorBase_V1)
    found: Real = type(CONNECTOR, bases, {})
    found.__abstractmethods__ = frozenset()
    setattr(sys.modules[__name__], CONNECTOR, found)
    store: type[Store] = found
    return store
