"""The laws of a server's cache, and what a run says of each."""

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from cachesim.probe.outcome import Finding

Status: TypeAlias = Literal["holds", "violated", "not applicable", "not run"]


@dataclass(frozen=True, slots=True)
class Law:
    """A law, and the sentence that a server has to keep."""

    name: str
    sentence: str


LAWS: Final = {
    law.name: law
    for law in (
        Law("answer", "A reply from cache is the uncached reply, within rounding."),
        Law(
            "count",
            "The cached tokens that a server reports were sent before, and are those that the"
            " release's own rules give.",
        ),
        Law(
            "isolation",
            "Nothing that only another conversation said comes back, and a request that asks for"
            " no reuse, or has a key of its own, gets none.",
        ),
        Law("liveness", "No request stops the server or stays without an answer."),
        Law("restart", "A saved conversation is the same one after a restart."),
        Law("cancel", "A client that leaves changes no later answer."),
        Law("company", "Requests that are answered beside each other are answered as if alone."),
        Law("lost-reuse", "What the release's own rules allow to be reused is reused."),
    )
}
"""The laws by name, in the order of the table."""


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What a run says of one law on one model."""

    law: str
    requests: int = 0  # answers that the law was held against
    why_not: str = ""  # it does not apply to this server
    missing: str = ""  # what kept it from being judged
    notes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def status(self) -> Status:
        if self.findings:
            return "violated"
        if self.why_not:
            return "not applicable"
        return "holds" if self.requests and not self.missing else "not run"

    @property
    def reason(self) -> str:
        """Why a law was not judged."""
        return self.why_not or self.missing or "no request of this law was answered"

    @property
    def cell(self) -> str:
        """The verdict as a cell of a table."""
        if self.status == "holds":
            return f"holds in {self.requests:,}"
        return self.status
