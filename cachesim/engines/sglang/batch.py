"""What goes through the network together, and how much of it there may be."""

from collections.abc import Sequence
from dataclasses import dataclass

from cachesim.engines.sglang.request import Req


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one batch may hold."""

    chunk: int = 8192  # chunked_prefill_size
    max_prefill: int = 16384  # max_prefill_tokens
    max_running: int = 8
    max_len: int = 4096
    interval: int = 256  # mamba_track_interval
    ignores_eos: bool = False


@dataclass(slots=True, eq=False)
class Batch:
    """Requests that go through the network together."""

    reqs: list[Req]
    extend: bool = False
    chunked: Req | None = None
    is_full: bool = False

    def keep(self, excluded: Sequence[Req] = ()) -> bool:
        """Drop finished and excluded requests; whether any went. Follows `filter_batch`."""
        before = len(self.reqs)
        gone = {id(req) for req in excluded}
        self.reqs = [r for r in self.reqs if not r.finished and id(r) not in gone]
        return len(self.reqs) < before
