"""The external store that the real scheduler is given; runs in the worker."""

from typing import Any

Real = Any  # whatever the release makes of it


class Everything(type):
    """Whatever is asked about an instance is so."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class SupportsHMA(metaclass=Everything):
    """The mark of connectors that know of groups: the store has it."""


class Store:
    """The scheduler's half of a KV connector: what it has of a request the workload says."""

    requires_kv_delivery = False
    supports_divergent_local_hybrid_hits = False

    def __init__(self, server: Real) -> None:
        self.server = server

    def __getattr__(self, name: str) -> Real:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def get_num_new_matched_tokens(self, request: Real, local: int) -> tuple[int, bool]:
        """Tokens beyond the local hit, loaded before the step runs."""
        size = self.server.sizes[0]
        if self.server.groups_apart:
            self.server.told[request.request_id]["lookups"].append([local])
        stored = self.server.wanted[request.request_id].get("stored", 0)
        return max(0, min(stored, request.num_tokens - 1) // size * size - local), False

    def request_finished_all_groups(self, *_: Real) -> tuple[bool, None]:
        """Nothing is sent: blocks may be freed at once."""
        return False, None

    request_finished = request_finished_all_groups

    def take_events(self) -> tuple[()]:
        """None."""
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
