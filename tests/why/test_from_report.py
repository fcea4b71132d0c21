"""A report becomes a draft of a scenario that runs, and what it lacks is asked for."""

from pathlib import Path
from typing import Final

import pytest

from cachesim.cli.main import main
from cachesim.errors import InputError
from cachesim.play import run
from cachesim.scenario import Scenario, full_profile, loads
from cachesim.why.from_report import draft_of, issue_in
from cachesim.why.reported import Counts, counts_in
from tests.fixtures import Capture

EXAMPLES: Final = Path(__file__).parents[2] / "docs" / "examples"

OF_VLLM: Final = """
owner/fork#7 on vLLM v0.24.0
vllm serve Qwen/Qwen3.5-35B-A3B --block-size 1056 --max-model-len 16000 --tensor-parallel-size 2
  --speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'
The second time 6,336 of 8,339 tokens are cached.
"""

OF_A_SLOT: Final = """
https://github.com/ggml-org/llama.cpp/issues/23013, Qwen3.6 27B, build 9093
new prompt, n_ctx_slot = 4096, n_keep = 0, task.n_tokens = 887
n_past = 855, slot.prompt.tokens.size() = 1205, seq_id = 0, pos_min = 1204, n_swa = 0
forcing full prompt re-processing due to lack of cache data
"""


def drafted(text: str) -> Scenario:
    return loads(draft_of("draft", text.encode(), source="thread.md").text.encode(), name="draft")


def test_release_flags_and_numbers_of_a_report_give_its_own_count() -> None:
    draft = draft_of("draft", OF_VLLM.encode(), source="thread.md")
    scenario = drafted(OF_VLLM)
    played = run(scenario, full_profile("vllm", "0.24.0"), arithmetic="ring")

    assert ("vllm", ("0.24.0",)) == (scenario.engine.name, scenario.engine.profiles)
    assert {
        "block_size": 1056,
        "max_model_len": 16000,
        "speculative_method": "mtp",
        "num_speculative_tokens": 3,
    } == dict(scenario.engine.options)
    assert [0, 6336] == [step.cached for step in played.steps]
    assert "the second request reuses 6336 tokens in 0.24.0; the report says 6336" == draft.note
    assert (
        "how many tokens two prompts share; the same prompt is sent twice here, a guess",
    ) == draft.missing


def test_lines_of_a_slot_give_what_it_held_and_what_is_shared() -> None:
    scenario = drafted(OF_A_SLOT)

    assert {"S": 855, "a": 350, "b": 32} == dict(scenario.spans)
    assert ["S a", "S b"] == [each.prompt for each in scenario.step]
    assert ("b9093",) == scenario.engine.profiles


def test_a_report_that_says_nothing_is_asked_for_everything() -> None:
    draft = draft_of("draft", b"it is slow", source="thread.md")

    assert 6 == len(draft.missing)
    assert all(f"# not in the report: {each}" in draft.text for each in draft.missing)
    guesses = [line.partition(" ")[0] for line in draft.text.splitlines() if "  # a guess" in line]
    assert ["preset", "name", "profiles"] == guesses
    assert 2 == draft.text.count("# a guess: its length")


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ("koboldcpp", "KoboldCpp has batches\nProcessing Prompt [BATCH] (512 / 2397 tokens)"),
        ("koboldcpp", "kobold.cpp keeps trimming the batch, while llama.cpp does not; kobold.cpp"),
        ("koboldcpp", "LostRuins/koboldcpp · issue #1895\n# no batch, mlx_lm.server is fine"),
        ("ollama", "ollama · MLX engine\ncache hit total=23169  matched=21742  cached=9"),
        ("ollama-runner", "ollama 0.24 with a GGUF model reprocesses everything"),
        ("lm-studio", "LM Studio: Prompt caching doesn't work for the MLX version of a model"),
        ("llama.cpp", "LM Studio reprocesses a GGUF model on each turn"),
        ("omlx", "2026-09-20 - omlx.scheduler - INFO - re-prefills 13956 of 120452 tokens"),
        ("vllm", "vLLM 0.26.0\nvllm:prefix_cache_hits_total     0"),
        ("sglang", "Prefill batch. #new-token: 1872, #cached-token: 16384, token usage: 0.10"),
        ("llama.cpp", "slot launch_slot_: id  0 | task 2505 | processing task"),
        ("mlx-lm", "mlx_lm.server trims nothing. LM Studio has it as well."),
        ("rapid-mlx", "raullenchai/Rapid-MLX · issue #214\nmlx_lm.server  # baseline"),
        ("vllm-mlx", "waybarrios/vllm-mlx · issue #145: vllm is not meant"),
        ("ik_llama.cpp", "ik_llama.cpp reprocesses, llama.cpp does not; ik_llama.cpp -c 4096"),
    ],
)  # fmt: skip
def test_a_server_is_named_by_its_log_its_thread_or_its_name(engine: str, text: str) -> None:
    assert engine == drafted(text).engine.name


@pytest.mark.thorough
def test_each_request_of_a_log_is_written_with_what_it_shares() -> None:
    report = """ollama/ollama · issue #18267, MLX runner of 0.33.0, qwen3.8:27b-mlx
cache hit total=23169  matched=21742  cached=16383   left=6786
cache hit total=38086  matched=36620  cached=32767   left=5319
cache hit total=35755  matched=35735  cached=32767   left=2988"""
    scenario = drafted(report)
    played = run(scenario, full_profile("ollama", "0.33.0"), arithmetic="counts")
    shown = [step for step in played.steps if step.name.startswith("request-")]

    assert [23169, 38086, 35755] == [step.prompt_tokens for step in shown]
    assert [16384, 32768, 32768] == [step.cached for step in shown]


