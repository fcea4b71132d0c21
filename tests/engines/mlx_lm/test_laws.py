"""Laws of each request, which a search checks on mlx-lm's server and on those built on it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from cachesim.engines.base import Reply
from cachesim.engines.events import Event
from cachesim.engines.family import Profile, family_of
from cachesim.engines.mlx_lm.events import (
    Insertion,
    ModelCalled,
    PromptCacheEvicted,
    PromptCacheInserted,
    PromptProgress,
    RequestAdmitted,
    RequestFinished,
)
from cachesim.engines.mlx_lm.integrity import problems
from cachesim.engines.mlx_lm.laws import MlxLaws
from cachesim.engines.mlx_lm.store.disk_prompt_cache import DiskPromptCache
from cachesim.engines.seen import Breach, Seen
from cachesim.errors import InputError
from cachesim.play.session import Session
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step
from cachesim.testing.guided import Guided
from cachesim.testing.search import play
from cachesim.testing.workloads import Shape
from cachesim.units import Count

FAMILY = family_of("mlx-lm")
PROFILES = [f"mlx-lm@{release}" for release in FAMILY.names()] + [
    f"mlx-lm@{each.fits[-1]}+{each.name}" for each in FAMILY.patches if not each.landed
]
SHAPE = Shape(incidents=True, chats=True, guided=True)
PROMPT = tuple(range(265, 305))


def scenario_of(*prompts: Sequence[int], **options: Any) -> Scenario:
    """One request after the other, each with a reply of two tokens."""
    return Scenario(
        format=FORMAT,
        name="laws",
        model=Model(preset="dense"),
        engine=Server(name="mlx-lm", profiles=("0.32.2",), options=options),
        step=tuple(
            Step(name=f"r{number}", prompt=tuple(each), reply=(401, 402))
            for number, each in enumerate(prompts)
        ),
    )


def session_of(profile: str, *prompts: Sequence[int]) -> Session:
    return Session(scenario_of(*prompts), Profile.parse(profile), arithmetic="counts")


def seen_of(session: Session) -> Iterator[Seen]:
    """The requests of a session as the laws read them."""
    for record in session.run():
        assert record.reply is not None
        yield Seen(
            reply=record.reply,
            events=record.events,
            forced=record.reply.generated,
            alone=True,
            images=False,
            fields={},
            model="",
            layers=frozenset({"attention"}),
            plain=True,
        )


@pytest.mark.parametrize("profile", PROFILES)
def test_no_release_and_no_other_server_breaks_one(profile: str) -> None:
    """Long searches run thousands of workloads of each."""
    for model, number in (("dense", 1), ("hybrid", 2), ("swa", 3)):
        try:
            client = Guided(Profile.parse(profile), model, number, seed=5, shape=SHAPE)
        except InputError:
            continue
        list(client.run())
        trial = play(client.scenario, Profile.parse(profile), stop_early=False, thin=True)
        kinds = {each.kind for each in trial.findings}

        assert not kinds & {"broken invariant", "lost reuse", "refusal"}, trial.findings


Change = Callable[[Event], Event]


def changed(kind: type[Event], **changes: Any) -> Callable[[Seen], Seen]:
    """A request with other fields in its events of a kind."""

    def change(seen: Seen) -> Seen:
        events = [replace(e, **changes) if isinstance(e, kind) else e for e in seen.events]
        return replace(seen, events=events)

    return change


def without(kind: type[Event]) -> Callable[[Seen], Seen]:
    """A request without its events of a kind."""
    return lambda seen: replace(
        seen, events=[each for each in seen.events if not isinstance(each, kind)]
    )


def failed(seen: Seen) -> Seen:
    return replace(seen, reply=Reply.empty(error="KeyError", message="'x'"))


@pytest.mark.parametrize(
    ("change", "kind", "detail"),
    [
        (without(PromptCacheInserted), "broken invariant", "-1 entries by the events, 1"),
        (changed(PromptCacheInserted, nbytes=1), "broken invariant", "-19966 bytes by the events"),
        (changed(RequestAdmitted, cached=Count(3)), "broken invariant", "3 tokens cached as"),
        (changed(Insertion, key=(1, 2)), "broken invariant", "a state of 39 tokens is stored"),
        (changed(Insertion, layers=({"offset": 41},)), "broken invariant", "a state of {41}"),
        (without(Insertion), "broken invariant", "the state after 42 tokens is not stored"),
        (changed(Insertion, type="user"), "broken invariant", "the state after a reply"),
        (changed(ModelCalled, columns=5000), "broken invariant", "20000 tokens are fed for 40"),
        (changed(PromptProgress, total=50), "broken invariant", "a prompt's progress ends"),
        (changed(RequestFinished, reason="stop"), "broken invariant", "a reply without a stop"),
        (lambda seen: replace(seen, forced=(1,)), "broken invariant", "2 tokens are returned of"),
        (failed, "refusal", "KeyError: 'x'"),
    ],
)
def test_each_law_can_be_broken(change: Callable[[Seen], Seen], kind: str, detail: str) -> None:
    session = session_of("mlx-lm@0.32.2", PROMPT)
    laws = MlxLaws(session.engine)  # type: ignore[arg-type]
    [seen] = seen_of(session)
    breach = laws.broken(change(seen))

    assert breach is not None
    assert (kind, True) == (breach.kind, breach.detail.startswith(detail)), breach.detail


def test_an_eviction_needs_a_full_store() -> None:
    session = session_of("mlx-lm@0.32.2", PROMPT)
    laws = MlxLaws(session.engine)  # type: ignore[arg-type]
    [seen] = seen_of(session)
    evicted = PromptCacheEvicted(n_tokens=Count(4), cache_type="user", nbytes=0)
    breach = laws.broken(replace(seen, events=[*seen.events, evicted]))

    assert Breach(kind="broken invariant", detail="an entry is evicted from 1 of 10") == breach


@pytest.mark.parametrize(
    ("profile", "length", "due"),
    [
        ("mlx-lm@0.32.2", 40, 42),
        ("mlx-lm@0.29.1", 40, 42),
        ("mlx-lm@0.31.3+omlx", 4100, 4096),
        ("mlx-lm@0.32.2+ollama", 40, 41),
        ("mlx-lm@0.31.3+mlx-engine", 40, 42),
        ("mlx-lm@0.31.3+mlx-engine-disk", 40, 42),
        ("mlx-lm@0.31.3+vllm-mlx", 130, 132),
        ("mlx-lm@0.31.3+vllm-mlx-mllm", 130, 130),
        ("mlx-lm@0.31.3+rapid-mlx", 40, 42),
    ],
)
def test_a_prompt_that_continues_a_reply_is_found(profile: str, length: int, due: int) -> None:
    first = tuple(265 + number % 240 for number in range(length))
    session = session_of(profile, first, (*first, 401, 402, 350))
    laws = MlxLaws(session.engine)  # type: ignore[arg-type]
    before, seen = list(seen_of(session))
    lost = replace(seen, reply=replace(seen.reply, cached=Count(due - 1)), events=())

    assert due == seen.reply.cached
    assert None is laws._lost(before, seen)
    detail = f"{due - 1} of {due} tokens cached that the request before wrote"
    assert Breach(kind="lost reuse", detail=detail, due=due) == laws._lost(before, lost)


def test_the_books_of_records_are_checked() -> None:
    long = tuple(265 + number % 240 for number in range(600))
    session = session_of("mlx-lm@0.31.3+mlx-engine-disk", long)
    list(session.run())
    cache = session.engine.server.store.cache  # type: ignore[attr-defined]
    assert isinstance(cache, DiskPromptCache)
    [store] = cache.stores.values()

    assert [] == list(problems(cache))
    store.max_bytes = 1
    store.total_bytes += 1
    found = [each.partition(" ")[0] + each[-20:] for each in problems(cache)]

    assert 2 == len(list(chain(found)))


def test_a_model_that_reads_images_has_no_drafter_in_the_default_engine() -> None:
    scenario = scenario_of(PROMPT, draft_model="self")

    with pytest.raises(InputError, match="no draft_model"):
        Session(scenario, Profile.parse("mlx-lm@0.31.3+vllm-mlx-whole"))
