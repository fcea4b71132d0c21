"""`llama-server` of a release whose wheel has the server and no binary: the same flags.

    python llama_server.py WORKER.py FLAGS...

The wheel's library reads the flags with its own parser (`parsed` in WORKER.py).
"""

import importlib.util
import os
import signal
import sys

QUIET = {"warmup": False, "fit_params": False, "n_gpu_layers": 0, "n_threads_http": 4}
"""Settings of a machine without a GPU, of which no cache knows."""


def main() -> None:
    """Serve until a signal comes."""
    worker, *flags = sys.argv[1:]
    named = importlib.util.spec_from_file_location("worker", worker)
    if named is None or named.loader is None:
        sys.exit(f"llama-server: no {worker}")
    module = importlib.util.module_from_spec(named)
    named.loader.exec_module(module)
    wheel = importlib.import_module(module.WHEEL)
    parameters = module.parsed(wheel, flags)
    if parameters is None:
        sys.exit("llama-server: wrong flags")
    for name, value in QUIET.items():
        if hasattr(parameters, name):
            setattr(parameters, name, value)
    for threads in (parameters.cpuparams, parameters.cpuparams_batch):
        threads.n_threads = 1
    server = wheel.Server(parameters)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)  # the wheel waits for its main loop


if __name__ == "__main__":
    main()
