"""Every engine is laid out in the same way: nine names, and upstream's files.

`python -m tests.engines.test_anatomy` prints the table of engines and names.

    family       what tools know of it
    releases     the history of its rules
    rules        one field for each difference
    options      its flags
    vocabulary   its events, and its causes of lost reuse
    server       the engine: submit, step, cancel
    observe      what it holds, and whether its books agree
    account      what was computed before, and the causes for which less is reused
    search       what a search draws, and the laws that it checks

A name is a module; a folder where one module would have more than `MOST` lines. All other files of
an engine follow one of upstream's, which `UPSTREAM` names.
"""

import ast
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest

import cachesim
from cachesim.engines import FAMILIES
from cachesim.engines.facts import shipped
from cachesim.engines.family import Family
from cachesim.engines.search import Search

PROGRAM: Final = Path(cachesim.__file__).parent
ENGINES: Final = PROGRAM / "engines"
TEMPLATE: Final = PROGRAM / "cli" / "template"

NAMES: Final = (
    "family", "releases", "rules", "options", "vocabulary",
    "server", "observe", "account", "search",
)  # fmt: skip

MOST: Final = 500
"""Lines of a module; a name with more of them may be a folder."""

IN_SLOTS: Final = "the ledger begins with what slots and the prompt cache hold: no record is kept"
IN_STORE: Final = "the ledger begins with what the store holds: no record is kept"

BELOW: Final = "that of the engine below it"

WITHOUT: Final[dict[str, dict[str, str]]] = {
    **{
        name: dict.fromkeys(("options", "observe", "account"), BELOW)
        for name in ("lm_studio", "ollama", "omlx", "vllm_mlx", "rapid_mlx")
    },
    "koboldcpp": {"observe": BELOW, "account": BELOW},
    "ollama_runner": {"observe": BELOW, "account": BELOW},
    "llamacpp": {"account": f"{IN_SLOTS} (`selection.py`)"},
    "ik_llama": {"account": f"{IN_SLOTS} (`prepare.py`)"},
    "mlx_lm": {"account": f"{IN_STORE} (`store/lru_prompt_cache.py`)"},
}
"""Names that an engine does not have, and why."""

CORE: Final = "vllm/v1/core"
CONNECTORS: Final = "vllm/distributed/kv_transfer/kv_connector/v1"
MEM_CACHE: Final = "srt/mem_cache"
KIT: Final = "mlx_engine/model_kit/batched_vision"
CONTEXT: Final = "tools/server/server-context.cpp"

