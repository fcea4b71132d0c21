"""Laws of each request, which a search checks on mlx-lm's server and on those built on it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cachesim.engines.base import Reply
from cachesim.engines.family import Profile, family_of, search_of
from cachesim.engines.lm_studio.prompt_cache import DiskPromptCache
from cachesim.engines.lm_studio.vocabulary import RecordStored
from cachesim.engines.mlx_lm.caches.batch_kv_cache import BatchKVCache
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache, QuantizedKVCache
from cachesim.engines.mlx_lm.caches.layer_cache import State
from cachesim.engines.mlx_lm.generate.shared import Row
from cachesim.engines.mlx_lm.observe import (
    of_batch,
    problems,
    quantised_otherwise,
    restore_problems,
)
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.engines.mlx_lm.search import MlxLaws
from cachesim.engines.mlx_lm.vocabulary import (
    Insertion,
    ModelCalled,
    PromptCacheEvicted,
    PromptCacheInserted,
    PromptProgress,
    RequestAdmitted,
    RequestFinished,
)
from cachesim.engines.seen import Breach, Seen
from cachesim.errors import InputError
from cachesim.play.findings import play
from cachesim.play.session import Session
from cachesim.scenario.format import FORMAT, Chat, Model, Scenario, Server, Step, Turn
from cachesim.typed import of_kind, there_is
from cachesim.units import Count
from tests.engines import seen_kit as kit
from tests.engines.seen_kit import changed, without

FAMILY = family_of("mlx-lm")
PROFILES = [f"mlx-lm@{release}" for release in FAMILY.names()] + [
    f"mlx-lm@{patch.fits[-1]}+{patch.name}" for patch in FAMILY.patches if not patch.landed
]
PROMPT = tuple(range(265, 305))


def scenario_of(*prompts: Sequence[int], **options: Any) -> Scenario:
    """One request after the other, each with a reply of two tokens."""
    return Scenario(
        format=FORMAT,
        name="laws",
        model=Model(preset="dense"),
        engine=Server(name="mlx-lm", profiles=("0.32.2",), options=options),
        step=tuple(
            Step(name=f"r{number}", prompt=tuple(prompt), reply=(401, 402))
            for number, prompt in enumerate(prompts)
        ),
    )


def session_of(profile: str, *prompts: Sequence[int]) -> Session:
    return Session(scenario_of(*prompts), Profile.parse(profile), arithmetic="counts")


def seen_of(session: Session) -> Iterator[Seen]:
    """The requests of a session as the laws read them."""
    for record in session.run():
        reply = there_is(record.reply)
        yield kit.seen_of(reply, record.events, forced=reply.generated)


def laws_of(session: Session) -> MlxLaws:
    return of_kind(MlxLaws, there_is(search_of(session.family).laws)(session.engine))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("profile", PROFILES)
def test_no_release_and_no_other_server_breaks_one(profile: str) -> None:
    for model, number in (("dense", 1), ("hybrid", 2), ("swa", 3)):
        assert [] == kit.found(profile, model, number)


def failed(seen: Seen) -> Seen:
    return replace(seen, reply=Reply.empty(error="KeyError", message="'x'"))


@pytest.mark.parametrize(
    ("change", "kind", "detail"),
    [
        (without(PromptCacheInserted), "broken invariant", "-1 entries by the events, 1"),
        (changed(PromptCacheInserted, nbytes=1), "broken invariant", "-19966 bytes by the events"),
        (changed(RequestAdmitted, cached=Count(3)), "broken invariant", "3 tokens cached as"),
        (changed(RequestAdmitted, reported=Count(3)), "broken invariant", "3 tokens are reported"),
        (changed(RequestAdmitted, prompt_tokens=Count(3)), "broken invariant", "a prompt of 40"),
        (changed(RequestAdmitted, path="single"), "broken invariant", "a request is served on"),
        (changed(Insertion, key=(1, 2)), "broken invariant", "a state of 39 tokens is stored"),
        (changed(Insertion, layers=({"offset": 41},)), "broken invariant", "a state of {41}"),
        (without(Insertion), "broken invariant", "states of [] tokens are stored, not of [39"),
        (changed(Insertion, type="user"), "broken invariant", "the state after a reply"),
        (changed(ModelCalled, columns=5000), "broken invariant", "20000 tokens are fed for 40"),
        (changed(PromptProgress, total=50), "broken invariant", "a prompt's progress ends"),
        (changed(RequestFinished, reason="stop"), "broken invariant", "a reply without a stop"),
        (lambda seen: replace(seen, forced=(1,)), "broken invariant", "2 tokens are returned of"),
        (kit.replied(equal=Count(7)), "broken invariant", "7 tokens are equal, a key of the store"),
        (failed, "refusal", "KeyError: 'x'"),
    ],
)
def test_each_law_can_be_broken(change: Callable[[Seen], Seen], kind: str, detail: str) -> None:
    session = session_of("mlx-lm@0.32.2", PROMPT)
    laws = laws_of(session)
    [seen] = seen_of(session)
    breach = there_is(laws.broken(change(seen)))

    assert (kind, True) == (breach.kind, breach.detail.startswith(detail)), breach.detail


@pytest.mark.parametrize("bits", [4, 8])
def test_numbers_that_are_quantised_otherwise_are_found(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = FAMILY.rules(Profile.parse("mlx-lm@0.32.2")).caches
    assert [] == [*quantised_otherwise(rules, bits)]
    rounded = QuantizedKVCache.rounded

    monkeypatch.setattr(QuantizedKVCache, "rounded", lambda it, rows: rounded(it, rows).round(1))

    assert f"numbers around 0.3 are not quantised to {bits} bits" == next(
        quantised_otherwise(rules, bits)
    )


@pytest.mark.parametrize(
    ("profile", "length", "found"),
    [
        ("mlx-lm@0.29.1", 40, [42]),
        ("mlx-lm@0.31.3+omlx", 4200, [2048, 4096]),
        ("mlx-lm@0.32.2+ollama", 40, [35, 42]),
        ("mlx-lm@0.31.3+mlx-engine", 40, [29, 42]),
        ("mlx-lm@0.31.3+mlx-engine-disk", 40, [42]),
        ("mlx-lm@0.31.3+vllm-mlx", 130, [132]),
        ("mlx-lm@0.31.3+vllm-mlx-mllm", 130, [130]),
        ("mlx-lm@0.31.3+rapid-mlx", 40, [39, 42]),
    ],
)
def test_each_server_stores_a_prompt_at_its_own_lengths(
    profile: str, length: int, found: list[int]
) -> None:
    session = session_of(profile, tuple(265 + number % 240 for number in range(length)))
    laws = laws_of(session)
    [seen] = seen_of(session)
    kept = [event for event in seen.events if not isinstance(event, Insertion)]
    fewer = replace(seen, events=[*kept, *insertions(seen)[1:]])

    assert found == [insertion.length for insertion in insertions(seen)]
    assert [] == list(laws._kept(seen))
    assert [f"states of {found[1:]} tokens are stored, not of {found}"] == list(laws._kept(fewer))


def test_the_tokens_that_open_a_reasoning_part_are_stored_by_no_key_of_keys_and_values() -> None:
    scenario = scenario_of(tuple(range(265, 405)), chat_template="strip-reasoning")
    profile = Profile.parse("mlx-lm@0.31.3+vllm-mlx-mllm")
    session = Session(scenario, profile, arithmetic="counts")
    laws = laws_of(session)
    [seen] = seen_of(session)

    assert [138] == [insertion.length for insertion in insertions(seen)]
    assert [] == list(laws._kept(seen))


def test_the_mark_of_a_reasoning_part_begins_the_last_segment() -> None:
    chat = Step(name="chat", messages=(Turn(role="user", content="ab"),), reply=(401, 402))
    scenario = replace(
        scenario_of(chat_template="strip-reasoning"),
        chat=Chat(template="strip-reasoning"),
        step=(chat,),
    )
    session = Session(scenario, Profile.parse("mlx-lm@0.32.2"), arithmetic="counts")
    laws = laws_of(session)
    [seen] = (replace(each, chat=True) for each in seen_of(session))
    [admitted] = [event for event in seen.events if isinstance(event, RequestAdmitted)]
    total, tail = len(seen.reply.prompt), admitted.segments[-1][0]
    moved = replace(admitted, segments=((total - tail + 1, "user"), (tail - 1, "assistant")))
    opens = f"where a reasoning part opens at [{total - tail}]"

    assert [] == list(laws._tail(admitted, seen))
    assert [f"a tail of {tail - 1} tokens, {opens}"] == list(laws._tail(moved, seen))
    assert [f"a tail of 0 tokens, {opens}"] == list(
        laws._tail(replace(admitted, segments=((total, "user"),)), seen)
    )


def insertions(seen: Seen) -> list[Insertion]:
    return [event for event in seen.events if isinstance(event, Insertion)]


def quantised() -> Session:
    flags = {"kv_bits": 8, "quantized_kv_start": 8, "prefill_step_size": 16}
    scenario = scenario_of(PROMPT, (*PROMPT[:30], 350, 351), (*PROMPT, 401, 402, 360), **flags)
    return Session(scenario, Profile.parse("mlx-lm@0.32.2"), arithmetic="ring")


def test_a_quantised_answer_follows_from_calls_of_the_model() -> None:
    session = quantised()
    laws = laws_of(session)
    for seen in seen_of(session):
        assert seen.reply.approximated
        assert None is laws.broken(seen)


def test_a_quantised_answer_of_other_keys_is_found() -> None:
    session = quantised()
    laws = laws_of(session)
    requests = seen_of(session)
    first = next(requests)
    assert None is laws.broken(first)
    second = next(requests)
    breach = laws.broken(replace(second, reply=replace(second.reply, logits=first.reply.logits)))

    assert "a quantised answer is that of no calls of the model" == (breach and breach.detail)


def test_records_are_counted() -> None:
    session = session_of("mlx-lm@0.31.3+mlx-engine-disk", tuple(265 + n % 240 for n in range(600)))
    laws = laws_of(session)
    [seen] = seen_of(session)
    breach = laws.broken(without(RecordStored)(seen))

    assert "0 records by the events, not as many on disk" == (breach and breach.detail)
    [store] = session.engine.server.store.cache.stores.values()  # type: ignore[attr-defined]
    store.records.popitem(last=True)
    assert ["the records up to [256] are not on disk"] == list(laws._kept(seen))


class Forgetful(KVCache):
    """A layer that loses its last token as it is saved."""

    @property
    def state(self) -> State:
        return self.keys, self.values, self.offset - 1


def test_a_layer_is_the_same_after_a_save_and_a_restore() -> None:
    layer = Forgetful(CacheRules())
    layer.update_and_fetch(np.zeros((1, 1, 3, 2)), np.zeros((1, 1, 3, 2)))

    assert ["a Forgetful is not the same after a save and a restore"] == list(
        restore_problems(layer)
    )


def test_the_layers_of_a_batch_have_its_rows() -> None:
    layer = BatchKVCache(CacheRules(), [0, 1])
    layer.update_and_fetch(np.zeros((2, 1, 3, 2)), np.zeros((2, 1, 3, 2)))
    rows = [
        Row(uid=0, sampler=None, stopper=None, max_tokens=1, tokens=list(range(count)))  # type: ignore[arg-type]
        for count in (3, 2)
    ]

    assert [] == list(of_batch(rows, [layer], counted=True))
    layer.left_padding = layer.left_padding + 1
    assert ["the rows of a BatchKVCache end at {4}, not at 3"] == list(
        of_batch(rows, [layer], counted=True)
    )
    found = list(of_batch(rows[:1], [layer], counted=True))
    assert "a BatchKVCache counts [3, 2] tokens, its rows are of [3]" == found[0]
    assert "a BatchKVCache is of {2} rows in a batch of 1" == found[-1]


def test_an_eviction_needs_a_full_store() -> None:
    session = session_of("mlx-lm@0.32.2", PROMPT)
    laws = laws_of(session)
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
    laws = laws_of(session)
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
    cache = of_kind(DiskPromptCache, session.engine.server.store.cache)  # type: ignore[attr-defined]
    [store] = cache.stores.values()

    assert [] == list(problems(cache))
    store.max_bytes = 1
    store.total_bytes += 1
    assert 2 == len(list(problems(cache)))


def test_a_model_that_reads_images_has_no_drafter_in_the_default_engine() -> None:
    scenario = scenario_of(PROMPT, draft_model="self")

    with pytest.raises(InputError, match="no draft_model"):
        Session(scenario, Profile.parse("mlx-lm@0.31.3+vllm-mlx-whole"))


@pytest.mark.parametrize("predict", [-1, 1, 2, 5])
def test_a_reply_ends_with_its_sampled_tokens_or_at_its_length(predict: int) -> None:
    drawn = scenario_of(PROMPT)
    steps = tuple(replace(each, predict=predict) for each in drawn.step)

    assert [] == play(replace(drawn, step=steps), Profile.parse("mlx-lm@0.32.2")).findings
