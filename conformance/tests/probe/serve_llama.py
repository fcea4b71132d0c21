"""A llama-server of a wheel, for `--start`: run by the Python of the environment that holds it.

python serve_llama.py MODEL PORT [PARAMETER=JSON ...]: serves until it is ended.
"""

import importlib
import json
import signal
import sys
import tempfile
import threading

DEFAULTS = {
    "n_ctx": 4096,
    "warmup": False,
    "fit_params": False,
    "n_gpu_layers": 0,
    "n_threads_http": 8,
    "cpuparams.n_threads": 1,
    "cpuparams_batch.n_threads": 1,
    "verbosity": -1,
}


def main() -> None:
    wheel = importlib.import_module("xllamacpp")
    model, port, *flags = sys.argv[1:]
    values = DEFAULTS | {"model.path": model, "port": int(port)}
    values["slot_save_path"] = f"{tempfile.mkdtemp()}/"
    values |= {name: json.loads(value) for name, value in (flag.split("=", 1) for flag in flags)}
    parameters = wheel.CommonParams()
    for name, value in values.items():
        *path, last = name.split(".")
        owner = parameters
        for part in path:
            owner = getattr(owner, part)
        if isinstance(value, str) and value.startswith("enum:"):
            kind, _, member = value.removeprefix("enum:").partition(".")
            value = getattr(getattr(wheel, kind), member)  # noqa: PLW2901 - the wheel's own
        setattr(owner, last, value)
    server = wheel.Server(parameters)
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    done.wait()
    del server


if __name__ == "__main__":
    main()
