"""The command after "prove it": printed where the real engine is played and its answer judged."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from cachesim.cli.main import main
from cachesim.engines.family import Profile
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.errors import ProfileError, ScenarioError
from cachesim.prove.command import proof_command
from cachesim.prove.playing import releases_of
from cachesim.scenario.files import load
from cachesim.scenario.shipped import shipped_file
from tests.fixtures import Capture, Patch

THREE = "llama.cpp-three-requests"
PROOF = f"cachesim real llama.cpp --scenario {THREE}"


def proofs(capsys: Capture, *words: str) -> list[str]:
    main(["run", *words, "--arithmetic", "ring"])
    lines = capsys.readouterr().out.splitlines()
    return [line.split("prove it ")[1] for line in lines if "prove it" in line]


def test_a_wrong_answer_of_a_release_with_a_server_has_a_proof(capsys: Capture) -> None:
    assert [PROOF] == proofs(capsys, THREE)


def test_a_release_that_the_file_does_not_list_is_named(capsys: Capture) -> None:
    assert [f"{PROOF} --release b10068"] == proofs(capsys, THREE, "-p", "b10068")


@pytest.mark.parametrize(
    "words",
    [
        ("vllm-39273-plain-step-after-drafts",),  # a real scheduler proves counts, and no answer
        ("vllm-42125-adapter-under-its-old-name",),
        ("sglang-29860-page-beyond-the-window",),
        ("llama.cpp-pinned-busy-slot",),  # the clock decides what the real server holds then
        (THREE, "--seed", "3"),  # the file has other tokens
        (THREE, "--set", "ctx_checkpoints=8"),  # the file has other flags
        (
            "llama.cpp-window-checkpoint-one-token-beyond",
            "-p",
            "b9538+24411",
        ),  # no wheel has the patch
    ],
)
def test_no_proof_is_printed_that_would_prove_nothing(
    capsys: Capture, words: tuple[str, ...]
) -> None:
    assert [] == proofs(capsys, *words)


LOADED = """
import sys
from cachesim.cli.main import main
main(["run", "llama.cpp-two-codes"])
print(*(name for name in sys.modules if name.startswith("cachesim.prove.")))
"""
COMMAND = {"command", "llama_cpp", "llama_cpp.fitting", "workbench"}


def test_the_line_costs_nothing_of_the_real_servers() -> None:
    """What starts servers, writes models and searches is imported by who runs the line."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )

    assert "prove it" in done.stdout
    assert {f"cachesim.prove.{each}" for each in COMMAND} == {*done.stdout.splitlines()[-1].split()}


def test_standard_input_has_no_name_to_prove_it_by(capsys: Capture, monkeypatch: Patch) -> None:
    text = shipped_file(THREE).read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))

    assert [] == proofs(capsys, "-")


def test_a_proof_is_one_line_and_its_file_quoted(
    capsys: Capture, monkeypatch: Patch, tmp_path: Path
) -> None:
    file = tmp_path / "three requests.toml"
    file.write_bytes(shipped_file(THREE).read_bytes())
    monkeypatch.setenv("COLUMNS", "40")

    assert [f"cachesim real llama.cpp --scenario '{file}'"] == proofs(capsys, str(file))


def test_a_chat_of_a_server_without_probabilities_has_no_proof() -> None:
    chats = load(shipped_file("llama.cpp-24411-first-turn-again"))
    step = next(number for number, each in enumerate(chats.step) if not each.messages)

    assert proof_command(chats, Profile.parse("llama.cpp@b9538"), "x.toml", step)
    with_chat = load(shipped_file("llama.cpp-reasoning-stripped"))
    step = next(number for number, each in enumerate(with_chat.step) if each.messages)
    assert "" == proof_command(with_chat, Profile.parse("llama.cpp@b9538"), "x.toml", step)


def test_a_named_release_is_the_only_one_that_is_played() -> None:
    three = load(shipped_file(THREE))

    assert ("b9538", "b11549") == releases_of(FAMILY, three)
    assert ("b10068",) == releases_of(FAMILY, three, "b10068")
    with pytest.raises(ProfileError, match="release 'b1'"):
        releases_of(FAMILY, three, "b1")
    with pytest.raises(ScenarioError, match="none of its profiles"):
        releases_of(FAMILY, load(shipped_file("mlx-lm-1215-exact-hit")), "b10068")