UPSTREAM: Final[dict[str, dict[str, str]]] = {
    "llamacpp": {
        "checkpoints.py": CONTEXT,
        "drafter.py": "common/speculative.cpp, common/ngram-cache.cpp",
        "fields.py": "common/common.h, common/arg.cpp",
        "media.py": "tools/server/server-common.cpp",
        "prompt_cache.py": "tools/server/server-task.cpp",
        "router.py": "tools/server/server-models.cpp",
        "save.py": CONTEXT,
        "selection.py": CONTEXT,
        "server_batch.py": CONTEXT,
        "server_context.py": CONTEXT,
        "slot.py": f"{CONTEXT}, tools/server/server-task.cpp",
        "speculative.py": "common/speculative.cpp",
        "update_slots.py": CONTEXT,
        "memory/attention.py": "src/llama-kv-cache.cpp",
        "memory/batch.py": "src/llama-batch.cpp",
        "memory/blob.py": "src/llama-kv-cache.cpp, src/llama-memory-recurrent.cpp",
        "memory/cells.py": "src/llama-kv-cells.h, src/llama-kv-cache.cpp",
        "memory/context.py": "src/llama-context.cpp",
        "memory/create.py": "src/llama-model.cpp",
        "memory/hybrid.py": "src/llama-memory-hybrid.cpp, src/llama-kv-cache-iswa.cpp",
        "memory/module.py": "src/llama-memory.h",
        "memory/recurrent.py": "src/llama-memory-recurrent.cpp",
        "memory/recurrent_cells.py": "src/llama-memory-recurrent.cpp",
        "memory/rules.py": "src/llama-kv-cache.cpp, src/llama-memory-recurrent.cpp",
    },
    "ik_llama": {
        "context.py": "src/llama.cpp",
        "fields.py": "common/common.h",
        "prepare.py": "examples/server/server-context.cpp",
        "slot.py": "examples/server/server-context.cpp, examples/server/server-task.cpp",
        "speculative.py": "common/speculative.cpp",
    },
    "vllm": {
        "block_pool.py": f"{CORE}/block_pool.py, {CORE}/kv_cache_utils.py",
        "cells.py": "vllm/v1/kv_cache_interface.py",
        "checkpoints.py": "vllm/v1/kv_cache_interface.py",
        "connector.py": f"{CONNECTORS}/base.py, {CONNECTORS}/example_connector.py",
        "coordinator.py": f"{CORE}/kv_cache_coordinator.py, {CORE}/kv_cache_manager.py",
        "encoder.py": f"{CORE}/encoder_cache_manager.py",
        "fields.py": "vllm/config, vllm/engine/arg_utils.py",
        "groups.py": f"{CORE}/kv_cache_config_builder.py, {CORE}/kv_cache_planning.py",
        "host.py": "vllm/v1/kv_offload/cpu/manager.py",
        "managers.py": f"{CORE}/single_type_kv_cache_manager.py",
        "masks.py": f"{CORE}/single_type_kv_cache_manager.py",
        "nixl.py": f"{CONNECTORS}/nixl/pull_scheduler.py",
        "offload_connector.py": f"{CONNECTORS}/offloading/worker.py",
        "offloading.py": f"{CONNECTORS}/offloading/scheduler.py",
        "request.py": "vllm/v1/request.py",
        "runner.py": "vllm/v1/worker/gpu_model_runner.py, vllm/v1/worker/mamba_utils.py",
        "scan.py": "vllm/v1/attention/backends/mamba_attn.py",
        "scheduler.py": f"{CORE}/sched/scheduler.py",
        "splitter.py": f"{CORE}/sched/scheduler.py",
    },
    "sglang": {
        "allocation.py": f"{MEM_CACHE}/common.py, {MEM_CACHE}/allocation.py",
        "build.py": f"{MEM_CACHE}/kv_cache_builder.py, {MEM_CACHE}/registry.py",
        "fields.py": "srt/server_args.py",
        "hi_radix.py": f"{MEM_CACHE}/hiradix_cache.py",
        "hicache.py": f"{MEM_CACHE}/unified_radix_cache.py, srt/managers/cache_controller.py",
        "node.py": f"{MEM_CACHE}/radix_cache.py",
        "pools.py": f"{MEM_CACHE}/allocator, {MEM_CACHE}/memory_pool.py",
        "radix.py": f"{MEM_CACHE}/radix_cache.py, swa_radix_cache.py, mamba_radix_cache.py",
        "request.py": "srt/managers/schedule_batch.py",
        "runner.py": "srt/model_executor/model_runner.py",
        "schedule_policy.py": "srt/managers/schedule_policy.py",
        "scheduler.py": "srt/managers/scheduler.py",
        "sessions.py": "srt/session/session_controller.py",
        "storage_threads.py": f"{MEM_CACHE}/hybrid_cache/hybrid_cache_controller.py",
        "tree.py": f"{MEM_CACHE}/base_prefix_cache.py",
        "unified.py": f"{MEM_CACHE}/unified_radix_cache.py",
        "unified_core.py": f"{MEM_CACHE}/unified_cache/unified_tree_core.py",
    },
    "transformers": {
        "cache.py": "generation/continuous_batching/cache.py, cache_allocators",
        "continuous_api.py": "generation/continuous_batching/continuous_api.py",
        "dynamic.py": "cache_utils.py",
        "fields.py": "generation/configuration_utils.py",
        "requests.py": "generation/continuous_batching/requests.py",
        "scheduler.py": "generation/continuous_batching/scheduler.py",
    },
    "mlx_lm": {
        "families.py": "mlx_lm/models/*.py",
        "fields.py": "mlx_lm/server.py",
        "caches/arrays_cache.py": "mlx_lm/models/cache.py",
        "caches/batch_kv_cache.py": "mlx_lm/models/cache.py",
        "caches/kv_cache.py": "mlx_lm/models/cache.py",
        "caches/layer_cache.py": "mlx_lm/models/cache.py",
        "caches/prompt_cache.py": "mlx_lm/models/cache.py",
        "generate/batch_generator.py": "mlx_lm/generate.py",
        "generate/forward.py": "mlx_lm/generate.py, mlx_lm/models/*.py",
        "generate/shared.py": "mlx_lm/generate.py",
        "store/lru_prompt_cache.py": "mlx_lm/models/cache.py",
        "store/snapshot_prompt_cache.py": "mlx_lm/server.py as of #923",
    },
    "lm_studio": {
        "batch_generator.py": f"{KIT}/batch_generator.py, {KIT}/model_kit.py",
        "cache_wrapper.py": "mlx_engine/cache_wrapper.py",
        "prompt_cache.py": f"{KIT}/prompt_cache",
    },
    "ollama": {"cache.py": "x/mlxrunner/cache.go, cache_trie.go, cache/kvcache.go"},
    "omlx": {"prefix_cache.py": "omlx/cache/prefix_cache.py"},
    "vllm_mlx": {
        "memory_cache.py": "vllm_mlx/memory_cache.py, vllm_mlx/scheduler.py",
        "mllm_batch_generator.py": "vllm_mlx/mllm_batch_generator.py",
        "mllm_cache.py": "vllm_mlx/mllm_cache.py, vllm_mlx/models/mllm.py",
    },
    "rapid_mlx": {"memory_cache.py": "vllm_mlx/memory_cache.py, vllm_mlx/scheduler.py"},
    "llama_cpp_python": {
        "fields.py": "llama_cpp/llama.py, llama_cpp/server/settings.py",
        "llama.py": "llama_cpp/llama.py",
        "states.py": "llama_cpp/llama_cache.py",
    },
    "marconi": {"tree.py": "radix_cache_hybrid.py, config_tuner.py, utils.py"},
}
"""Upstream's file for each file of a port."""


