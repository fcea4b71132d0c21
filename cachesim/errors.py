"""Exceptions of cachesim, as one tree.

* CachesimError
  + InputError               what the caller handed in is wrong          (exit status 2)
    - SpecError              a model that cannot be built
    - TokenError             a token outside the vocabulary, an empty prompt
    - PositionError          a negative or repeated position in a sequence
    - LimitError             larger than a stated limit
    - ProfileError           an engine, release or patch that does not exist
    - OptionError            an option the release does not have, or a value it cannot take
    - TemplateError          a conversation that the chat template refuses
    - ScenarioError          a scenario file that is wrong; carries every problem
    - BlobError              a saved state that is damaged or belongs elsewhere
  + UpstreamAbort            the real process would have ended here; names the upstream assertion
    - UpstreamEndless        it would never end, and answer nobody
  + OutOfTimeError           the time that a caller gave is over
  + UntestedError            nothing was tested that could have failed   (exit status 4)
  + ContractError            cachesim broke its own promise: a bug, please report (exit status 3)
"""

from traceback import walk_tb
from typing import ClassVar


class CachesimError(Exception):
    """Base class of every intended exception."""


class InputError(CachesimError, ValueError):
    """Invalid input; the message names the problem and what to write instead."""


class SpecError(InputError):
    """A model that cannot be built."""


class TokenError(InputError):
    """A token outside the vocabulary, or a prompt without tokens."""


class PositionError(InputError):
    """A negative or repeated position in a sequence."""


class LimitError(InputError):
    """Something is larger than a stated limit."""


class ProfileError(InputError):
    """An engine, release or patch that does not exist."""


class OptionError(InputError):
    """An option that the release does not have, or a value it cannot take."""


class TemplateError(InputError):
    """A conversation that the chat template refuses."""


class ScenarioError(InputError):
    """A scenario file that is wrong; `problems` names everything that is, one line each."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class BlobError(InputError):
    """A saved state that is damaged, or of another kind of memory."""


class UpstreamAbort(CachesimError):  # noqa: N818 - upstream's word for it
    """The real process would end here.

    `where` is the upstream function, `why` the condition it asserts.
    """

    fate: ClassVar[str] = "aborts"

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: the real process {self.fate} here: {why}")
        self.where = where
        self.why = why


class UpstreamEndless(UpstreamAbort):
    """The real process would loop without end here."""

    fate: ClassVar[str] = "loops forever"


class OutOfTimeError(CachesimError):
    """The caller's time limit is over; results until then are kept."""


class UntestedError(CachesimError):
    """Nothing was tested that could have failed; the message names what was missing."""


class ContractError(CachesimError):
    """An internal contract of cachesim is broken: please report this bug."""


def raised_by(error: BaseException, package: str) -> str:
    """The module and line of an engine's package that raised an exception, itself or in a library.

    Empty if cachesim raised it, or if the engine is one of its own.
    """
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("cachesim."):
            place = ""
        elif module.startswith(f"{package}."):
            place = f"{module}, line {line}"
    return place
