"""Account of the tokens computed before, and of the causes for which fewer are reused."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from cachesim.engines.causes import Ledger
from cachesim.engines.sglang import vocabulary
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.tree import Match, Tree
from cachesim.engines.tokens import PrefixTree
from cachesim.units import Count, Integers

# Why not more was reused: the rule that lowered the number, part by part.
#
# computed before  -last token->  -pairs->  -whole pages->  -never kept->  -evicted->
#                  -not fetched->  -window->  -state->  -not loaded back->

NOTHING: Final = "nothing"

Ends: TypeAlias = dict[int, set[tuple[Hashable, bytes]]]
"""By their length: the sequences after which a state was saved."""


class States:
    """Positions at which states were saved, evicted ones too."""

    def __init__(self) -> None:
        self._ends: Ends = {}
        self._old: Ends = {}
        self._learned = 0
        self._most: int | None = None

    def remember(self, most: int) -> None:
        """Limit the record to the last states."""
        self._most = most

    def learn(self, tokens: Integers, extra: Hashable) -> None:
        """Record a state after these tokens."""
        if self._most is not None and self._learned >= self._most:
            self._old, self._ends, self._learned = self._ends, {}, 0
        self._ends.setdefault(len(tokens), set()).add((extra, tokens.tobytes()))
        self._learned += 1

    def deepest(self, tokens: Integers, extra: Hashable, most: int) -> int:
        """The last position up to `most` at which a state was saved; 0 if none was."""
        return max(_deepest(ends, tokens, extra, most) for ends in (self._ends, self._old))


def _deepest(ends: Ends, tokens: Integers, extra: Hashable, most: int) -> int:
    for end in sorted(ends, reverse=True):
        if end <= most and (extra, tokens[:end].tobytes()) in ends[end]:
            return end
    return 0


@dataclass(slots=True)
class Account:
    """Tokens computed, tokens kept in the tree, and positions of saved states."""

    tree: Tree
    computed: PrefixTree = field(default_factory=PrefixTree)
    with_images: PrefixTree = field(default_factory=PrefixTree)  # the same, by their contents
    kept: PrefixTree = field(default_factory=PrefixTree)
    states: States = field(default_factory=States)

    def remember(self, most: int) -> None:
        """Limit the record to recent requests."""
        for books in (self.computed, self.with_images, self.kept, self.states):
            books.remember(most)

    def of(self, req: Req, match: Match) -> Ledger:
        """The steps from the tokens computed before down to the match, each with its cause."""
        prompt = req.tokens[: req.num_tokens]
        equal, by = self.computed.find(prompt, req.extra_key)
        held = max(match.usable, match.attention)
        if held > equal:  # computed so long ago that nobody remembers
            equal, by = held, match.node.request
        name, shape = f"request {by}" if equal else NOTHING, self.tree.shape
        stored = self.tree.stored(self.tree.key_of(prompt), req.extra_key)
        in_storage = stored + int(shape.bigrams) if stored else 0
        if in_storage > equal:  # it outlives the tree; 0.5.9's knows no extra keys
            equal, name = in_storage, "the storage"
        ledger = self._images(Ledger(Count(equal), name), req)
        known = req.num_tokens
        if equal > known - 1:
            ledger.apply(vocabulary.LAST_TOKEN, known - 1, prompt_tokens=known)
        found = match.usable  # that of a streaming session has neither pairs nor pages
        if shape.bigrams and ledger.usable:
            pairs = max(ledger.usable - 1, min(found, ledger.usable))
            ledger.apply(vocabulary.PAIRS, pairs, tokens=ledger.usable, pairs=pairs)
        page = shape.page
        whole = max(ledger.usable // page * page, min(found, ledger.usable))
        ledger.apply(vocabulary.WHOLE_PAGES, whole, page=page)
        self._attention(ledger, req, match, stored)
        if found < ledger.usable:
            self._parts(ledger, req, found, prompt)
        return ledger

    def learn(self, req: Req) -> None:
        """Add a request's computed tokens."""
        computed = max(req.committed, req.stripped)
        self.computed.learn(req.tokens[:computed], req.extra_key, req.id)
        if req.contents is not None:
            self.with_images.learn(req.read(0, computed), req.extra_key, req.id)

    def _images(self, ledger: Ledger, req: Req) -> Ledger:
        """A ledger from the contents in common, where ids of images change with other images."""
        if req.contents is None:
            return ledger
        equal, by = self.with_images.find(req.read(0, req.num_tokens), req.extra_key)
        if equal <= ledger.equal:
            return ledger
        whole = Ledger(Count(equal), f"request {by}")
        whole.apply(vocabulary.IMAGE_IDS, ledger.equal, found=ledger.equal)
        return whole

    def _attention(self, ledger: Ledger, req: Req, match: Match, stored: int) -> None:
        prompt = req.tokens[: req.num_tokens]
        kept, _ = self.kept.find(prompt, req.extra_key)
        kept = kept - int(self.tree.shape.bigrams) if kept else 0
        page = self.tree.shape.page
        kept = max(kept // page * page, match.attention, stored)
        if kept < ledger.usable:
            ledger.apply(vocabulary.NOT_KEPT, kept, kept=kept)
        wanted = ledger.usable
        if match.attention < wanted:
            found = match.attention
            left = max(min(stored, wanted), found)
            ledger.apply(vocabulary.ATTENTION_EVICTED, left, wanted=wanted, found=left)
            ledger.apply(vocabulary.NOT_FETCHED, found, stored=left, found=found)

    def _parts(self, ledger: Ledger, req: Req, found: int, prompt: Integers) -> None:
        tree, wanted = self.tree, ledger.usable
        if not tree.has_states:
            ledger.apply(
                vocabulary.WINDOW_GONE, found, wanted=wanted, found=found, window=tree.shape.window
            )
            return
        saved = self.states.deepest(prompt, req.extra_key, wanted)
        if saved > found and not tree.has_windows:
            ledger.apply(vocabulary.STATE_EVICTED, found, wanted=wanted, found=found, saved=saved)
        elif saved > found:
            ledger.apply(vocabulary.STATE_MISSING, saved, wanted=wanted, found=saved)
            ledger.apply(
                vocabulary.WINDOW_GONE, found, wanted=saved, found=found, window=tree.shape.window
            )
        else:
            ledger.apply(vocabulary.STATE_MISSING, found, wanted=wanted, found=found)
