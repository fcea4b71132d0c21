"""mlx_lm.server with a toy model: run by the Python of a release's environment.

    python mlx_server.py ORDER --port 8080 [FLAG ...]

ORDER is JSON as `cachesim.prove.mlx_lm.families` writes it; the release's own main serves.
"""

import importlib
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
VOCABULARY = 72


def main() -> None:
    sys.path.append(str(ROOT))
    order, *flags = sys.argv[1:]
    folder = Path(tempfile.mkdtemp())
    models = importlib.import_module("cachesim.prove.mlx_lm.server_models")
    models.write_model(folder, json.loads(Path(order).read_text()))
    models.write_tokenizer(folder, "chatml", VOCABULARY)
    server = importlib.import_module("mlx_lm.server")
    words = ["--model", str(folder), "--log-level", "WARNING", *flags]
    sys.argv = ["mlx_lm.server", *words]
    server.main()


if __name__ == "__main__":
    main()
