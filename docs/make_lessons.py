"""Packs the kit of the lessons for the browser: `python docs/make_lessons.py docs/_build`.

The pages of the lessons run their code in the playground's worker, which has the other packages.
"""

import sys
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def main(site: Path) -> None:
    """Write `lessons.zip`: the modules of the lessons, and the logs that they read."""
    folder = ROOT / "cachesim" / "learn"
    with zipfile.ZipFile(site / "lessons.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(folder.glob("*.py")):
            packed.write(path, path.relative_to(ROOT))
        for path in sorted((ROOT / "docs" / "examples").glob("*.log")):
            packed.write(path, folder.relative_to(ROOT) / path.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
