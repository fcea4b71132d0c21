"""mlx_lm.server with a toy model, for `--start`: run by the Python of a release's environment.

python serve_mlx.py ORDER PORT [FLAG ...]: ORDER is JSON as `cachesim.prove.mlx_lm.families`
writes it; the release's own main serves, untouched.
"""

import importlib
import json
import sys
import tempfile
from pathlib import Path

PARTS = Path(__file__).parents[3] / "cachesim" / "prove" / "mlx_lm"
VOCABULARY = 72


def main() -> None:
    sys.path.append(str(PARTS))
    order, port, *flags = sys.argv[1:]
    folder = Path(tempfile.mkdtemp())
    importlib.import_module("server_models").write_model(
        folder, json.loads(Path(order).read_text())
    )
    importlib.import_module("server_models").write_tokenizer(folder, "chatml", VOCABULARY)
    server = importlib.import_module("mlx_lm.server")
    words = ["--model", str(folder), "--port", port, "--log-level", "WARNING", *flags]
    sys.argv = ["mlx_lm.server", *words]
    server.main()


if __name__ == "__main__":
    main()
