"""Input of the real mlx-lm: workloads, words, weights; without the package."""

from collections import Counter
from copy import deepcopy
from pathlib import Path
from queue import Empty
from random import Random
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

from cachesim.engines.base import Message
from cachesim.engines.chat import ByteTokenizer
from cachesim.engines.family import Profile
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.server.word_tokenizer import WORD_TEMPLATES, WordTokenizer
from cachesim.errors import ProfileError, ScenarioError
from cachesim.model.build import build
from cachesim.model.presets import tiny
from cachesim.play.session import Session
from cachesim.prove.mlx_lm.families import CLASSES, order_of, spec_of
from cachesim.prove.mlx_lm.process import environment_for
from cachesim.prove.mlx_lm.scenarios import Words, _outcome, play_mlx_scenario
from cachesim.prove.mlx_lm.server_http import NEVER, RequestQueue, Turns, number_of
from cachesim.prove.mlx_lm.server_models import TEMPLATES, texts_of
from cachesim.prove.playing import Difference, releases_of
from cachesim.scenario.checks import scenario_of
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step, Turn
from cachesim.typed import of_kind
from cachesim.units import as_tokens
from cachesim.verify.oracle import Oracle
from conformance.real.mlx_lm import classes as room
from conformance.real.mlx_lm.classes import (
    GROUPS,
    RealClasses,
    compare_classes,
    draw,
    draw_cache_sequence,
    played,
)
from conformance.real.mlx_lm.compare import shrunk
from conformance.real.mlx_lm.server_workloads import draw_models, draw_workload
from conformance.real.vectors.mlx_server import ColdStates
from tests.fixtures import Patch


def conversations(template: str) -> list[list[dict[str, str]]]:
    found = []
    for number in range(12):
        workload = draw_workload("0.32.2", seed=5, number=number)
        for group in workload["steps"]:
            found += [each["messages"] for each in group if "messages" in each]
    assert found, template
    return found


class Vocabulary:
    """The real server's template and words, as its tokenizer reads them."""

    def __init__(self, template: str, size: int) -> None:
        jinja2 = pytest.importorskip("jinja2")
        blocks = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
        self._template = blocks.from_string(TEMPLATES[template])
        self._tokens = {text: token for token, text in enumerate(texts_of(template, size))}

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, add_generation_prompt: bool
    ) -> list[int]:
        """Rendered, then cut at every blank."""
        text = self._template.render(messages=messages, add_generation_prompt=add_generation_prompt)
        return [self._tokens.get(word, 0) for word in text.split(" ") if word]


def test_models_of_a_workload_are_of_different_classes_and_each_is_asked() -> None:
    asked = Counter[str]()
    for number in range(10):
        workload = draw_models("0.32.2", 0, number)
        drawn = [workload["model"], *workload["models"].values()]
        requests = [each for group in workload["steps"] for each in group]
        asked.update(request.get("model", "first") for request in requests)

        assert len(drawn) == len({each["family"] for each in drawn})
        assert {request.get("model", "first") for request in requests} <= {
            "first",
            *workload["models"],
        }
    assert {"first", "second", "third"} == set(asked)


@pytest.mark.parametrize("template", WORD_TEMPLATES)
def test_both_tokenizers_render_alike(template: str) -> None:
    ours, theirs = WordTokenizer(template, 64), Vocabulary(template, 64)

    for messages in conversations(template):
        for prompt in (True, False):
            rendered = theirs.apply_chat_template(messages, add_generation_prompt=prompt)
            chat = [Message(**message) for message in messages]
            assert rendered == list(ours.apply_chat_template(chat, add_generation_prompt=prompt))


def carrying(number: int) -> SimpleNamespace:
    """The arguments of a request with this number."""
    return SimpleNamespace(logits=SimpleNamespace(repetition_context_size=number))


def test_requests_that_are_sent_together_are_let_in_together() -> None:
    gate = RequestQueue(Turns())
    gate.shut = True
    for number in (1, 0, 2):
        gate.put((None, object(), carrying(number)))
    gate.open([(0, 0), (1, 0), (2, 3)])
    let_in = [number_of(gate.get_nowait()[2]) for _ in range(2)]
    with pytest.raises(Empty):
        gate.get_nowait()
    gate.turns.count = 3

    assert [0, 1] == let_in
    assert 2 == number_of(gate.get_nowait()[2])


def test_a_thread_that_turns_and_never_looks_again_is_stuck() -> None:
    gate = RequestQueue(Turns())
    for _ in range(NEVER - 1):
        gate.turned(has_output=False)
    before = gate.stuck
    gate.turned(has_output=False)

    assert (False, True) == (before, gate.stuck)


def test_a_look_at_the_queue_shows_that_the_thread_is_not_stuck() -> None:
    gate = RequestQueue(Turns())
    for _ in range(2 * NEVER):
        gate.turned(has_output=False)
        with pytest.raises(Empty):
            gate.get_nowait()

    assert not gate.stuck


