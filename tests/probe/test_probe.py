"""Whole runs against small servers: what is wrong is found, what is right stays quiet."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachesim.engines.family import family_of
from cachesim.errors import InputError, UntestedError
from cachesim.probe import loop
from cachesim.probe.command import Settings, run
from cachesim.probe.judging import MATERIAL
from cachesim.probe.playing import WORDS, opened_together, query_of
from cachesim.probe.result import Result
from cachesim.scenario.format import Step
from cachesim.testing.workloads import Draws, Seeded
from cachesim.typed import there_is
from tests.fixtures import Patch
from tests.probe.fakes import Fake, Model, Tokens, bugs, fake, sound, stale

PROFILES = {
    "llama": "llama.cpp@b11549",
    "vllm": f"vllm@{family_of('vllm').names()[-1]}",
    "sglang": f"sglang@{family_of('sglang').names()[-1]}",
    "text": f"mlx-lm@{family_of('mlx-lm').names()[-1]}",
}


def slow(value: object) -> object:
    """A parameter that `make check` plays."""
    return pytest.param(value, marks=pytest.mark.thorough)


@pytest.fixture(autouse=True)
def _short(monkeypatch: Patch) -> None:
    """No search for the release, and little to simplify: both have tests of their own."""
    monkeypatch.setattr(loop, "SAMPLES", 12)
    monkeypatch.setattr(loop, "TRIALS", 10)
    monkeypatch.setattr(loop.Fingerprint, "of", lambda *_: loop.Fingerprint([]))


def probed(url: str, **more: object) -> Result:
    settings = {"requests": 800, "longest": 60, "minutes": 2.0, "patience": 1.0}
    return run(Settings(url=url, **{**settings, **more})).result


def test_a_model_that_is_decoded_and_read_by_different_kernels_is_refused() -> None:
    with fake("llama", PROFILES["llama"]) as server:
        server.model.decodes_apart = True
        with pytest.raises(
            InputError, match=r"in a prompt than in a reply: .* states of 64 or 128"
        ):
            probed(server.url)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dialect", ["llama", "vllm", "sglang"])
@pytest.mark.parametrize("noise", [slow(0.0), 2e-2])
def test_a_wrong_answer_is_found_beneath_noise(dialect: str, noise: float) -> None:
    with fake(dialect, PROFILES[dialect], context=stale, noise=noise) as server:
        result = probed(server.url)
    finding = there_is(result.outcome.finding)
    assert finding.kind in {"answer", "reuse"}
    assert finding.requests < 800
    assert finding.scenario is not None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dialect", ["llama", "vllm", "sglang"])
@pytest.mark.parametrize("noise", [slow(0.0), 2e-2])
def test_a_right_server_is_not_accused(dialect: str, noise: float) -> None:
    with fake(dialect, PROFILES[dialect], noise=noise) as server:
        result = probed(server.url, requests=300)
    assert result.right
    assert result.outcome.reused > 20
    assert next(result.verdict()).startswith("right so far: ")


@pytest.mark.parametrize(("share", "fewest"), [(0.0, True), (1.0, False)])
def test_rounding_is_measured_on_fewer_prompts_where_that_takes_much_of_the_time(
    monkeypatch: Patch, share: float, *, fewest: bool
) -> None:
    monkeypatch.setattr(loop, "CALIBRATING", share)
    with fake("llama", PROFILES["llama"]) as server:
        result = probed(server.url, requests=200)
    assert fewest == (len(result.judge.noise.alone) == loop.FEWEST_SAMPLES)


def test_an_answer_that_was_off_once_is_not_reported_as_a_cold_one() -> None:
    with fake("llama", PROFILES["llama"]) as server:
        result = probed(server.url, requests=200)
    assert ", except " not in next(result.verdict())
    result.outcome.suspicions = 1
    assert ", except 1 that replays did not confirm (" in next(result.verdict())


@pytest.mark.thorough
def test_rounding_of_reuse_alone_is_measured_where_a_state_cannot_be_cut_back() -> None:
    """As keys in f16 round on a hybrid model without checkpoints."""

    def computes(server: Fake, _: int) -> str:
        server.model.noise = 0.0
        return ""

    def reuses(prompt: Tokens, _: int, model: Model) -> Tokens:
        model.noise = 0.02
        return prompt

    options = {"model": "hybrid", "ctx_checkpoints": 0}
    with fake("llama", PROFILES["llama"], context=reuses, fault=computes, **options) as server:  # type: ignore[arg-type]
        result = probed(server.url, requests=400)
    assert result.right
    assert 0 == result.outcome.suspicions
    assert result.judge.noise.limit > 0.04


@pytest.mark.thorough
@pytest.mark.parametrize("context", [slow(sound), stale])
def test_a_server_of_texts_is_compared_with_a_second_one(context: object) -> None:
    with (
        fake("text", PROFILES["text"], context=context) as warm,  # type: ignore[arg-type]
        fake("text", PROFILES["text"], prompt_cache_size=0) as cold,
    ):
        # A prompt that is cached whole ends the release's generation thread.
        result = probed(warm.url, cold=cold.url, requests=600, no_repeats=True)
    assert (context is sound) == result.right
    assert "mlx_lm.server 0.32.2" == result.name


@pytest.mark.thorough
@pytest.mark.parametrize("context", [slow(sound), stale])
def test_chats_are_sent_as_messages(context: object) -> None:
    with (
        fake("chat", PROFILES["text"], context=context) as warm,  # type: ignore[arg-type]
        fake("chat", PROFILES["text"], prompt_cache_size=0) as cold,
    ):
        result = probed(warm.url, cold=cold.url, requests=900, no_repeats=True, chat=True)
        roles = [[message["role"] for message in body["messages"]] for body in warm.bodies]
    assert (context is sound) == result.right
    assert {"user"} == {role[-1] for role in roles}
    assert ["system", "user", "assistant", "user"] in roles


def test_chats_that_open_together_have_a_system_message_each() -> None:
    steps = opened_together(Seeded("rows"), 100)
    names = {token: str(token) for token in WORDS}
    ends = [query_of(step, names).messages for step in steps]
    assert {len(end) for end in ends} == {1}
    assert min(ends)[0] < 10
    assert max(ends)[0] in range(40, 51)
    assert [step.with_previous for step in steps].count(False) == 3


@pytest.mark.thorough
@pytest.mark.parametrize("chat", [True, False])
def test_chats_open_together_where_prompts_are_messages(monkeypatch: Patch, *, chat: bool) -> None:
    drawn: list[int] = []

    def counted(draws: Draws, longest: int) -> tuple[Step, ...]:
        drawn.append(longest)
        return opened_together(draws, longest)

    monkeypatch.setattr(loop, "opened_together", counted)
    with (
        fake("chat", PROFILES["text"]) as warm,
        fake("chat", PROFILES["text"], prompt_cache_size=0) as cold,
    ):
        probed(warm.url, cold=cold.url, requests=200, no_repeats=True, chat=chat)
    assert bool(drawn) == chat


@pytest.mark.parametrize(
    ("dialect", "cold", "settings", "sentence"),
    [
        ("llama", False, {"chat": True}, "sent as token ids; leave --chat out"),
        ("text", False, {}, "name a second, fresh server with --cold URL"),
        ("text", True, {}, "cached tokens for a request that is to be cold"),
        ("text", True, {"requests": 1}, "the 1 requests are used up before it was known how"),
    ],
)
def test_a_server_that_cannot_be_probed_so_is_refused(
    dialect: str, cold: bool, settings: dict[str, Any], sentence: str
) -> None:
    with (
        fake(dialect, PROFILES[dialect]) as warm,
        fake(dialect, PROFILES[dialect]) as second,
        pytest.raises(InputError, match=sentence),
    ):
        probed(warm.url, **settings, **({"cold": second.url} if cold else {}))


@pytest.mark.thorough
@pytest.mark.parametrize("context", [slow(sound), stale])
def test_a_server_without_counts_is_compared_by_its_texts(context: object, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text(" ".join(f"w{at}" for at in range(5, 400)))
    with (
        fake("serve", PROFILES["vllm"], context=context) as warm,  # type: ignore[arg-type]
        fake("serve", PROFILES["vllm"], enable_prefix_caching=False) as cold,
    ):
        result = probed(warm.url, cold=cold.url, words=words)
    assert "transformers serve" == result.name
    assert (context is sound) == result.right
    assert result.outcome.reused is None
    if result.right:
        assert " answers, from cache or not, are the uncached answers " in next(result.verdict())


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("hang", "gave no answer within 1 seconds"),
        ("drop", "closed the connection before its answer was whole"),
        ("broken", "answered with status 500: "),
        ("nonsense", "answered no JSON: <html"),
    ],
)
def test_a_server_that_misbehaves_now_and_then_is_described(what: str, sentence: str) -> None:
    def fault(_: Fake, number: int) -> str:
        return what if number in {130, 131} else ""

    with fake("llama", PROFILES["llama"], fault=fault) as server:
        result = probed(server.url, requests=220)
    assert result.right
    assert any(sentence in note for note in result.outcome.notes)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("what", ["hang", "drop", "broken", "crash", "refuse"])
def test_a_server_that_answers_no_more_is_a_finding(what: str) -> None:
    def fault(_: Fake, number: int) -> str:
        return what if number >= 130 else ""

    with fake("llama", PROFILES["llama"], fault=fault) as server:
        result = probed(server.url)
    assert result.outcome.finding is not None
    assert "no answer" == result.outcome.finding.kind
    assert result.outcome.finding.requests < 140  # those that tried if it answers again are later
    assert "the server answers no request any more: " in next(result.verdict())


def test_a_server_that_answers_again_after_a_restart_is_not_accused() -> None:
    restarted = [0.0]

    def fault(_: Fake, number: int) -> str:
        if number == 130:
            restarted[0] = time.monotonic() + 0.4
        return "broken" if time.monotonic() < restarted[0] else ""

    with fake("llama", PROFILES["llama"], fault=fault) as server:
        result = probed(server.url, requests=300)
    assert result.right
    assert result.requests > 200
    said = "the server answered no request for a time, then again: "
    assert any(note.startswith(said) for note in result.outcome.notes)


def test_a_server_that_allows_no_more_requests_is_not_accused() -> None:
    def fault(_: Fake, number: int) -> str:
        return "deny" if number >= 130 else ""

    with fake("llama", PROFILES["llama"], fault=fault) as server:
        result = probed(server.url)
    assert result.right
    assert "refused with status 429: too many requests" == result.outcome.ended


@pytest.mark.parametrize("dialect", ["llama", "text"])
def test_a_server_that_allows_no_request_is_not_accused(dialect: str) -> None:
    with (
        fake(dialect, PROFILES[dialect], fault=lambda *_: "deny") as server,
        pytest.raises(
            (InputError, UntestedError), match="refused with status 429: too many requests"
        ),
    ):
        probed(server.url, cold=server.url)


def test_a_key_is_sent_and_not_written(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setenv("SERVER_KEY", "sk-secret")
    with fake("llama", PROFILES["llama"], context=stale) as server:
        server.key = "sk-secret"
        with pytest.raises(InputError, match=r"status 401: Invalid API Key; add --key VARIABLE"):
            probed(server.url)
        result = probed(server.url, key="SERVER_KEY", emit=tmp_path)
    assert not result.right
    text = (tmp_path / "report.md").read_text()
    assert '-H "Authorization: Bearer $SERVER_KEY"' in text
    assert "sk-secret" not in "".join(path.read_text() for path in tmp_path.iterdir())
    monkeypatch.setenv("SERVER_KEY", "")
    with pytest.raises(InputError, match="--key SERVER_KEY: the environment has no key"):
        probed(server.url, key="SERVER_KEY")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("what", ["hang", "drop", "broken", "nonsense", "refuse"])
def test_a_server_that_never_answers_is_not_said_to_have_answered(what: str) -> None:
    with fake("llama", PROFILES["llama"], fault=lambda *_: what) as server:
        said = next(probed(server.url, patience=0.2).verdict())
    assert said.startswith("WRONG: the server answers no request: ")
    with (
        fake("vllm", PROFILES["vllm"], fault=lambda *_: what) as server,
        pytest.raises(InputError, match="no prompt of token ids is answered: "),
    ):
        probed(server.url, patience=0.2)


@pytest.mark.thorough
def test_a_count_that_cannot_be_true_is_named() -> None:
    def lies(server: Fake, number: int) -> str:
        if number == 60:
            whole = server.model.reply
            server.model.reply = lambda *a, **k: more(whole(*a, **k), a[0])  # type: ignore[method-assign]
        return ""

    def more(done: object, prompt: Tokens) -> object:
        if isinstance(done, tuple) and done[0]:
            return (len(prompt) + 3, *done[1:])
        return done

    with fake("llama", PROFILES["llama"], fault=lies) as server:
        result = probed(server.url, requests=150)
    assert any(note.startswith("a count cannot be true: ") for note in result.outcome.notes)


@pytest.mark.thorough
def test_a_race_is_found_if_it_shows_in_some_of_the_replays(monkeypatch: Patch) -> None:
    monkeypatch.setattr(loop, "SAMPLES", 30)  # fewer leave a half of wrong replays undecided

    def sometimes(prompt: Tokens, cached: int, model: Model) -> Tokens:
        return (9, *prompt[1:]) if model.reuses % 2 and cached > 4 else prompt

    with fake("llama", PROFILES["llama"], context=sometimes, noise=1e-3) as server:
        result = probed(server.url, requests=4000)
    assert not result.right


@pytest.mark.thorough
def test_an_undecided_suspicion_is_put_aside_for_a_plainer_one() -> None:
    """All 200 replays of one that is wrong in each tenth take more requests than there are."""

    def both(prompt: Tokens, cached: int, model: Model) -> Tokens:
        if len(prompt) % 7 == 0:
            return stale(prompt, cached, model)
        return (9, *prompt[1:]) if model.reuses % 10 == 0 and cached > 4 else prompt

    with fake("llama", PROFILES["llama"], context=both) as server:
        assert not probed(server.url).right


@pytest.mark.thorough
def test_an_answer_that_is_seldom_wrong_by_chance_is_no_finding() -> None:
    def once(prompt: Tokens, _: int, model: Model) -> Tokens:
        return (9, *prompt[1:]) if model.reuses in {40, 60} else prompt

    with fake("llama", PROFILES["llama"], context=once) as server:
        result = probed(server.url, requests=500)
    assert result.right
    assert result.outcome.suspicions


@pytest.mark.thorough
def test_nothing_is_erased_unless_that_is_allowed() -> None:
    for allowed in (False, True):
        with fake("llama", PROFILES["llama"]) as server:
            probed(server.url, requests=80, may_erase=allowed)
        assert allowed == (server.erased > 0)


@pytest.mark.thorough
def test_budgets_end_a_run() -> None:
    with fake("llama", PROFILES["llama"]) as server:
        result = probed(server.url, requests=90)
        assert 90 == result.requests
        assert 90 == server.requests
        assert "the 90 requests are used up" == result.outcome.ended
        assert "the 3000 tokens are used up" == probed(server.url, tokens=3000).outcome.ended


@pytest.mark.thorough
def test_files_hold_the_report_the_whole_sequence_and_the_requests(tmp_path: Path) -> None:
    with fake("llama", PROFILES["llama"], context=stale) as server:
        finished = run(
            Settings(url=server.url, requests=1500, longest=60, minutes=2.0, emit=tmp_path)
        )
    # No scenario: the simulated server is right, and this one was never started afresh.
    assert {".sh", ".md", ".jsonl"} == {file.suffix for file in finished.files}
    report = next(tmp_path.glob("*.md")).read_text()
    assert report.count("curl -s") >= 3
    assert "Against the server as it was: earlier requests may have a part in it:" in report
    assert "WRONG" in report
    lines = [json.loads(line) for line in next(tmp_path.glob("*.jsonl")).read_text().splitlines()]
    assert all({"number", "time", "prompt", "status", "usage"} == line.keys() for line in lines)


@pytest.mark.thorough
@pytest.mark.parametrize(("share", "right"), [(0.8, True), (1.2, False)])
def test_a_fault_is_seen_from_the_printed_size_on(share: float, *, right: bool) -> None:
    """One that shows after the calibration, in a third of the reused prefixes."""

    def shifted(prompt: Tokens, cached: int, model: Model) -> Tokens:
        late = model.reuses > 40 and cached % 3 == 0
        model.shift = share * MATERIAL if late else 0.0
        return prompt

    with fake("llama", PROFILES["llama"], context=shifted) as server:
        result = probed(server.url, requests=900)
    assert MATERIAL == result.judge.noise.limit
    assert right == result.right
    if right:
        assert f"power: a fault of more than {MATERIAL:g} in one of " in " ".join(result.verdict())


NOISES = (1e-4, 1e-3, 2e-2)
"""One with each bug; `python -m benchmarks.probe planted` plays all."""


@pytest.mark.sampled(3)
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dialect", "number"),
    [
        # one dialect for each bug; the other nightly
        pytest.param(dialect, number, marks=[pytest.mark.nightly] * (number % 2 != other))
        for other, dialect in enumerate(("vllm", "sglang"))
        for number in range(20)
    ],
)
def test_planted_bugs_are_found(monkeypatch: Patch, dialect: str, number: int) -> None:
    monkeypatch.setattr(loop, "SAMPLES", 30)
    (name, context), noise = list(bugs())[number], NOISES[number % 3]
    with fake(dialect, PROFILES[dialect], context=context, noise=noise) as server:
        assert not probed(server.url, requests=3000).right, name


@pytest.mark.thorough
@pytest.mark.parametrize("failures", [1, slow(2)])
def test_a_second_finding_has_another_cause(failures: int) -> None:
    """The server of hashes has one bug, whatever the engine does: it is found once."""
    with fake("llama", PROFILES["llama"], context=stale) as server:
        result = probed(server.url, requests=1500, max_failures=failures)
    first = there_is(result.outcome.finding)
    assert 1 == len(result.outcome.findings)
    assert (failures == 2) == (first.repeats > 0)


@pytest.mark.thorough
@pytest.mark.parametrize("context", [slow(sound), stale])
def test_a_model_of_ollama_is_unloaded_for_a_cold_answer(context: object) -> None:
    with (
        fake("ollama", PROFILES["llama"], context=context) as warm,  # type: ignore[arg-type]
        fake("ollama", PROFILES["llama"]) as cold,
    ):
        with pytest.raises(InputError, match="add --may-erase"):
            probed(warm.url, cold=cold.url, requests=300)
        result = probed(warm.url, cold=cold.url, requests=600, may_erase=True)
    assert (context is sound) == result.right
    assert "Ollama 0.13.0" == result.name
    assert cold.erased > 50


@pytest.mark.thorough
def test_the_fixture_runs_a_probe(cachesim_probe: Callable[..., Result]) -> None:
    with fake("llama", PROFILES["llama"]) as server:
        assert cachesim_probe(url=server.url, requests=150).right
