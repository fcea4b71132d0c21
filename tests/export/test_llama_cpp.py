"""A scenario as a test of llama.cpp's own suite."""

import ast
import struct
from pathlib import Path
from typing import Any

import pytest

from cachesim.export.case import Case, case_of
from cachesim.export.forms import exported, form_of
from cachesim.export.llama_cpp import pytest_of
from cachesim.export.proof import prove
from cachesim.export.python_text import name_of
from cachesim.export.stand_in import utils
from cachesim.model.weights import draw
from cachesim.prove.llama_cpp.gguf import model_keys
from cachesim.scenario.checks import spec_of
from cachesim.scenario.shipped import load_all


def case(name: str, release: str = "") -> Case:
    [(_, scenario)] = load_all([name])
    return case_of(scenario, release)


def test_a_wrong_answer_is_held_against_that_of_a_fresh_server() -> None:
    text = pytest_of(case("llama.cpp-two-codes"))

    assert 'assert warm["tokens"] == cold["tokens"]' in text
    assert "complete(server, rules + code_b + ask, 1, n_probs=1)" in text


def test_lost_reuse_is_the_count_that_a_patch_gives_back() -> None:
    text = pytest_of(case("llama.cpp-24143-load-consumes-entry"))

    assert 'assert body["timings"]["cache_n"] >= 199' in text
    assert '"--slot-prompt-similarity", "0.0"' in text


def test_a_release_without_the_defect_gets_a_test_that_passes() -> None:
    on = {release: case("llama.cpp-two-codes", release) for release in ("b11549", "b10809")}

    assert {"b11549": True, "b10809": False} == {name: each.broken for name, each in on.items()}
    assert pytest_of(on["b11549"]) == pytest_of(on["b10809"])


NAMES = (
    "llama.cpp-two-codes",
    "llama.cpp-24143-load-consumes-entry-hybrid",
    "llama.cpp-three-requests-window",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_test_is_python_and_names_nothing_of_ours(name: str) -> None:
    text = pytest_of(case(name))

    ast.parse(text)
    assert "cachesim" not in text.lower()
    assert [] == [line for line in text.splitlines() if len(line) > 120]


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_the_model_that_a_test_writes_has_the_shapes_of_the_scenarios(
    name: str, tmp_path: Path
) -> None:
    spec = spec_of(case(name).scenario.model)
    tree = ast.parse(pytest_of(case(name)))
    parts = [n for n in tree.body if "LAYERS" in ast.unparse(n) and not _is_test(n)]
    names: dict[str, Any] = {}
    exec("import struct\nimport numpy as np\n" + "\n".join(map(ast.unparse, parts)), names)

    names["write_model"](tmp_path / "model.gguf")

    data = (tmp_path / "model.gguf").read_bytes()
    magic, _, tensors, keys = struct.unpack_from("<4sIQQ", data)
    assert (b"GGUF", len(draw(spec))) == (magic, tensors)
    wanted = {each for each in model_keys(spec) if not each.startswith(("tokenizer", "general"))}
    assert set() == {each for each in wanted if each.encode() not in data}
    assert keys > len(wanted)


def _is_test(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name != "write_model"


def test_the_stand_in_gives_the_flags_of_its_attributes() -> None:
    server: Any = utils.ServerProcess()
    server.model_hf_repo = server.model_hf_file = None
    server.model_file, server.n_slots, server.fa, server.cache_ram = "m.gguf", 2, "off", 0
    server.kv_unified = True

    words = server.arguments()

    assert ["--model", "m.gguf"] == words[words.index("--model") :][:2]
    assert ["--parallel", "2"] == words[words.index("--parallel") :][:2]
    assert ["--cache-ram", "0"] == words[words.index("--cache-ram") :][:2]
    assert "--kv-unified" == words[-1]
    assert "--hf-repo" not in words


def test_ik_llamas_test_says_that_it_was_not_run() -> None:
    [(_, scenario)] = load_all(["ik_llama.cpp-1889-recurrent-target-refuses-trim"])

    test = exported(scenario, runs=True)

    assert test.as_said
    assert test.text.startswith("# Not run")
    assert 'assert body["timings"]["prompt_n"] == 400' in test.text


def test_names_of_spans_hide_none_of_pythons() -> None:
    assert ["list_", "class_", "server_", "a_b"] == [
        *map(name_of, ("list", "class", "server", "a-b"))
    ]


def test_what_the_suite_cannot_be_asked_is_named() -> None:
    with pytest.raises(Exception, match="a client that disconnects"):
        pytest_of(case("llama.cpp-interrupted-stream"))


def test_a_wrong_kind_of_test_is_refused_with_the_right_one() -> None:
    with pytest.raises(Exception, match="write --to pytest"):
        form_of(case("llama.cpp-two-codes"), "unittest")


@pytest.mark.wheel
def test_a_test_fails_on_the_release_with_the_defect_and_passes_on_one_without() -> None:
    wrong = case("llama.cpp-two-codes")
    proof = prove(wrong, pytest_of(wrong))

    assert proof.red is not None
    assert proof.green is not None
    assert ("fails", "passes") == (proof.red.result, proof.green.result)
