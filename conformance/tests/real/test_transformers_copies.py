"""Changed copies of Transformers: bugs planted in a copy are found, and repairs go quiet."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cachesim.errors import OptionError
from cachesim.prove.environment import Environment
from conformance.real.transformers.commands import real_transformers
from conformance.real.transformers.environments import IMPORTED, NEWEST, Copy, environment_for
from conformance.real.transformers.results import Found, is_worse
from conformance.tests.real.test_transformers_scripts import cell
from tests.fixtures import Capture, Patch

WHEEL = [
    pytest.mark.wheel,
    pytest.mark.skipif(
        not environment_for(NEWEST).is_ready(), reason="torch is not installed: make nightly"
    ),
]
BEFORE, AFTER = "5.12.0", "5.13.0"
"""Releases without and with the repair of Mamba-2 (#46084)."""


def package(folder: Path, version: str = "5.0.0") -> Path:
    """A package with the files that a copy has to have."""
    for each in IMPORTED:
        path = folder / each
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "models" / "__init__.py").touch()
    (folder / "__init__.py").write_text(f'__version__ = "{version}"\n')
    return folder


def copied(release: str, folder: Path, edits: Mapping[str, Mapping[str, str]]) -> Path:
    """A release's package, where some files have other lines; what is equal is a link."""
    [installed] = environment_for(release).folder.glob("lib/python*/site-packages/transformers")
    shutil.copytree(installed, folder, copy_function=os.symlink)
    for name, changes in edits.items():
        path = folder / name
        text = path.read_text(encoding="utf-8")
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        path.unlink()
        path.write_text(text, encoding="utf-8")
    return folder


def environment_with(folder: Path, monkeypatch: Patch) -> Environment:
    """An environment that has a package of its own beside the library."""
    monkeypatch.setenv("CACHESIM_ENVIRONMENTS", str(folder))
    packages = folder / "theirs" / "lib" / "python3" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "beside.py").write_text("NAME = 'of the release'\n")
    package(packages / "transformers", "4.0.0")
    return Environment(name="theirs", requirements=())


@pytest.mark.parametrize("place", [".", "src/transformers", "transformers"])
def test_a_copy_is_a_package_folder_a_checkout_or_a_folder_of_packages(
    tmp_path: Path, place: str
) -> None:
    package(tmp_path / place, "5.22.1")
    assert Copy((tmp_path / place).resolve(), "5.22.1") == Copy.at(tmp_path)


@pytest.mark.parametrize(("version", "release"), [("5.9.0", "5.9.0"), ("5.25.0.dev0", NEWEST)])
def test_a_copy_gets_the_packages_of_its_version_or_of_the_newest_release(
    version: str, release: str
) -> None:
    assert release == Copy(Path(), version).release


def test_the_copy_is_imported_and_else_what_the_environment_has(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    environment = environment_with(tmp_path / "all", monkeypatch)
    copy = Copy.at(package(tmp_path / "mine", "5.1.0"))
    program = "import beside, transformers; print(beside.NAME, transformers.__version__)"
    with copy.python(environment) as python:
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    assert "of the release 5.1.0\n" == done.stdout


def test_a_copy_that_cannot_be_imported_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    environment = environment_with(tmp_path / "all", monkeypatch)
    mine = package(tmp_path / "mine")
    (mine / "models" / "auto" / "modeling_auto.py").write_text("import not_there\n")
    reason = "with the packages of theirs: ModuleNotFoundError: No module named 'not_there'"
    with pytest.raises(OptionError, match=reason), Copy.at(mine).python(environment):
        pass


def test_a_folder_without_the_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--library .*/none is no folder"):
        Copy.at(tmp_path / "none")
    with pytest.raises(OptionError, match=r"holds no package of transformers .* name a checkout"):
        Copy.at(tmp_path)
    (package(tmp_path) / "__init__.py").write_text("")
    with pytest.raises(OptionError, match=r"__init__.py in .* has no __version__"):
        Copy.at(tmp_path)


@pytest.mark.parametrize(
    "words", [{"newest": True}, {"batches": 1}, {"release": ["5.1.0", "5.2.0"]}, {"scenario": "a"}]
)
def test_a_copy_is_played_beside_one_release_alone(tmp_path: Path, words: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="--library is run beside one release"):
        real_transformers(library=package(tmp_path), **words)


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ("r", "r", False),
        ("r", "w", True),
        ("r", "", True),
        ("r", "rc", True),
        ("w", "w", False),
        ("w", "r", False),
        ("c", "", True),
    ],
)
def test_a_copy_is_worse_if_it_has_a_wrong_result_more_or_a_family_less(
    before: str, after: str, *, worse: bool
) -> None:
    words = {"r": "right", "w": "wrong", "c": "crash"}
    found = [
        Found(
            "1", [cell(name, "crop", words[each]) for name, each in zip("ab", made, strict=False)]
        )
        for made in (before, after)
    ]
    assert worse == is_worse(*found)


def verdicts(
    library: Path, family: str, operation: str, output: Path, **more: Any
) -> tuple[int, list[list[str]]]:
    """The exit status, and release and verdict of each result."""
    words = {"family": [family], "operation": [operation], "output": output, **more}
    status = real_transformers(library=library, **words)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    return status, [[row["release"], row["verdict"]] for row in rows]