def packages() -> list[str]:
    return [FAMILIES[each].package.rpartition(".")[2] for each in shipped()]


def first_part(path: Path, package: Path) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


def sources(package: Path) -> list[Path]:
    """The modules of a package, without its `__init__`."""
    return sorted(path for path in package.rglob("*.py") if path != package / "__init__.py")


def lines_of(package: Path) -> dict[str, int]:
    """The lines of each of the nine names that a package has."""
    found: dict[str, int] = {}
    for path in sources(package):
        if (name := first_part(path, package)) in NAMES:
            found[name] = found.get(name, 0) + len(path.read_text().splitlines())
    return found


def ported(package: Path) -> set[str]:
    """Files beside the nine names, without a folder's `__init__`."""
    return {
        path.relative_to(package).as_posix()
        for path in sources(package)
        if first_part(path, package) not in NAMES and path.name != "__init__.py"
    }


@pytest.mark.parametrize("package", packages())
def test_an_engine_has_the_nine_names(package: str) -> None:
    has = lines_of(ENGINES / package).keys()

    assert set(WITHOUT.get(package, {})) == set(NAMES) - has


@pytest.mark.parametrize("package", packages())
def test_a_name_is_a_module_unless_it_is_long(package: str) -> None:
    has = lines_of(ENGINES / package)
    folders = {name for name in has if (ENGINES / package / name).is_dir()}

    assert set() == {name for name in folders if has[name] <= MOST}


@pytest.mark.parametrize("package", packages())
def test_every_other_file_follows_one_of_upstream(package: str) -> None:
    assert set(UPSTREAM.get(package, {})) == ported(ENGINES / package)


@pytest.mark.parametrize("package", packages())
def test_a_package_itself_is_a_description(package: str) -> None:
    """Whatever it imported would be imported with any of its modules."""
    body = ast.parse((ENGINES / package / "__init__.py").read_text()).body

    assert [ast.Expr] == [type(node) for node in body]


def test_a_written_engine_has_the_same_anatomy() -> None:
    assert {*NAMES} == lines_of(TEMPLATE).keys()
    assert set() == ported(TEMPLATE)


ABOVE: Final = re.compile(r"omlx|ollama|vllm.?mlx|rapid|lm.?studio|mlx.engine", re.IGNORECASE)
"""Servers that are built on mlx-lm's caches."""


def test_mlx_lm_names_no_server_that_is_built_on_it() -> None:
    """They are packages of their own: its server asks its store, and knows no other's."""
    naming = [
        f"{path.relative_to(ENGINES)}: {line.strip()}"
        for path in sorted((ENGINES / "mlx_lm").rglob("*.py"))
        for line in path.read_text().splitlines()
        if ABOVE.search(line)
    ]

    assert [] == naming


SEARCHES: Final = ("testing", "prove", "play/findings.py")
"""What reads `Search`: the search, the proof of what it found, and the laws of both."""


def test_what_only_searches_read_is_no_field_of_a_family() -> None:
    names = {field.name for field in fields(Family)}
    told = "".join(
        path.read_text()
        for path in PROGRAM.rglob("*.py")
        if not path.relative_to(PROGRAM).as_posix().startswith(SEARCHES)
    )

    assert set() == names & {field.name for field in fields(Search)}
    assert set() == {name for name in names if not re.search(rf"\.{name}\b", told)}


def test_a_search_is_imported_when_it_begins() -> None:
    """`cachesim run` imports none: a family names its search as a text.

    The search of a server may begin with that of the engine below it.
    """
    importing = re.compile(
        r"^\s*(from|import) cachesim\.engines\.\w+(\.search| import search)\b", re.MULTILINE
    )

    assert [] == [
        path.relative_to(PROGRAM).as_posix()
        for path in PROGRAM.rglob("*.py")
        if "search" not in {path.stem, path.parent.name} and importing.search(path.read_text())
    ]


def table() -> str:
    """Lines of each name, by engine: `400/` is a folder, and a number in brackets a name's lack."""
    rows = [("", *NAMES, "upstream's")]
    for package in packages():
        folder, has = ENGINES / package, lines_of(ENGINES / package)
        cells = (
            f"{has[name]}{'/' * (folder / name).is_dir()}" if name in has else "-" for name in NAMES
        )
        rows.append((package, *cells, f"{len(ported(folder))} files"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    text += [
        f"- {package} without {name}: {why}"
        for package, names in WITHOUT.items()
        for name, why in names.items()
    ]
    return "\n".join(text)


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
