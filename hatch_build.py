"""What a built package says of itself: its long description and its addresses, from one setting."""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

FENCE = "```text\n"
START = f"{FENCE}make run\n"
TARGET = r"(?!https?:|#)([^)]*)"


def long_description(readme: str, address: str, version: str) -> str:
    """The README for an index, which resolves no path of the tree.

    With an address, pictures and links point at the tag of the version, and the start is a clone;
    without one, a picture is left out and a link is its text.
    """
    picture, link = rf"!\[([^\]]*)\]\({TARGET}\)", rf"(?<!!)\[([^\]]+)\]\({TARGET}\)"
    if not address:
        return re.sub(link, r"\1", re.sub(picture + r"\n+", "", readme))
    readme = readme.replace(
        START, f"{FENCE}git clone {address}\ncd {Path(address).name}\nmake run\n", 1
    )
    readme = re.sub(picture, rf"![\1]({address}/raw/v{version}/\2)", readme)
    return re.sub(link, rf"[\1]({address}/blob/v{version}/\2)", readme)


class Published(MetadataHookInterface):
    """`address` of pyproject.toml, or CACHESIM_ADDRESS, which the release workflow sets."""

    def update(self, metadata: dict[str, object]) -> None:
        """Fill in the fields that pyproject.toml declares dynamic."""
        address = os.environ.get("CACHESIM_ADDRESS", self.config["address"]).rstrip("/")
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = long_description(readme, address, str(metadata["version"]))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = {
            name: address + path
            for name, path in {
                "Source": "",
                "Issues": "/issues",
                "Changelog": "/blob/main/CHANGELOG.md",
            }.items()
            if address
        }
