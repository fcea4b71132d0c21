"""Adapters on SGLang: part of the key of the tree, and a limit of the batch."""

from typing import Any

import pytest

from cachesim.engines.base import Engine, Request, Ticket
from cachesim.engines.sglang.family import FAMILY
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.model.adapters import adapted
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.typed import there_is
from cachesim.units import as_tokens
from cachesim.verify.oracle import Oracle

RELEASES = FAMILY.names()
FILES = ("v1", "v2")


def with_files(release: str, **options: Any) -> Engine:
    network = adapted(build(preset("dense"), "ring"), FILES)
    options = {"lora": ",".join(FILES)} | options
    return Engine.create(f"sglang@{release}", model=network, options=options)


def send(engine: Engine, first: int, count: int, adapter: str = "", predict: int = 2) -> Ticket:
    """Send a prompt, under an adapter as `L=v1`."""
    name, _, path = adapter.partition("=")
    asked = {"lora": {"name": name, "path": path}} if name else None
    prompt = as_tokens([(first + number) % 256 for number in range(count)])
    return engine.submit(Request(prompt=prompt, predict=predict, options=asked))


def cached(engine: Engine, adapter: str) -> int:
    ticket = send(engine, 0, 40, adapter)
    engine.run()
    return int(there_is(there_is(engine.reply(ticket)).cached))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("adapters", "hits"),
    [
        (("L=v1", "L=v1"), [0, 39]),
        (("L=v1", "M=v1", ""), [0, 0, 0]),
        (("L=v1", "L=v2", "L=v1"), [0, 0, 0]),
    ],
)
def test_each_load_of_an_adapter_has_prefixes_of_its_own(
    release: str, adapters: tuple[str, ...], hits: list[int]
) -> None:
    """A file that is loaded again under its old name has a new id."""
    engine = with_files(release)

    assert hits == [cached(engine, adapter) for adapter in adapters]


@pytest.mark.parametrize("release", RELEASES)
def test_each_request_is_computed_under_its_own_adapter(release: str) -> None:
    engine = with_files(release)
    tickets = [send(engine, 0, 30, each) for each in ("L=v1", "M=v2", "", "L=v1")]
    engine.run()

    replies = [there_is(engine.reply(ticket)) for ticket in tickets]

    for reply in replies:
        cold = Oracle(engine.network).logits(reply.prompt, reply.generated, reply.strengths)
        assert cold.tolist() == reply.logits.tolist()
    assert len({tuple(map(int, reply.logits[0].ravel())) for reply in replies}) == len(FILES) + 1


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("most", "order"), [(1, [0, 2, 1]), (2, [0, 1, 2])])
def test_a_request_waits_for_room_for_its_adapter(
    release: str, most: int, order: list[int]
) -> None:
    """The third request has the adapter that runs, and overtakes the second."""
    engine = with_files(release, max_loras_per_batch=most)

    for number, adapter in enumerate(("L=v1", "", "L=v1")):
        send(engine, 60 * number, 20, adapter)
    engine.run()

    finished = [event.task for event in engine.events if event.name() == "request-finished"]
    assert order == finished


@pytest.mark.parametrize("release", RELEASES)
def test_059_ends_on_a_second_adapter_beside_half_a_prompt(release: str) -> None:
    engine = with_files(release, max_loras_per_batch=1, chunked_prefill_size=64)
    send(engine, 0, 100, "L=v1")
    engine.step()
    send(engine, 120, 10, "M=v2")

    if release == "0.5.9":
        with pytest.raises(UpstreamAbort, match="max_loras_per_batch"):
            engine.run()
    else:
        engine.run()


def test_an_unknown_file_is_refused() -> None:
    with pytest.raises(OptionError, match="there is no file 'v3'; there are v1, v2"):
        send(with_files("0.5.23"), 0, 10, "L=v3")
