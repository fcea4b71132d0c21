"""Who asks the storage once more, and in which pass. Follows `StoragePrefetchRetries`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cachesim.engines.sglang.request import Req


@dataclass(slots=True)
class Retry:
    """One request that is to ask again; `due` is a pass, None: not said yet."""

    known_until: int | None = None  # storage_hit_end
    due: int | None = None


@dataclass(slots=True)
class Retries:
    """Misses are asked for again some passes later, in the order of the queue."""

    interval: int
    attempts: int
    pending: dict[int, Retry] = field(default_factory=dict)
    step: int = 0

    def missed(self, request: int, known_until: int | None = None) -> None:
        """The storage had nothing, or the host no room (`poll_miss`)."""
        self.pending[request] = Retry(known_until)

    def cancel(self, request: int) -> None:
        """It does not ask again."""
        self.pending.pop(request, None)

    def ready(self, waiting: Sequence[Req]) -> list[tuple[Req, int | None]]:
        """Who asks in this pass (`pop_ready`). Trap: the head of the queue never asks again."""
        self.step += 1
        if not waiting or not self.pending:
            return []
        self.cancel(waiting[0].id)
        if not any(each.due is None or each.due <= self.step for each in self.pending.values()):
            return []
        found = []
        for req in waiting:
            retry = self.pending.get(req.id)
            if retry is None:
                continue
            if req.reissues >= self.attempts or self.interval <= 0:
                self.cancel(req.id)
                continue
            if retry.due is None:
                retry.due = self.step + self.interval
            if retry.due > self.step:
                continue
            self.cancel(req.id)
            found.append((req, retry.known_until))
        return found
