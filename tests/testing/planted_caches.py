"""Prompt caches of three kinds, each right as it is, and with a bug for each method it overrides.

blocks   whole blocks of 8 tokens under a chain of keys, in a pool of a few slots
trie     conversations in a tree of tokens, cut back to where a prompt leaves them
store    states that cannot be cut, under exactly their tokens
"""

import copy
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any

from cachesim.testing import State
from cachesim.units import Tokens

UNIT = 8

Content = list[int]


class Blocks:
    """A pool of blocks; a block's key is that of the block before it, and its own tokens."""

    slots = 6

    def __init__(self) -> None:
        self.pool: list[Content] = [[] for _ in range(self.slots)]
        self.table: OrderedDict[Hashable, int] = OrderedDict()  # key -> slot, the oldest first
        self.taken = 0

    def key(self, parent: Hashable, tokens: Tokens, salt: int) -> Hashable:
        return parent, tokens, salt

    def chain(self, tokens: Tokens, salt: int) -> Iterator[tuple[Hashable, slice]]:
        parent: Hashable = None
        for start in range(0, len(tokens) - UNIT + 1, UNIT):
            place = slice(start, start + UNIT)
            parent = self.key(parent, tokens[place], salt)
            yield parent, place

    def insert(self, tokens: Tokens, state: State, *, salt: int = 0) -> None:
        for key, place in self.chain(tokens, salt):
            if key in self.table:
                self.table.move_to_end(key)
            else:
                self.put(key, list(state.tokens[place]))

    def put(self, key: Hashable, content: Content) -> None:
        if self.taken < self.slots:
            slot, self.taken = self.taken, self.taken + 1
        else:
            slot = self.evict()
        self.pool[slot] = content
        self.table[key] = slot

    def evict(self) -> int:
        return self.table.popitem(last=False)[1]

    def usable(self, tokens: Tokens) -> Tokens:
        return tokens[:-1]

    def fetch(self, tokens: Tokens, *, salt: int = 0) -> tuple[int, State] | None:
        found: list[Content] = []
        for key, _ in self.chain(self.usable(tokens), salt):
            slot = self.table.get(key)
            if slot is None:
                break
            self.table.move_to_end(key)
            found.append(self.pool[slot])
        return self.answer(found, tokens)

    def answer(self, found: list[Content], tokens: Tokens) -> tuple[int, State] | None:
        del tokens
        folded = [token for content in found for token in content]
        return (len(folded), State(folded)) if folded else None


class LastToken(Blocks):
    """A key is the last token of a block."""

    def key(self, parent: Hashable, tokens: Tokens, salt: int) -> Hashable:
        return len(str(parent)), tokens[-1], salt


class OnlyLastToken(Blocks):
    """A key is the last token of the prompt so far."""

    def key(self, parent: Hashable, tokens: Tokens, salt: int) -> Hashable:
        del parent, salt
        return tokens[-1]


class LastTwoTokens(Blocks):
    """A key is the last two tokens."""

    def key(self, parent: Hashable, tokens: Tokens, salt: int) -> Hashable:
        return parent, tokens[-2:], salt


class FirstToken(Blocks):
    """A key is the first token."""

    def key(self, parent: Hashable, tokens: Tokens, salt: int) -> Hashable:
        return parent, tokens[0], salt


class NoParent(Blocks):
    """A block's key does not name the block before it."""

    def key(self, parent: Hashable, tokens: Tokens, salt: int) -> Hashable:
        del parent
        return tokens, salt


class OneParent(Blocks):
    """A block's key names the tokens of the block before it, and nothing before that."""

    def key(self, parent: Hashable, tokens: Tokens, salt: int) -> Hashable:
        before = parent[1] if isinstance(parent, tuple) else None
        return before, tokens, salt


class NoSalt(Blocks):
    """A key does not name the salt."""

    def key(self, parent: Hashable, tokens: Tokens, salt: int) -> Hashable:
        del salt
        return parent, tokens


class SaltAfterTheFirst(Blocks):
    """Only blocks after the first have the salt in their key."""

    def key(self, parent: Hashable, tokens: Tokens, salt: int) -> Hashable:
        return parent, tokens, salt if parent is not None else 0


class SumOfTokens(Blocks):
    """A weak hash: the order of a block's tokens does not count."""

    def key(self, parent: Hashable, tokens: Tokens, salt: int) -> Hashable:
        return parent, sum(tokens), salt


class PaddedBlock(Blocks):
    """The rest of a prompt is padded with zeros to a block, whose key ignores its length."""

    def chain(self, tokens: Tokens, salt: int) -> Iterator[tuple[Hashable, slice]]:
        rest = -len(tokens) % UNIT
        yield from super().chain((*tokens, *(0,) * rest), salt)  # type: ignore[arg-type]