BUGS = {
    "state-not-cropped": (
        {
            "cache_utils.py": {
                "..., -tokens_to_remove - self.conv_kernel_size[i] : -tokens_to_remove\n": (
                    "..., -self.conv_kernel_size[i] :\n"
                )
            }
        },
        "lfm2",
        "crop-recorded",
    ),
    "mask-off-by-one": (
        {
            "cache_utils.py": {
                "max(self.cumulative_length - self.sliding_window + 1, 0)": (
                    "max(self.cumulative_length - self.sliding_window + 2, 0)"
                )
            }
        },
        "gemma3_text",
        "chunks",
    ),
    "rounded-twice-as-large": (
        {"cache_utils.py": {"return qtensor.dequantize()\n": "return qtensor.dequantize() * 2\n"}},
        "llama",
        "quanto",
    ),
    "offloaded-blocks-lost": (
        {
            "generation/continuous_batching/offloading_manager.py": {
                "index_copy_(0, gpu_ids, staging)": "index_copy_(0, gpu_ids, staging * 0)"
            }
        },
        "llama",
        "paged-offloaded",
    ),
    "mask-lost-after-the-prompt": (
        {
            "models/llama/modeling_llama.py": {
                "            attention_mask=attention_mask,\n            cache=cache,\n": (
                    "            attention_mask=None if cache and cache.get_seq_length() else "
                    "attention_mask,\n            cache=cache,\n"
                )
            }
        },
        "llama",
        "pad-right-tokens",
    ),
    "positions-restarted": (
        {"models/llama/modeling_llama.py": {"device) + past_seen_tokens": "device)"}},
        "llama",
        "tokens",
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("bug", [pytest.param(each, marks=WHEEL) for each in BUGS])
def test_a_bug_planted_in_a_copy_is_found(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch, bug: str
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    edits, family, operation = BUGS[bug]
    library = copied(NEWEST, tmp_path / "transformers", edits)
    changed = f"a changed copy of {NEWEST}"
    status, rows = verdicts(library, family, operation, tmp_path / "results.jsonl")
    assert (1, [[NEWEST, "right"], [changed, "wrong"]]) == (status, rows)
    assert f"{NEWEST} right, {changed} wrong" in " ".join(capsys.readouterr().out.split())


@pytest.mark.wheel
@pytest.mark.nightly
def test_upstreams_repair_in_a_copy_makes_a_wrong_result_right(tmp_path: Path) -> None:
    """Mamba-2's file of the release with the repair, in a copy of the one before."""
    for each in (BEFORE, AFTER):
        environment_for(each).ready()
    library = copied(BEFORE, tmp_path / "transformers", {})
    [after] = environment_for(AFTER).folder.glob("lib/python*/site-packages/transformers")
    name = "models/mamba2/modeling_mamba2.py"
    (library / name).unlink()
    shutil.copy(after / name, library / name)
    status, rows = verdicts(library, "mamba2", "chunks", tmp_path / "results.jsonl")
    assert (0, [[BEFORE, "wrong"], [f"a changed copy of {BEFORE}", "right"]]) == (status, rows)


OFFSET = "q_offset = cache.get_query_offset(self.layer_idx)"
STEP = "        dt = F.softplus(dt)\n    dt = dt[..., None]\n"
KEPT = "self.conv1d_state = nn.functional.pad(x_branch, "
KEPT += "(self.conv1d_width - x_branch.shape[-1] - 1, 0))"
JOINED = """joined = torch.cat((self.conv1d_state, x_branch), -1)
                before = self.conv1d_width - 1
                self.conv1d_state = joined[..., -before:]
                x_branch = self.conv_1d(joined)[..., before : before + seq_len]"""
CLASS = "class RecurrentGemmaForCausalLM(RecurrentGemmaPreTrainedModel, GenerationMixin):\n"
MOVE = """    def _reorder_cache(self, cache, order):
        for block in [each.temporal_block for each in self.model.layers]:
            if hasattr(block, "conv1d_state"):
                block.conv1d_state = block.conv1d_state[order]
                block.rg_lru.recurrent_states = block.rg_lru.recurrent_states[order]
        cache.reorder_cache(order)
        return cache

"""


@pytest.mark.wheel
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("cell", "line", "repair"),
    [
        # A query offset that is a tensor of its own, not the one that `update` adds to.
        (("inkling", "inkling_text", "static"), OFFSET, f"{OFFSET} + 0"),
        (("recurrent_gemma", "recurrent_gemma", "chunks"),
         f"{KEPT}\n{' ' * 16}x_branch = self.conv_1d(x_branch)[..., :seq_len]", JOINED),
        (("recurrent_gemma", "recurrent_gemma", "generate-beams"), CLASS, CLASS + MOVE),
        # The scan's range of time steps for a single token, too.
        (("zamba2", "zamba2", "tokens"), STEP, STEP.replace("(dt)", "(dt).clamp(min=0.001)")),
    ],
)  # fmt: skip
def test_the_line_at_fault_is_the_one_that_a_repair_changes(
    tmp_path: Path, cell: tuple[str, str, str], line: str, repair: str
) -> None:
    model, family, operation = cell
    edits = {f"models/{model}/modeling_{model}.py": {line: repair}}
    library = copied(NEWEST, tmp_path / "transformers", edits)
    status, rows = verdicts(library, family, operation, tmp_path / "results.jsonl")
    assert (0, [[NEWEST, "wrong"], [f"a changed copy of {NEWEST}", "right"]]) == (status, rows)


@pytest.mark.thorough
def test_the_program_prints_a_folder_that_is_no_copy(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cachesim", "real", "transformers", "--library", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 2 == done.returncode
    assert done.stderr.startswith(f"cachesim: --library {tmp_path} holds no package")
