"""Two servers' lines in one log without prefixes: refused, and nothing else is."""

import gzip
import json
from collections.abc import Callable
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from cachesim.errors import InputError
from cachesim.why.explain.whole import read_files

DATA = Path(__file__).parent / "data"
KINDS = ("b9093-3", "b9538-3", "b11549-4", "b11549-3")


def logs_of(kind: str) -> list[str]:
    servers = json.loads(gzip.decompress((DATA / f"{kind}.json.gz").read_bytes()))["servers"]
    return [server["log"] for server in servers]


def requests_read(text: str) -> int:
    servers = read_files([("server.log", BytesIO(text.encode()))]).servers
    return sum(len(server.requests) for server in servers)


def merged(one: str, other: str, chance: Random) -> str:
    """Both logs, each in its own order, a few lines of each in turn."""
    left = [one.splitlines(), other.splitlines()]
    lines: list[str] = []
    while any(left):
        some = left[chance.randrange(2)]
        count = chance.randint(1, 3)
        lines += some[:count]
        del some[:count]
    return "\n".join(lines)


@pytest.mark.parametrize("kind", KINDS)
def test_lines_of_two_servers_without_prefixes_are_refused(kind: str) -> None:
    logs = logs_of(kind)
    found = []
    for seed, (one, other) in enumerate(pairwise(logs)):
        try:
            found.append(f"{requests_read(merged(one, other, Random(seed)))} requests")
        except InputError as error:
            found.append(str(error))

    assert [] == [each for each in found if "lines of two servers are mixed" not in each]
    assert all("--log-file" in each and "server.log:" in each for each in found)


def launched(task: int) -> str:
    return f"slot launch_slot_: id  0 | task {task} | processing task, is_child = 0\n"


def released(task: int) -> str:
    return f"slot release: id  0 | task {task} | stop processing: n_tokens = 9, truncated = 0\n"


def served(*tasks: int) -> str:
    return "".join(launched(task) + released(task) for task in tasks)


def test_tasks_of_servers_that_answer_in_turn_are_refused() -> None:
    with pytest.raises(InputError, match="went back 3 times"):
        requests_read(served(0, 40, 3, 44, 9, 60, 12, 71))


def test_a_task_that_goes_on_while_all_slots_are_idle_is_refused() -> None:
    idle = "srv  update_slots: all slots are idle\n"
    each = [launched(n) + idle + released(n) for n in (1, 5)]

    with pytest.raises(InputError, match="task 1 of slot 0 continues in line 3 after all slots"):
        requests_read("".join(each))


RESTART = "srv    load_model: loading model '/models/a.gguf'\n"


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        (served(0, 6, 40) + RESTART + served(0, 6, 40), 6),  # started again
        (RESTART.join([served(0, 6, 40) + launched(44)] * 4), 16),  # ended in the middle, often
        (served(0, 6, 40) * 4, 12),  # its start-up lines are lost
        (served(0, 6) + "".join(map(launched, (9, 12, 15, 18))) + served(20), 7),  # others are
        (served(0, 6) + launched(9) + served(12, 15) + released(9), 6),  # a line was moved
        (served(4, 8, 6, 12, 10, 30), 6),  # tasks that waited
    ],
)
def test_one_server_is_read(text: str, requests: int) -> None:
    assert requests == requests_read(text)


@pytest.mark.parametrize("read", [logs_of, lambda kind: ["".join(logs_of(kind))]])
@pytest.mark.parametrize("kind", KINDS)
def test_real_logs_are_read_alone_and_one_after_the_other(
    kind: str, read: Callable[[str], list[str]]
) -> None:
    assert all(requests_read(each) for each in read(kind))


def test_two_tasks_of_one_number_at_work_are_refused() -> None:
    first, other = (launched(n) for n in (0, 7))
    twins = [each.replace("id  0", "id  1") for each in (first, other)]
    text = first + twins[0] + released(0) + other + twins[1] + released(7)

    with pytest.raises(InputError, match="a task of this number was launched in another slot"):
        requests_read(text)