class PartialBlock(Blocks):
    """The rest of a prompt is stored as if it were a block, and reused for one that begins so."""

    def insert(self, tokens: Tokens, state: State, *, salt: int = 0) -> None:
        super().insert(tokens, state, salt=salt)
        whole = len(tokens) // UNIT * UNIT
        if len(tokens) - whole > 2:
            keys = [key for key, _ in self.chain(tokens[:whole], salt)]
            key = "rest", keys[-1] if keys else None, tokens[whole : whole + 2]
            if key not in self.table:
                self.put(key, list(state.tokens[whole:]))

    def fetch(self, tokens: Tokens, *, salt: int = 0) -> tuple[int, State] | None:
        found = super().fetch(tokens, salt=salt) or (0, State())
        covered, state = found
        keys = [key for key, _ in self.chain(tokens[:covered], salt)]
        slot = self.table.get(("rest", keys[-1] if keys else None, tokens[covered : covered + 2]))
        if slot is not None and covered + len(self.pool[slot]) < len(tokens):
            state.feed(self.pool[slot])
        return (len(state.tokens), state) if state.tokens else None


class OneBlockMore(Blocks):
    """A match counts one block more than was found."""

    def answer(self, found: list[Content], tokens: Tokens) -> tuple[int, State] | None:
        answer = super().answer(found, tokens)
        if answer is None or answer[0] + UNIT >= len(tokens):
            return answer
        return answer[0] + UNIT, answer[1]


class OneBlockBeyond(Blocks):
    """The table of blocks is walked to the end of the prompt, gaps and all."""

    def fetch(self, tokens: Tokens, *, salt: int = 0) -> tuple[int, State] | None:
        slots = [self.table.get(key) for key, _ in self.chain(self.usable(tokens), salt)]
        return self.answer([self.pool[slot] for slot in slots if slot is not None], tokens)


class WholePrompt(Blocks):
    """A prompt that ends at a block's edge is covered whole."""

    def usable(self, tokens: Tokens) -> Tokens:
        return tokens


class EvictedStays(Blocks):
    """A slot is given to another block, and its old key stays in the table."""

    slots = 3

    def evict(self) -> int:
        key = next(iter(self.table))
        self.table.move_to_end(key)
        return self.table[key]


class SharedContent(Blocks):
    """What is handed out of a single block is the block itself."""

    def answer(self, found: list[Content], tokens: Tokens) -> tuple[int, State] | None:
        if len(found) == 1:
            return UNIT, State(found[0])
        return super().answer(found, tokens)


class Trie:
    """Conversations, the nearest of which is copied and cut back; the least recent one goes."""

    capacity = 4

    def __init__(self) -> None:
        self.entries: OrderedDict[Tokens, State] = OrderedDict()

    @staticmethod
    def shared(one: Tokens, other: Tokens) -> int:
        pairs = enumerate(zip(one, other, strict=False))
        return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))

    def insert(self, tokens: Tokens, state: State) -> None:
        self.entries.pop(tokens, None)
        self.entries[tokens] = state
        while len(self.entries) > self.capacity:
            self.entries.popitem(last=False)

    def fetch(self, tokens: Tokens) -> tuple[int, State] | None:
        held = max(self.entries, key=lambda each: self.shared(each, tokens), default=())
        covered = min(self.shared(held, tokens), len(tokens) - 1)
        return self.cut(held, covered) if covered > 0 else None

    def cut(self, held: Tokens, covered: int) -> tuple[int, State] | None:
        state = copy.deepcopy(self.entries[held])
        if len(held) > covered and not state.trim(len(held) - covered):
            return None
        return covered, state


class ShortestPrefix(Trie):
    """Of the conversations that a prompt begins with, the shortest is used."""

    def fetch(self, tokens: Tokens) -> tuple[int, State] | None:
        begun = [each for each in self.entries if tokens[: len(each)] == each != tokens]
        held = min(begun, key=len, default=())
        return self.cut(held, len(held)) if held else super().fetch(tokens)


class TrimOneLess(Trie):
    """One token too few is taken back."""

    def cut(self, held: Tokens, covered: int) -> tuple[int, State] | None:
        state = copy.deepcopy(self.entries[held])
        state.trim(max(0, len(held) - covered - 1))
        return covered, state


