"""`python -m tests.upstream_mlx_lm [RELEASE ...]`: mlx-lm's own cache tests on cachesim's port.

The test files come with the source archive of the release, which is downloaded when this runs and
never committed. They run unchanged against a stand-in for `mlx.core` (NumPy) and for `mlx_lm` (the
port under the release's rules). A test that cannot run has a reason here; any other must pass.
Upstream's tests of generation are left out: each begins by loading a model from a hub.
"""

import subprocess
import sys
import tarfile
import types
import unittest
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final

import numpy as np

from cachesim.engines.mlx_lm.caches import prompt_cache as caches
from cachesim.engines.mlx_lm.caches.files import load_prompt_cache, save_prompt_cache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache
from cachesim.engines.mlx_lm.caches.masks import create_attention_mask, create_causal_mask
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.profiles import MlxRules
from cachesim.engines.mlx_lm.store.lru_prompt_cache import UNLIMITED, LRUPromptCache
from cachesim.real.environment import environments_folder

RELEASES: Final = ("0.30.7", "0.31.1", "0.31.2", "0.31.3", "0.32.0", "0.32.2")
FILES: Final = {"test_prompt_cache": "TestPromptCache", "test_server": "TestLRUPromptCache"}
"""Of the server's tests only those of the store."""

WEIGHTS: Final = "runs a model whose weights come from a hub"
REASONS: Final = {
    "test_cache_with_generate": WEIGHTS,
    "test_trim_cache_with_generate": WEIGHTS,
    "test_cache_to_quantized": WEIGHTS,
    "test_save_load_quantized_cache": "takes packed arrays apart; the port keeps their numbers",
    "test_arrays_cache_advance": "measures a computation graph, which NumPy has none of",
}
"""Tests that cannot run here, and why."""

CLASSES: Final = (
    "ArraysCache",
    "BatchKVCache",
    "BatchRotatingKVCache",
    "CacheList",
    "ChunkedKVCache",
    "KVCache",
    "QuantizedKVCache",
    "RotatingKVCache",
)


class Made:
    """One cache class as the release's tests call it: without rules."""

    def __init__(self, kind: type[LayerCache], rules: MlxRules) -> None:
        self._kind, self._rules = kind, rules.caches

    def __call__(self, *args: Any, **more: Any) -> LayerCache:
        """The constructor."""
        return self._kind(self._rules, *args, **more)

    def __getattr__(self, name: str) -> Any:
        """Class methods, such as `merge`."""
        return getattr(self._kind, name)

    def __instancecheck__(self, other: object) -> bool:
        """`isinstance` asks for the port's class."""
        return isinstance(other, self._kind)


class Random(types.SimpleNamespace):
    """`mx.random`, as far as the tests go."""

    drawn = np.random.default_rng(0)

    def uniform(self, *_: object, shape: Sequence[int] = (), **__: object) -> Any:
        """Numbers in [0, 1)."""
        return self.drawn.random(shape)

    def normal(self, *_: object, shape: Sequence[int] = (), **__: object) -> Any:
        """Bell-shaped numbers."""
        return self.drawn.normal(size=shape)


def core() -> types.ModuleType:
    """`mlx.core`: NumPy under its names."""
    module = types.ModuleType("mlx.core")
    names = "all allclose any arange array array_equal bool_ concatenate float16 float32 int32"
    for name in f"{names} ones uint32 zeros".split():
        setattr(module, name, getattr(np, name))
    module.__dict__.update(random=Random(), eval=lambda *_: None, bfloat16=np.float16)
    return module


def attention_mask(
    h: Any,
    cache: Any = None,
    window_size: int | None = None,
    return_array: bool = False,
) -> Any:
    """`mlx_lm.models.base.create_attention_mask`: the cache's mask, or that of no cache."""
    columns = h.shape[1]
    if cache is not None:
        return cache.make_mask(columns, window_size=window_size, return_array=return_array)
    if columns > 1 and (window_size is None or columns <= window_size) and not return_array:
        return "causal"
    if columns == 1:
        return None
    return create_attention_mask(columns, 0, window_size=window_size, return_array=return_array)


def causal_mask(n: int, offset: int = 0, window_size: int | None = None, **more: Any) -> Any:
    """`mlx_lm.models.base.create_causal_mask`."""
    return create_causal_mask(n, offset, window_size=window_size, **more)


