"""Runs in notebooks: HTML without scripts; elsewhere a line."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from cachesim.play.result import Run
from cachesim.report.html import fragment, page
from cachesim.report.tables import cached_row, worst_answer


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    """Runs with their HTML; `runs` are the values themselves."""

    runs: tuple[Run, ...]

    def __repr__(self) -> str:
        """A line: scenario, profile, cached tokens, the worst answer."""
        lines = (
            f"{run.scenario} on {run.profile}: cached {cached_row(run.steps)},"
            f" {worst_answer(run.steps) or 'not compared'}"
            for run in self.runs
        )
        return f"<{'; '.join(lines)}>"

    def _repr_html_(self) -> str:
        return "".join(fragment(run) for run in self.runs)

    def page(self) -> str:
        """The whole report as an HTML file; best with `detail=True`."""
        return page(self.runs)

    def frame(self, height: int = 900) -> "Framed":
        """The whole report in a frame of a notebook."""
        return Framed(page(self.runs), height)


@dataclass(frozen=True, slots=True, repr=False)
class Framed:
    """A page in an HTML frame."""

    text: str
    height: int

    def __repr__(self) -> str:
        return f"<report of {len(self.text) // 1000} kB>"

    def _repr_html_(self) -> str:
        return (
            f'<iframe title="cachesim report" sandbox="allow-scripts" width="100%"'
            f' height="{int(self.height)}" style="border: 0" srcdoc="{escape(self.text)}"></iframe>'
        )


def show(runs: Run | Sequence[Run]) -> Shown:
    """Wrap one or several results of `run_scenario` for a notebook."""
    return Shown((runs,) if isinstance(runs, Run) else tuple(runs))