class TrimWholeBlocks(Trie):
    """Whole blocks are taken back, the rest of one is not."""

    def cut(self, held: Tokens, covered: int) -> tuple[int, State] | None:
        state = copy.deepcopy(self.entries[held])
        state.trim((len(held) - covered) // UNIT * UNIT)
        return covered, state


class PastItsLength(Trie):
    """A state is used for all that the prompt shares with a longer key."""

    def insert(self, tokens: Tokens, state: State) -> None:
        fed = copy.deepcopy(state)
        fed.trim(1)  # the last token of a reply was sampled and not fed
        super().insert(tokens, fed)

    def cut(self, held: Tokens, covered: int) -> tuple[int, State] | None:
        state = copy.deepcopy(self.entries[held])
        state.trim(max(0, len(state.tokens) - covered))
        return covered, state


class ShallowCopy(Trie):
    """The list of a state that is handed out is the stored one."""

    def cut(self, held: Tokens, covered: int) -> tuple[int, State] | None:
        state = copy.copy(self.entries[held])
        return (covered, state) if state.trim(len(held) - covered) else None


class StaleState(Trie):
    """A longer turn of a conversation takes over the key, and the state stays."""

    def insert(self, tokens: Tokens, state: State) -> None:
        before = next((each for each in self.entries if each == tokens[: len(each)]), None)
        kept = state if before is None else self.entries.pop(before)
        super().insert(tokens, kept)


class ByConversation(Trie):
    """Prompts with the same first block are one conversation, of which the first state is kept."""

    def insert(self, tokens: Tokens, state: State) -> None:
        for each in [each for each in self.entries if each[:UNIT] == tokens[:UNIT]]:
            state = self.entries.pop(each)
        super().insert(tokens, state)


class Store:
    """States under exactly their tokens; the longest that a prompt goes on from is copied."""

    capacity = 6

    def __init__(self) -> None:
        self.states: OrderedDict[Hashable, tuple[Tokens, State]] = OrderedDict()

    def key(self, tokens: Tokens) -> Hashable:
        return tokens

    def insert(self, tokens: Tokens, state: State) -> None:
        self.states.pop(self.key(tokens), None)
        self.states[self.key(tokens)] = tokens, state
        while len(self.states) > self.capacity:
            self.states.popitem(last=False)

    def fetch(self, tokens: Tokens) -> tuple[int, State] | None:
        for covered in range(len(tokens) - 1, 0, -1):
            found = self.states.get(self.key(tokens[:covered]))
            if found is not None:
                return covered, copy.deepcopy(found[1])
        return None


class Bucket(Store):
    """A hash of a few bits, and nothing is compared."""

    def key(self, tokens: Tokens) -> Hashable:
        return len(tokens), sum(at * token for at, token in enumerate(tokens, 1)) % 5


class NoLength(Store):
    """A hash that ignores the length: zeros at the end do not count."""

    def key(self, tokens: Tokens) -> Hashable:
        return int("1" + "".join(str(token) for token in tokens).rstrip("0"))


class EndsAlike(Store):
    """A key is the length and the last two tokens."""

    def key(self, tokens: Tokens) -> Hashable:
        return len(tokens), tokens[-2:]


class NotCut(Store):
    """A state beyond the prompt is cut back, and nobody looks whether that worked."""

    def fetch(self, tokens: Tokens) -> tuple[int, State] | None:
        for held, state in self.states.values():
            if len(held) >= len(tokens) > 1 and held[: len(tokens)] == tokens:
                copied = copy.deepcopy(state)
                copied.trim(len(held) - len(tokens) + 1)
                return len(tokens) - 1, copied
        return super().fetch(tokens)


class CountedTwice(Store):
    """What is replaced is taken off the size twice."""

    nbytes = 0

    def insert(self, tokens: Tokens, state: State) -> None:
        self.nbytes += len(tokens)
        if self.key(tokens) in self.states:
            self.nbytes -= 2 * len(tokens) + 1
        super().insert(tokens, state)


class Once(Store):
    """What is handed out is taken out; right, for a request that goes on from it brings it back."""

    def fetch(self, tokens: Tokens) -> tuple[int, State] | None:
        found = super().fetch(tokens)
        if found is not None:
            del self.states[self.key(tokens[: found[0]])]
        return found


class NeverFound(Store):
    """Everything is stored, and nothing is ever handed out."""

    def fetch(self, tokens: Tokens) -> tuple[int, State] | None:
        del tokens
        return None


PLANTED: dict[Any, tuple[str, ...]] = {
    OnlyLastToken: ("true states",),
    LastToken: ("true states",),
    LastTwoTokens: ("true states",),
    FirstToken: ("true states",),
    NoParent: ("true states",),
    OneParent: ("true states",),
    SumOfTokens: ("true states",),
    PaddedBlock: ("true states", "one token left"),
    PartialBlock: ("true states",),
    OneBlockMore: ("true states",),
    OneBlockBeyond: ("true states",),
    WholePrompt: ("one token left",),
    EvictedStays: ("true states",),
    SharedContent: ("no aliasing", "true states"),
    ShortestPrefix: ("newest found",),
    TrimOneLess: ("true states",),
    TrimWholeBlocks: ("true states",),
    PastItsLength: ("true states",),
    ShallowCopy: ("no aliasing",),
    StaleState: ("true states",),
    ByConversation: ("true states",),
    Bucket: ("true states",),
    NoLength: ("true states",),
    EndsAlike: ("true states",),
    CountedTwice: ("sizes add up",),
}
"""Wrong for states that can be cut: the laws that may be broken first."""

PLANTED_UNDER_SALTS: dict[Any, str] = {NoSalt: "salts apart", SaltAfterTheFirst: "salts apart"}
PLANTED_FOR_STATES: dict[Any, str] = {NotCut: "true states", TrimOneLess: "true states"}