def modules(rules: MlxRules) -> Iterator[types.ModuleType]:
    """Everything that the test files import of `mlx` and `mlx_lm`."""

    def save(file: str, cache: list[LayerCache], metadata: dict[str, str] | None = None) -> None:
        Path(file).write_bytes(save_prompt_cache(cache, metadata, rules=rules.caches))

    def load(file: str, return_metadata: bool = False) -> Any:
        found, metadata = load_prompt_cache(Path(file).read_bytes(), rules=rules.caches)
        return (found, metadata) if return_metadata else found

    def store(max_size: int = 10, max_bytes: int = UNLIMITED) -> LRUPromptCache:
        return Store(rules.store, max_size, max_bytes)

    module = types.ModuleType("mlx_lm.models.cache")
    for name in CLASSES:
        module.__dict__[name] = Made(getattr(caches, name), rules)
    module.__dict__.update(
        MambaCache=lambda: Made(caches.ArraysCache, rules)(2),
        LRUPromptCache=store,
        save_prompt_cache=save,
        load_prompt_cache=load,
        make_prompt_cache=lambda _model, **_: [],
        trim_prompt_cache=caches.trim_prompt_cache,
        can_trim_prompt_cache=caches.can_trim_prompt_cache,
    )
    yield core()
    yield module
    base = types.ModuleType("mlx_lm.models.base")
    base.__dict__.update(create_attention_mask=attention_mask, create_causal_mask=causal_mask)
    yield base
    server = Anything("mlx_lm.server")
    server.__dict__["LRUPromptCache"] = store
    yield server


class Anything(types.ModuleType):
    """A module of which no cache test uses more than a name."""

    __path__: list[str] = []  # noqa: RUF012 - that makes it a package

    def __getattr__(self, name: str) -> Any:
        """`load` gives no model; other names are there to be imported."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: (None, None)


class Nowhere(MetaPathFinder, Loader):
    """Finds a module of names for whatever else the test files import of these packages."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Everything of upstream's, and the client that tests of the HTTP server use."""
        ours = name.partition(".")[0] in {"mlx", "mlx_lm", "requests"}
        return ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """Names, and nothing behind them."""
        return Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


class Store(LRUPromptCache):
    """The store as its tests call it; checkpoints were a flag before they were a type."""

    @property
    def _lru(self) -> list[Any]:
        """The keys that the tests of older releases count."""
        return [each for queue in self.order.queues.values() for each in queue]

    def insert_cache(
        self,
        model: Any,
        tokens: Any,
        prompt_cache: Any,
        **more: Any,
    ) -> None:
        """Insert under upstream's argument names."""
        if more.pop("checkpoint", False):
            more["cache_type"] = "user"
        super().insert_cache(model, tokens, prompt_cache, **more)


@dataclass(slots=True)
class Outcome:
    """What became of a release's tests."""

    passed: int = 0
    excused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def archive(release: str) -> Path:
    """The folder of a release's source archive, downloaded where it is not there yet."""
    folder = environments_folder() / f"mlx-{release}-source"
    found = next(folder.glob("mlx_lm-*/tests"), None)
    if found is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    wanted = ["--no-deps", "--no-binary", "mlx-lm", f"mlx-lm=={release}", "--dest", str(folder)]
    subprocess.run([*pip, *wanted], check=True, capture_output=True, timeout=600)  # noqa: S603
    with tarfile.open(next(folder.glob("*.tar.gz"))) as source:
        source.extractall(folder, filter="data")
    return next(folder.glob("mlx_lm-*/tests"))


def play(release: str) -> Outcome:
    """Run the cache tests of a release; stand-ins live in this process alone."""
    for kind in {getattr(caches, name) for name in CLASSES}:
        kind.state = property(kind.state.fget, lambda self, v: self.put_state(v, self.meta_state))
    sys.meta_path.insert(0, Nowhere())
    for module in modules(FAMILY.release(release).rules):
        sys.modules[module.__name__] = module
    package = Anything("mlx")
    package.__dict__["core"] = sys.modules["mlx.core"]
    sys.modules["mlx"] = package
    outcome = Outcome()
    for file, name in FILES.items():
        source = (archive(release) / f"{file}.py").read_text()
        module = types.ModuleType(file)
        exec(compile(source, f"{file}.py", "exec"), module.__dict__)  # noqa: S102 - upstream's tests
        case = getattr(module, name, None)
        for test in unittest.defaultTestLoader.getTestCaseNames(case) if case else ():
            if test in REASONS:
                outcome.excused[test] = REASONS[test]
                continue
            result = unittest.TestResult()
            unittest.TestSuite([case(test)]).run(result)
            wrong = [*result.failures, *result.errors]
            if wrong:
                outcome.failed[test] = wrong[0][1]
            else:
                outcome.passed += 1
    return outcome


def main() -> int:
    """Each release in a process of its own; 1 if a test fails that has no reason."""
    releases = sys.argv[1:] or RELEASES
    if len(releases) > 1:
        own = [sys.executable, "-m", "tests.upstream_mlx_lm"]
        runs = [subprocess.run([*own, one], check=False) for one in releases]  # noqa: S603
        return max(run.returncode for run in runs)
    try:
        outcome = play(releases[0])
    except (OSError, subprocess.SubprocessError) as error:
        print(f"SKIPPED, NO TEST OF mlx-lm {releases[0]} WAS RUN: {error}")  # noqa: T201
        return 0
    verdict = "FAILED" if outcome.failed else "ok    "
    print(f"{verdict} mlx-lm {releases[0]}: {outcome.passed} of upstream's cache tests pass")  # noqa: T201
    for test, why in {**outcome.excused, **outcome.failed}.items():
        print(f"       {test}: {why.strip().splitlines()[-1]}")  # noqa: T201
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
