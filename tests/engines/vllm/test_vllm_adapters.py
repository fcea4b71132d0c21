"""LoRA adapters on vLLM: part of the ids of blocks, and a limit of each step."""

from typing import Any

import pytest

from cachesim.engines.base import Engine, Request, Ticket
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.server import Vllm
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.model.adapters import adapted
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.typed import of_kind, there_is
from cachesim.units import as_tokens
from tests.engines.asking import answer

RELEASES = FAMILY.names()
BY_NAME = RELEASES[: RELEASES.index("0.31.0")]
BY_PATH = RELEASES[RELEASES.index("0.31.0") :]
PROMPT = as_tokens(range(300, 370))
WHOLE = 64
"""Tokens of the whole blocks of the prompt."""


def with_files(release: str = "0.33.0", **options: Any) -> Engine:
    network = adapted(build(preset("dense"), "ring"), ["v1", "v2"])
    return Engine.create(f"vllm@{release}", model=network, options={"lora": "v1, v2"} | options)


def lora(name: str, path: str, **more: str) -> dict[str, Any]:
    return {"lora": {"name": name, "path": path} | more}


@pytest.mark.parametrize(
    ("releases", "second", "hit"),
    [
        (RELEASES, lora("L", "v1"), WHOLE),
        (RELEASES, lora("L", "v1", weights="v2"), WHOLE),  # no id covers the weights
        (RELEASES, lora("L2", "v1"), 0),
        (RELEASES, None, 0),
        (BY_NAME, lora("L", "v2"), WHOLE),
        (BY_PATH, lora("L", "v2"), 0),
    ],
)
def test_blocks_are_found_again_by_an_adapters_name_and_since_031_its_path(
    releases: tuple[str, ...], second: Any, hit: int
) -> None:
    for release in releases:
        engine = with_files(release)
        answer(engine, PROMPT, 1, options=lora("L", "v1"))

        assert (release, hit) == (release, answer(engine, PROMPT, 1, options=second).cached)


@pytest.mark.parametrize(("releases", "hit"), [(BY_NAME, 16), (BY_PATH, 0)])
def test_a_salt_with_an_adapters_name_hits_its_first_block_until_030(
    releases: tuple[str, ...], hit: int
) -> None:
    for release in releases:
        engine = with_files(release)
        answer(engine, PROMPT, 1, options=lora("L", "v1"))
        salted = answer(engine, PROMPT, 1, options={"cache_salt": "L"})

        assert (release, hit) == (release, salted.cached)


def test_each_request_is_computed_under_its_own_file() -> None:
    one, other = (answer(with_files(), PROMPT, 1, options=lora("L", each)) for each in ("v1", "v2"))

    assert one.logits.tolist() != other.logits.tolist()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("L", "is no adapter; write"),
        ({"name": "L"}, "is no adapter; write"),
        ({"name": "L", "path": "v1", "file": "v2"}, "is no adapter; write"),
        ({"name": "", "path": "v1"}, "the name is ''; write a text"),
        ({"name": "L", "path": 3}, "the path is 3; write a text"),
        ({"name": "L", "path": "v3"}, "there is no file 'v3'; there are v1, v2"),
        ({"name": "L", "path": "p", "weights": "v3"}, "there is no file 'v3'; there are v1, v2"),
    ],
)
def test_an_adapter_that_cannot_be_had_is_refused(given: Any, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        with_files().submit(Request(prompt=PROMPT, predict=1, options={"lora": given}))


def send(engine: Engine, first: int, adapter: str, count: int = 40, predict: int = 3) -> Ticket:
    """Send a prompt of its own, under the adapter of this name, if any."""
    prompt = as_tokens(range(first, first + count))
    options = lora(adapter, "v1") if adapter else None
    return engine.submit(Request(prompt=prompt, predict=predict, options=options))


def order(engine: Engine, tickets: list[Ticket]) -> list[int]:
    """The requests by the step in which each has its reply."""
    done: list[int] = []
    while len(done) < len(tickets):
        engine.step()
        ended = [at for at, ticket in enumerate(tickets) if engine.reply(ticket) is not None]
        done += [at for at in ended if at not in done]
    return done


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("most", "expected"), [(1, [0, 2, 3, 1]), (2, [0, 1, 2, 3])])
def test_a_request_of_one_adapter_too_many_waits_and_is_overtaken(
    release: str, most: int, expected: list[int]
) -> None:
    engine = with_files(release, max_loras=most)
    names = ("L", "M", "", "L")

    tickets = [send(engine, 300 + 50 * at, name) for at, name in enumerate(names)]

    assert expected == order(engine, tickets)


def test_an_adapter_that_waits_is_not_lost_when_its_request_is_cancelled() -> None:
    engine = with_files("0.30.0")
    first, second = send(engine, 300, "L"), send(engine, 400, "M")
    engine.step()
    engine.cancel(second)
    engine.run()

    assert "cancelled" == there_is(engine.reply(second)).error
    assert there_is(engine.reply(first)).error is None
    engine.check_integrity()


@pytest.mark.parametrize(("release", "ends"), [("0.32.0", True), ("0.33.0", False)])
def test_until_032_a_running_request_without_a_chunk_does_not_count(
    release: str, ends: bool
) -> None:
    """The first request runs, and has no chunk in the step that lets the second one in."""
    engine = of_kind(Vllm, with_files(release))
    scheduler = engine.scheduler
    send(engine, 300, "L", predict=9)
    engine.step()
    send(engine, 400, "M", predict=9)
    waits = scheduler._cut
    scheduler._cut = lambda request, new, *rest: (  # type: ignore[method-assign]
        (0, ()) if request.id == 0 else waits(request, new, *rest)
    )
    engine.step()
    scheduler._cut = waits  # type: ignore[method-assign]
    assert ends == (2 == len(scheduler.running))

    if ends:
        with pytest.raises(UpstreamAbort, match="max_loras"):
            engine.step()
    else:
        engine.step()


def test_adapters_beside_a_drafter_need_room_for_every_draft() -> None:
    drafts = {"speculative_method": "ngram", "num_speculative_tokens": 3}
    with pytest.raises(OptionError, match="write 16 or less"):
        with_files(max_num_batched_tokens=64, max_num_seqs=17, **drafts)
    with_files(max_num_batched_tokens=64, max_num_seqs=16, **drafts)