def test_workloads_ask_for_options_that_the_release_has() -> None:
    old = [draw_workload("0.30.7", 1, number)["options"] for number in range(40)]
    new = [draw_workload("0.32.2", 1, number)["options"] for number in range(40)]

    assert not any("prompt_cache_bytes" in each or "prefill_step_size" in each for each in old)
    assert any("prompt_cache_bytes" in each for each in new)


def test_workloads_have_every_kind_of_request() -> None:
    requests = [
        request
        for number in range(60)
        for group in draw_workload("0.32.2", 3, number)["steps"]
        for request in group
    ]

    kinds = {"text", "messages", "seed", "stop_words", "at", "leaves_after", "stream", "refused"}
    assert kinds <= {key for request in requests for key in request}
    assert all(1 <= len(request["reply"]) <= max(1, request["max_tokens"]) for request in requests)


def test_a_workload_that_differs_is_made_smaller() -> None:
    def check(workload: dict[str, Any]) -> Difference | None:
        texts = [request["text"] for group in workload["steps"] for request in group]
        return Difference(step=0, real={}, simulated={}) if "b" in texts else None

    steps = [[{"text": "a"}, {"text": "b"}], [{"text": "c"}]]
    whole = {"steps": steps, "options": {"prompt_concurrency": 1}}
    smaller, _ = shrunk(whole, Difference(step=0, real={}, simulated={}), check)

    assert {"steps": [[{"text": "b"}]], "options": {}} == smaller


BRIEF = (
    ("system", "Be brief."),
    ("user", "[300][301]"),
    ("assistant", "[302]"),
    ("user", ByteTokenizer("chatml").decode([Random(0).randrange(3, 259)])),
)
THOUGHTS = (
    ("user", "[300]"),
    ("assistant", "[301]</think>[302]"),
    ("user", "[303]"),
    ("assistant", "[304]</think>[305]"),
)


@pytest.mark.parametrize(
    ("template", "said"),
    [("chatml", BRIEF), ("strip-reasoning", BRIEF), ("strip-reasoning", THOUGHTS)],
)
def test_bytes_and_marks_become_words_one_for_one_and_reasoning_is_stripped_alike(
    template: str, said: tuple[tuple[str, str], ...]
) -> None:
    tokenizer = ByteTokenizer(template)
    words = Words(tokenizer)
    real = Vocabulary(template, words.size)
    ours = tokenizer.apply_chat_template([Message(role=r, content=text) for r, text in said])
    chat = [{"role": r, "content": words.text(tokenizer.encode(text))} for r, text in said]

    assert words.ids(ours) == real.apply_chat_template(chat, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("options", "fields", "limit"),
    [
        ({}, {}, 1),
        ({}, {"stop_words": ("b",)}, 5),  # the worker continues until it is stopped
        ({"draft_model": "self"}, {}, 5),  # as many drafts as for a longer reply
    ],
)
def test_a_real_reply_ends_where_the_simulated_one_does(
    options: dict[str, Any], fields: dict[str, Any], limit: int
) -> None:
    step = Step(name="a", prompt=(300, 301), reply=(302,), predict=5, options=fields)
    session = Session(
        Scenario(
            format=FORMAT,
            name="ends",
            model=Model(preset="dense"),
            engine=Server(name="mlx-lm", profiles=("0.32.2",), options=options),
            step=(step,),
        ),
        Profile("mlx-lm", "0.32.2"),
    )
    (record,) = session.run()

    request = Words(session.vocabulary.tokenizer).request(record, session)

    assert limit == request["max_tokens"]


@pytest.mark.parametrize("name", CLASSES)
def test_every_tensor_of_a_family_gets_a_name(name: str, tmp_path: Path) -> None:
    spec = spec_of(name)
    order = order_of(spec, tmp_path / "weights.npz")
    tensors = np.load(order["weights"])
    layers = {key.split("layers.")[1].split(".")[0] for key in tensors if "layers." in key}

    assert {str(layer) for layer in range(len(spec.layers))} == layers
    arguments = order["arguments"].get("text_config", order["arguments"])
    assert spec.vocabulary == arguments["vocab_size"]
    assert name == family_of(spec).name


SCENARIO: dict[str, Any] = {
    "format": 1,
    "name": "a-scenario",
    "model": {"preset": "dense"},
    "engine": {"name": "mlx-lm", "profiles": ["0.31.3", "0.31.3+1186", "after-906"]},
    "spans": {"A": 4},
    "step": [{"prompt": "A"}],
}


