"""What a log or recorded requests tell of prompts and replies, as a trace for `replay`."""

from collections.abc import Iterator, Sequence

from cachesim.engines.rope import Rope, Run
from cachesim.errors import InputError
from cachesim.logs.dump import Recorded
from cachesim.logs.live import Live
from cachesim.logs.other import workload_of
from cachesim.logs.replay import Replay
from cachesim.logs.rerun import asked_of
from cachesim.logs.whole import Wanted
from cachesim.traces.runs import line_of


def trace_of_log(replays: Sequence[Replay]) -> str:
    """The rebuilt requests in the order in which they began; a log's clock is left out."""
    names = _Names()
    lines = []
    for life, replay in enumerate(replays):
        workload = workload_of(replay)
        for what, number in workload.order:
            if what == "launch":
                asked = workload.asked[number]
                lines.append(names.line(life, 0.0, asked.prompt, asked.reply))
    return _all(lines)


def trace_of_dump(requests: Sequence[Recorded], wanted: Wanted) -> str:
    """Recorded requests that were answered, with the milliseconds since the first."""
    live = Live(wanted)
    live.add_all(requests)
    names = _Names()
    began = [each.recorded.began for each in live.prompts if each.recorded.began is not None]
    zero = min(began, default=0.0)
    lines = []
    for each in live.prompts:
        if each.recorded.was_read and len(each.rope):
            time = 1000 * ((each.recorded.began or zero) - zero)
            lines.append(names.line(0, round(time, 3), each.rope, asked_of(each).reply))
    return _all(lines)


def _all(lines: Sequence[str]) -> str:
    if not lines:
        msg = "--trace: no request of it has a known prompt, so there is nothing to write"
        raise InputError(msg)
    return "".join(lines)


class _Names:
    """Numbers texts from 0 on, those of two servers' lives apart."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def line(self, life: int, time: float, prompt: Rope, reply: Rope) -> str:
        """A request as a line."""
        return line_of(time, list(self._runs(life, prompt)), list(self._runs(life, reply)))

    def _runs(self, life: int, rope: Rope) -> Iterator[Run]:
        for text, first, last in rope.runs:
            yield self._numbers.setdefault((life, text), len(self._numbers)), first, last
