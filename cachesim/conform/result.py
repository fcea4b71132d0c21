"""The table of laws and models, and what each violation shows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cachesim.conform.laws import LAWS, Verdict
from cachesim.engines.words import counted
from cachesim.probe.outcome import Finding
from cachesim.probe.result import finding_json
from cachesim.typed import JsonObject

HEAD: Final = "law"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The verdicts on one model, and the server that answered."""

    model: str
    server: str
    verdicts: tuple[Verdict, ...]
    about: tuple[str, ...]  # what was sent, how uncached answers came, rounding
    requests: int
    seconds: float
    files: tuple[Path, ...] = ()
    known: tuple[str, ...] = ()  # shipped scenarios that show the same causes

    @property
    def findings(self) -> Iterator[tuple[Verdict, Finding]]:
        """All violations, each with its law."""
        for verdict in self.verdicts:
            yield from ((verdict, finding) for finding in verdict.findings)


@dataclass(frozen=True, slots=True)
class Table:
    """All models of a server."""

    columns: tuple[Examined, ...]

    @property
    def violated(self) -> bool:
        return any(verdict.findings for column in self.columns for verdict in column.verdicts)

    @property
    def tested(self) -> bool:
        """True if one law was held against an answer."""
        return any(
            verdict.status in {"holds", "violated"}
            for column in self.columns
            for verdict in column.verdicts
        )

    def rows(self) -> Iterator[tuple[str, ...]]:
        """A row for each law: its name, and a cell for each model."""
        found = [{one.law: one for one in column.verdicts} for column in self.columns]
        for law in LAWS:
            cells = [verdicts[law].cell if law in verdicts else "" for verdicts in found]
            if any(cells):
                yield law, *cells

    def heads(self) -> Sequence[str]:
        return [HEAD, *(column.model for column in self.columns)]

    def lines(self) -> Iterator[str]:
        """What the table leaves out: the servers, violations, and reasons."""
        for column in self.columns:
            spent = f"{counted(column.requests, 'request')}, {column.seconds:.0f} s"
            yield f"{column.model}: {column.server} ({spent})"
            yield from (f"  {line}" for line in column.about)
            reasons: dict[str, list[str]] = {}
            for verdict in column.verdicts:
                if verdict.status.startswith("not"):
                    said = f"{verdict.status}: {verdict.reason}"
                    reasons.setdefault(said, []).append(verdict.law)
                yield from (f"  {verdict.law}: {note}" for note in verdict.notes)
            yield from (f"  {', '.join(laws)} {said}" for said, laws in reasons.items())

    def as_json(self) -> JsonObject:
        return {
            "format": 1,
            "laws": {law.name: law.sentence for law in LAWS.values()},
            "models": [
                {
                    "model": column.model,
                    "server": column.server,
                    "requests": column.requests,
                    "seconds": round(column.seconds, 1),
                    "about": list(column.about),
                    "known": list(column.known),
                    "files": [str(file) for file in column.files],
                    "verdicts": [verdict_json(verdict) for verdict in column.verdicts],
                }
                for column in self.columns
            ],
        }


def verdict_json(verdict: Verdict) -> JsonObject:
    """A verdict, with its violations."""
    return {
        "law": verdict.law,
        "status": verdict.status,
        "requests": verdict.requests,
        "reason": verdict.reason if verdict.status.startswith("not") else None,
        "notes": verdict.notes,
        "violations": [finding_json(finding) for finding in verdict.findings],
    }


def evidence(finding: Finding) -> str:
    """How often a violation was shown, in words."""
    wrong, plays = finding.proofs
    if plays:
        return f"{finding.sentence} (shown {wrong} of {plays} times)"
    return f"{finding.sentence} ({finding.hits} of {finding.replays} replays)"