def test_a_log_of_what_was_processed_has_guesses_for_what_it_does_not_say() -> None:
    report = """KoboldCpp 1.120
Processing Prompt [BATCH] (512 / 2397 tokens)
Processing Prompt [BATCH] (512 / 2935 tokens)
Processing Prompt [BATCH] (190 / 190 tokens)"""
    scenario = drafted(report)

    assert {"S": 2397, "a": 538, "b": 190} == dict(scenario.spans)
    assert ["S", "S a", "S a b"] == [step.prompt for step in scenario.step]
    assert 3 == draft_of("d", report.encode(), source="x").text.count("# a guess: its length")


def test_counts_of_a_block_store_are_those_of_its_log() -> None:
    line = (
        "2026-09-20 21:38:35,016 - omlx.scheduler - INFO - [-] - prefix cache: request 3dd "
        "re-prefills 956 of 7100 tokens (reused 6144); closest stored sequence 471 shares the "
        "first 6400 of 7000 comparable tokens before diverging"
    )
    draft = draft_of("draft", line.encode(), source="thread.md")

    assert "the second request reuses 6144 tokens in 2026-09; the report says 6144" == draft.note


def test_a_release_is_read_behind_the_name_of_its_server() -> None:
    older = drafted("raullenchai/Rapid-MLX · issue #1, Rapid-MLX 0.6.11, mlx-lm 0.31.3")
    draft = draft_of("draft", b"KoboldCpp 1.115 and a 700-token prompt", source="thread.md")

    assert ("0.12.5",) == older.engine.profiles
    assert "between 1.115 and 1.104, the nearest that is simulated" in " ".join(draft.missing)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("6,336 / 8,339 cached prompt tokens", Counts(cached=6336, whole=8339)),
        ("'cached_tokens': 0 ... prompt_tokens: 17433", Counts(cached=0, whole=17433)),
        ("a 9,953-token prompt", Counts(whole=9953)),
        ("MISS: shared=3019 entry_len=3022 requested_len=3042",
         Counts(shared=3019, held=3022, whole=3042, cached=0)),
        ("no number", Counts()),
        ("uncached_tokens=40, of a 90-token prompt", Counts(whole=90)),
        ("`cached_tokens` is 0: forcing full prompt re-processing", Counts(cached=0)),
        ("task.n_tokens = 70, forcing full prompt re-processing", Counts(whole=70, cached=0)),
        ("Prompt cache restore: cached_tokens=1040 uncached_tokens=59 lifetime",
         Counts(cached=1040, whole=1100)),
        ('msg="cache hit" total=2100 matched=1500 cached=1024 left=1076',
         Counts(cached=1024, shared=1500, whole=2100)),
    ],
)  # fmt: skip
def test_numbers_are_read_as_people_write_them(text: str, counts: Counts) -> None:
    assert counts == counts_in(text)


def test_short_flags_are_read_in_command_lines_alone() -> None:
    command = "`llama-server -m Qwen3-8B.gguf -c 8192 -np 2 \\\n  --ctx-checkpoints 8`"
    report = f"version: 9538. {command}, and then curl -N -ub 9 fails."

    expected = {"ctx_size": 8192, "parallel": 2, "ctx_checkpoints": 8}
    assert expected == dict(drafted(report).engine.options)


def test_a_thread_is_named_by_its_address_or_its_number() -> None:
    assert "a/b#12" == issue_in("see https://github.com/a/b/pull/12")
    assert "a/b#12" == issue_in("a/b · issue #12 · open")
    assert "" == issue_in("see 12")


@pytest.mark.parametrize("data", [b"", b"\x00\x01", b"x" * (5 << 20)])
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match=r"thread.md: has"):
        draft_of("draft", data, source="thread.md")


def test_flags_that_no_server_starts_with_are_left_out_and_named() -> None:
    report = "vllm 0.33.0, a gemma-3 model: --num-gpu-blocks-override 3 --max-model-len 4000"
    draft = draft_of("draft", report.encode(), source="thread.md")

    said = "whether num_gpu_blocks_override is 3; left out, as refused: "
    assert any(each.startswith(said) for each in draft.missing)


def test_a_log_in_a_thread_gives_its_worst_miss_with_the_requests_that_it_needs() -> None:
    log = (EXAMPLES / "hybrid.log").read_text(encoding="utf-8")
    draft = draft_of("draft", f"It is slow:\n```\n{log}\n```\nWhy?".encode(), source="thread.md")
    scenario = loads(draft.text.encode(), name="draft")
    profile = full_profile(scenario.engine.name, scenario.engine.profiles[0])

    assert "from its log" == draft.note
    assert run(scenario, profile, arithmetic="ring").as_expected


def test_the_command_writes_a_file_that_runs(tmp_path: Path, capsys: Capture) -> None:
    thread, file = tmp_path / "thread.md", tmp_path / "draft.toml"
    thread.write_text(OF_A_SLOT, encoding="utf-8")

    assert 0 == main(["new", "draft", "--from-report", str(thread), "-o", str(file)])
    assert "the report says 0" in capsys.readouterr().err
    assert 0 == main(["run", str(file), "--arithmetic", "ring"])
