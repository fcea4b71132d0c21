"""Log formats by release: wording, and the lines printed at default verbosity.

A log that names no build is known by its words. Releases between two styles look like one of them;
where their build is printed, their own rules are played.
"""

from dataclasses import dataclass
from typing import Final

from cachesim.lab.logs.observed import IK, LLAMA, MLX, PYTHON


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Words that occur together in one format only, and the lines printed by default."""

    release: str
    """The release to replay if the log names none."""
    engine: str = LLAMA
    words: tuple[tuple[str, ...], ...]
    prints_checkpoints: bool = True
    """Restores, creations and full re-processing, at the default verbosity."""
    prints_depth: bool = False
    """Common prefix and memory depth of each prompt that may continue."""

    @property
    def name(self) -> str:
        """Name of the engine in its log."""
        return self.release if self.engine == LLAMA else self.engine


JUNE: Final = Style(
    release="b9538",
    words=(
        ("context checkpoints enabled, max",),
        ("total state size", "(draft:"),
        (" cached n_tokens = ", "update_slots"),
    ),
)

MAY: Final = Style(
    release="b9093",
    words=(("slot.prompt.tokens.size()",), ("| n_tokens = ", "memory_seq_rm [")),
    prints_depth=True,
)

STYLES: Final[tuple[Style, ...]] = (
    Style(
        release="",
        engine=IK,
        words=(
            ("slot is processing task |",),
            ("kv cache rm [p0, end) |",),
            ("======== Cache: cache_size",),
            ("slot released |",),
        ),
    ),
    Style(
        release="",
        engine=MLX,
        words=(("Prompt processing progress: ",), ("Starting httpd at ",)),
        prints_checkpoints=False,
    ),
    Style(
        release="",
        engine=PYTHON,
        words=(("Llama.generate: ",), ("Llama._create_completion: ",), ("Model metadata: {'",)),
        prints_checkpoints=False,
    ),
    Style(
        release="b11549",
        words=(
            ("f_sim_best",),
            ("base f_keep = ", "f_sim ="),
            ("initializing, n_slots",),
            ("checking checkpoint with",),
        ),
        prints_checkpoints=False,
    ),
    JUNE,
    MAY,
)
"""Newest first: a log with lines of two formats is of the newer."""

BY_NAME: Final = {each.name: each for each in STYLES}


def style_in(text: str) -> str | None:
    """The name of the style of a line's words."""
    for style in STYLES:
        for words in style.words:
            if all(word in text for word in words):
                return style.name
    return None


def prints_checkpoints(names: set[str]) -> bool:
    """True if one of some styles prints restores, creations and full re-processing by default."""
    return any(BY_NAME[name].prints_checkpoints for name in names)


def prints_depth(names: set[str]) -> bool:
    """True if one of some styles prints the common prefix of each prompt that may continue."""
    return any(BY_NAME[name].prints_depth for name in names)
