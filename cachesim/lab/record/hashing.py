"""Text as a chain of keyed hashes: common prefixes are visible, the text is not.

    text      [ 64 characters ][ 64 characters ][ the rest ]
    hashes     h1 = H(key, "", 1st)  h2 = H(key, h1, 2nd)  h3 = H(key, h2, rest)

The key is drawn when the recorder starts, is never written, and goes with it: nobody can try out
texts against the hashes afterwards. Each hash depends on all text of its part before it.
"""

import hashlib
from dataclasses import replace
from typing import Final

from cachesim.lab.logs.segments import BLOCK, Segment

DIGEST: Final = 6
"""Bytes of a hash, large enough against collisions of a million million texts."""

MOST_KNOWN: Final = 64 << 20
"""Most characters of parts with cached hashes, as clients repeat them."""


class Hasher:
    """Hasher of prompt parts with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._known: dict[str, tuple[str, ...]] = {}
        self._size = 0

    def hashed(self, segment: Segment) -> Segment:
        """A part of a prompt without its text."""
        text = segment.text
        known = self._known.get(text)
        if known is None:
            if self._size + len(text) > MOST_KNOWN:
                self._known.clear()
                self._size = 0
            known = self._known[text] = self._computed(text)
            self._size += len(text)
        return replace(segment, text="", hashes=known, characters=len(text))

    def name(self, text: str) -> str:
        """Pseudonym of a name, constant for one key."""
        return self._computed(text)[-1] if text else ""

    def _computed(self, text: str) -> tuple[str, ...]:
        found = []
        before = b""
        for at in range(0, len(text), BLOCK):
            block = text[at : at + BLOCK].encode("utf-8", "surrogatepass")
            before = hashlib.blake2b(before + block, key=self._key, digest_size=DIGEST).digest()
            found.append(before.hex())
        return tuple(found)
