"""Engine cores that know no slots: what is refused, and what stands for an action on a slot."""

from abc import abstractmethod
from typing import Any, ClassVar, Final, TypeVar

from cachesim.engines import base
from cachesim.engines.held import Texts
from cachesim.engines.job import Job, JobEngine, R, S
from cachesim.errors import OptionError, TokenError
from cachesim.units import Array, Count

J = TypeVar("J", bound=Job)
"""An engine's own view of a request."""

NO_SLOTS: Final = "{} has no slots to save: a step may be complete, cancel or slot-erase{}"


class SlotlessEngine(JobEngine[R, S, J]):
    """A queue and one cache for all requests."""

    erasing: ClassVar[str] = ""
    """The server's own operation for `slot-erase`; empty if it has none."""

    limit_flag: ClassVar[str]
    """The server's option for the most tokens of a reply."""

    # -- requests ----------------------------------------------------------------------------------

    def _check(self, request: base.Request, **foreign: bool) -> None:
        """Refuse fields that an engine does not have, and tokens outside the vocabulary.

        Without a network tokens may be any numbers.
        """
        everywhere = {
            "slot": request.slot != -1,
            "completions": request.completions != 1,
            "messages": bool(request.messages),
        }
        for name, present in (everywhere | foreign).items():
            if present:
                msg = f"a request to {self.family.name} has no field {name!r} here: leave it out"
                raise OptionError(msg)
        if not request.prompt:
            msg = "a prompt without tokens: write at least one"
            raise TokenError(msg)
        size = self.network.spec.vocabulary
        outside = (each for each in request.prompt if not 0 <= each < size)
        first = next(outside, None) if self.computes else None
        if first is not None:
            msg = f"token {first} of the prompt is outside the vocabulary of {size}"
            raise TokenError(msg)

    def _limit(self, request: base.Request, room: int) -> int:
        wanted = room if request.predict < 0 else min(request.predict, room)
        if request.reply is not None:
            wanted = min(wanted, len(request.reply))
        if wanted < 1:
            msg = f"{self.limit_flag} must be at least 1: let the request generate a token"
            raise OptionError(msg)
        return wanted

    def _token(self, job: Job, index: int, row: Array) -> int:
        if job.forced is not None and index < len(job.forced):
            return int(job.forced[index])
        return int(self.network.sample(row))

    # -- actions on slots --------------------------------------------------------------------------

    @abstractmethod
    def _empty(self) -> None:
        """Forget what is cached, as far as the server can."""

    @abstractmethod
    def _blank(self, ticket: base.Ticket) -> J:
        """A job without a request."""

    def slot_erase(self, slot: int) -> base.Ticket:
        """A scenario's way to empty the cache."""
        del slot
        self._empty()
        job = self._blank(self._jobs.ticket())
        job.done, job.cached = True, Count(0)
        self._jobs.append(job)
        return job.ticket

    def slot_save(self, slot: int, name: str) -> base.Ticket:
        """There is nothing like it."""
        del slot, name
        raise OptionError(NO_SLOTS.format(self.family.name, self.erasing))

    slot_restore = slot_save

    # -- looking in --------------------------------------------------------------------------------

    def books(self) -> dict[str, Any]:
        return {"slots": [], "prompt_cache": []}

    def texts(self) -> Texts:
        return Texts()
