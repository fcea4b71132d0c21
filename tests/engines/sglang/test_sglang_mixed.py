"""Mixed chunks: requests that decode go on beside the pieces of a prompt.

The expected values of the schedules are those of the releases' own schedulers.
"""

from typing import Any

import pytest

from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.request import Batch
from cachesim.engines.sglang.scheduler import Scheduler
from conformance.real.sglang.playing import play
from tests.engines.conversations import wrong
from tests.engines.sglang.workloads import Workload

SMALL = {"kind": "full", "max_running": 8, "max_len": 4096, "ignore_eos": False}


def played(release: str, config: dict[str, Any], *group: dict[str, Any]) -> dict[str, Any]:
    """The server's content after a group of requests."""
    asked = {"config": SMALL | {"mixes": True} | config, "steps": [group]}
    (told,) = play(asked, FAMILY.release(release).rules)
    return told


def asked(prompt: str, generate: int, reply: str, arrives: int = 0) -> dict[str, Any]:
    return {"prompt": prompt, "generate": generate, "reply": reply, "arrives": arrives}


@pytest.mark.parametrize("release", FAMILY.names())
def test_who_decodes_takes_a_token_of_the_chunk(release: str) -> None:
    """Seven of eight tokens are left for a prompt beside one that decodes; alone it has eight."""
    group = asked("28-30", 2, "31-32"), asked("10-23", 1, "24", arrives=1)

    told, alone = (
        played(release, {"tokens": 48, "chunk": 8, "mixes": mixes}, *group)
        for mixes in (True, False)
    )

    assert [[[0, 3]], [[0, 7], [7, 14]]] == [request["chunks"] for request in told["requests"]]
    assert [[[0, 3]], [[0, 8], [8, 14]]] == [request["chunks"] for request in alone["requests"]]
    assert [[0, 3, 3], [0, 4, 1], [1, 7, 7], [1, 14, 7]] == told["tree"]


def test_a_prompt_that_leaves_no_memory_for_who_decodes_ends_059() -> None:
    """Three requests need a page each, and the prompt beside them has left two."""
    three = [asked("10-13", 2, "14-15"), asked("20-23", 2, "24-25"), asked("30-33", 2, "34-35")]
    config = {"page": 4, "tokens": 36, "chunk": 64}
    group = (*three, asked("40-52", 1, "53", arrives=1))

    old, new = (played(release, config, *group) for release in ("0.5.9", "0.5.23"))

    assert "Decode out of memory" in old["error"]
    assert [[0, 4, 4], [1, 4, 4], [2, 4, 4], [3, 12, 12]] == new["tree"]
    assert [0, 0, 0, 0] == [request["retracted"] for request in new["requests"]]


class Mixed(Workload):
    """Conversations in groups, whose prompts are read in chunks of 64 while others decode."""

    together = (2, 3, 4)

    def _options(self, old: bool) -> dict[str, Any]:
        mixed = {"enable_mixed_chunk": True, "chunked_prefill_size": 64, "page_size": 1}
        return super()._options(old) | mixed


@pytest.mark.sampled(3)
@pytest.mark.parametrize("release", FAMILY.names())
def test_answers_beside_a_prompt_are_right(release: str) -> None:
    found = {seed: len(wrong(Mixed(seed, f"sglang@{release}"))) for seed in range(15)}

    assert {} == {seed: count for seed, count in found.items() if count}


def test_some_decode_beside_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = []
    mix = Scheduler._mix

    def watched(scheduler: Scheduler, batch: Batch) -> None:
        mix(scheduler, batch)
        mixed.append(len(batch.decoding))

    monkeypatch.setattr(Scheduler, "_mix", watched)
    for seed in range(4):
        assert [] == wrong(Mixed(seed, "sglang@0.5.23"))

    assert max(mixed) >= 2
