"""Images in a prompt: their placeholder tokens, and their part in the engines' keys.

A toy network has no image encoder: an image is a run of drawn tokens, and its embeddings are
theirs. No engine compares these tokens. Each has a key of its own for them, as upstream does:

    prompt      [ s s s s ][ i i i i i ][ q q ]
    vllm        the same placeholder five times, and (hash, offset in the block) in the block's key
    sglang      one id of the image's hash, five times
    llama.cpp   no token five times, and a media chunk with an id
    mlx-lm      one negative id of the hash of the image's address, five times
    vllm-mlx    one placeholder, five times, and no lookup; or a hash of text and images together
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cachesim.units import Count, Pos


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a prompt; its name serves as hash."""

    name: str
    start: Pos
    count: Count

    @property
    def end(self) -> int:
        """Index after its last token."""
        return self.start + self.count


def within(images: Sequence[Image], start: int, end: int) -> list[Image]:
    """The images with a token in `[start, end)`."""
    return [image for image in images if image.start < end and start < image.end]