def test_only_releases_that_can_be_installed_are_played() -> None:
    assert ("0.31.3",) == releases_of(FAMILY, scenario_of(SCENARIO))
    patched = SCENARIO | {"engine": {"name": "mlx-lm", "profiles": ["after-906+923"]}}
    with pytest.raises(ScenarioError, match="package of mlx-lm runs"):
        releases_of(FAMILY, scenario_of(patched))


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"preset": "hybrid-swa"}},
        {
            "engine": {
                "name": "mlx-lm",
                "profiles": ["0.31.3"],
                "options": {"draft_model": "hybrid-swa"},
            }
        },
        {
            "engine": {
                "name": "mlx-lm",
                "profiles": ["0.31.3"],
                "options": {"prompt_cache_bytes": 1000},
            }
        },
    ],
)
def test_what_cannot_be_compared_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError, match="not run"):
        play_mlx_scenario(scenario_of(SCENARIO | change), "0.31.3")


@pytest.mark.wheel
def test_a_draft_model_drafts_as_many_tokens_as_the_release_does_by_default() -> None:
    engine = {"name": "mlx-lm", "profiles": ["0.32.2"], "options": {"draft_model": "dense"}}
    step = {"prompt": "A", "predict": 9, "reply": [*range(300, 309)], "drafts": [[300, 7, 7]] * 9}
    played = play_mlx_scenario(scenario_of(SCENARIO | {"engine": engine, "step": [step]}), "0.32.2")

    assert [True] == [each.agrees for each in played]


@pytest.mark.parametrize(
    ("within", "factor", "expected"),
    [(0.0, 1 + 1e-15, False), (1e-5, 1 + 1e-15, True), (1e-5, 1 + 1e-3, False)],
)
def test_beside_the_real_server_a_state_may_differ_by_rounding(
    within: float, factor: float, expected: bool
) -> None:
    states = ColdStates(build(tiny("dense")), within=within)
    key = as_tokens(range(300, 310))
    held = deepcopy(states.state(key))
    layer = of_kind(KVCache, held[1])
    assert layer.keys is not None
    layer.keys = layer.keys * factor

    assert [True, expected] == states.agree(key, held)[:2]


RELEASES = ("0.30.7", "0.31.1", "0.31.3", "0.32.2")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("release", RELEASES)
def test_drawn_sequences_can_be_played_and_end_where_the_port_raises(release: str) -> None:
    for number in range(44):
        sequence = draw(release, 5, number)
        results = list(played(sequence))
        assert len(sequence["ops"]) == len(results)
        if sequence["group"] != "trie":
            assert all("error" not in result for result in results[:-1])


def test_a_simulated_answer_off_by_rounding_is_the_same() -> None:
    """Chunks whose positions have moved together: the real engine compares with a tolerance too."""
    prompts = (("[467][305]", "[437][387]"), ("[467][305]", "[326]"))
    replies = ((383, 429, 414, 463, 324, 465, 451, 470, 350, 446), (272,))
    steps = (
        Step(
            name=f"r{at}",
            messages=tuple(Turn(role="user", content=each) for each in prompt),
            reply=reply,
        )
        for at, (prompt, reply) in enumerate(zip(prompts, replies, strict=True))
    )
    layers = ("window", "window", "window", "attention")
    scenario = Scenario(
        format=FORMAT,
        name="chunks",
        model=Model(layers=layers, window=2, chunked=True),
        engine=Server(name="mlx-lm", profiles=("0.32.2",)),
        step=tuple(steps),
    )
    session = Session(scenario, Profile.parse("mlx-lm@0.32.2"))
    *_, last = session.run()

    assert (10, "same", None) == _outcome(last, Oracle(session.network))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("group", GROUPS)
def test_every_group_meets_its_class_and_many_operations(group: str) -> None:
    found: Counter[str] = Counter()
    classes = set()
    for seed in range(40):
        sequence = draw_cache_sequence("0.32.2", group, Random(seed))
        found.update(op["op"] for op in sequence["ops"])
        for result in played(sequence):
            classes |= {each["class"] for each in result.get("after", {}).values()}

    assert group in classes
    assert 6 <= len(found)


class Other:
    """Classes whose third operation returns something else."""

    def __init__(self, _release: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def play(self, sequence: Any) -> list[dict[str, Any]]:
        results = list(played(sequence))
        results[2] = {"ret": "something else"}
        return results


def test_operations_behind_a_difference_count_as_disagreeing(monkeypatch: Patch) -> None:
    monkeypatch.setattr(room, "RealClasses", Other)
    sequence = draw("0.32.2", 0, 0)
    agreement = compare_classes("0.32.2", 0, 1)

    count = len(list(played(sequence)))
    assert (count, 2) == (agreement.total("operations"), agreement.total("agreeing"))
    assert not agreement.all_agree


def test_a_release_that_cannot_be_installed_here_is_refused() -> None:
    with pytest.raises(
        ProfileError, match=r"no package runs mlx-lm@0\.31\.0 for real; there are 0\.29\.1"
    ):
        RealClasses("0.31.0")


def test_a_release_that_names_no_tokenizers_gets_those_of_its_day() -> None:
    assert "transformers==4.57.3" in environment_for("0.29.1").requirements


def test_older_releases_get_the_older_array_runtime() -> None:
    assert ("mlx[cpu]==0.30.6", "mlx-lm==0.31.1") == environment_for("0.31.1").requirements
