"""Slots, slot files and the prompt cache, with upstream's fields and lifetimes."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np

from cachesim.engines import slot_file
from cachesim.engines.base import Reply, Request, Ticket
from cachesim.engines.beginnings import Beginnings
from cachesim.engines.causes import Ledger
from cachesim.engines.chat import BYTES, FIRST_BYTE, ByteTokenizer
from cachesim.engines.ik_llama.context import Checkpoint, SequenceState
from cachesim.engines.ik_llama.options import MOST_CELLS
from cachesim.engines.slot_file import tokens_of, whole
from cachesim.engines.tokens import LONGEST, as_rope, get_common_prefix
from cachesim.errors import ContractError
from cachesim.units import Array, Count, Pos, SlotId, Token

SPACES: Final = frozenset(" \n\r")

NUMERALS: Final = frozenset("[0123456789]")
"""Characters in the text of an unknown token."""

TextOf = Callable[[Token], str]
"""The text of one token."""


class Match(NamedTuple):
    """Number of tokens in the common prefix, by the left and by the right list."""

    left: Count
    right: Count


def common_prefix(
    left: Sequence[Token], right: Sequence[Token], text_of: TextOf, *, exact: bool = False
) -> Match:
    """Match by token, then the tails by text (`server_tokens::get_common_prefix`)."""
    same = get_common_prefix(left, right)
    # One list contains the other: no text is compared.
    if same in (len(left), len(right)):
        return Match(same, same)
    # The first texts that differ have nothing in common, so neither mode matches more.
    if _apart(text_of(left[same]), text_of(right[same])):
        return Match(same, same)
    tails = list(map(text_of, left[same:])), list(map(text_of, right[same:]))
    reached = _exact_reach(*tails) if exact else _tolerant_reach(*tails)
    ends = [_ends(tail, limit, exact=exact) for tail, limit in zip(tails, reached, strict=True)]
    # A token counts if it is wholly inside the equal text, and ends where one of the other side
    # ends.
    shared = set(ends[0]) & set(ends[1])
    if not shared:
        return Match(same, same)
    best = max(shared)
    # Of several tokens without visible text the last one counts.
    return Match(
        Count(same + bisect_right(ends[0], best)), Count(same + bisect_right(ends[1], best))
    )


def _apart(one: str, other: str) -> bool:
    return not (one.startswith(other) or other.startswith(one) or SPACES & {*one, *other})


def _exact_reach(left: list[str], right: list[str]) -> tuple[int, int]:
    one, other = "".join(left), "".join(right)
    reach = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        reach += 1
    return reach, reach


def _tolerant_reach(left: list[str], right: list[str]) -> tuple[int, int]:
    """Number of matching characters on each side; white space may be missing or differ.

    Upstream: `get_common_prefix`.
    """
    one, other = "".join(left), "".join(right)
    i = j = 0
    while i < len(one) and j < len(other):
        a, b = one[i], other[j]
        if a == b or (a in SPACES and b in SPACES):
            i, j = i + 1, j + 1
        elif a in SPACES:
            i += 1
        elif b in SPACES:
            j += 1
        else:
            break
    return i, j


def _ends(tail: list[str], reach: int, *, exact: bool) -> list[int]:
    """Cumulative lengths of the tokens fully inside the first `reach` characters."""
    whole = list(accumulate(len(text) for text in tail))
    inside = bisect_right(whole, reach)
    if exact:
        return whole[:inside]
    return list(accumulate(sum(c not in SPACES for c in text) for text in tail[:inside]))


def discard(tokens: Sequence[Token], keep: int, count: int) -> Sequence[Token]:
    """The list without [keep, keep + count); unchanged if the range reaches its end.

    Follows `server_tokens::discard_n_tokens`.
    """
    # A range that reaches the end would leave nothing after it: upstream returns the list as it is.
    if count <= 0 or keep + count >= len(tokens):
        return tokens
    return [*tokens[:keep], *tokens[keep + count :]]


def similarity(left: Sequence[Token], right: Sequence[Token], text_of: TextOf) -> np.float32:
    """The Dice ratio of two lists, from the right-hand count (`get_tokens_similarity`)."""
    # Trap: the right-hand count alone, although both sides may have other tokens for the text.
    return dice(common_prefix(left, right, text_of).right, len(left) + len(right))


def dice(shared: int, total: int) -> np.float32:
    """Twice the shared tokens by those of both lists."""
    return np.float32(2 * shared) / np.float32(total) if total else np.float32(0)


def kept_fraction(entry: Sequence[Token], prompt: Sequence[Token], text_of: TextOf) -> np.float32:
    """The kept fraction of `entry`: left-hand count by length (`get_cached_tokens_similarity`)."""
    if not entry:
        return np.float32(0)
    return np.float32(common_prefix(entry, prompt, text_of).left) / np.float32(len(entry))


def without_reasoning(
    tokens: Sequence[Token], tags: tuple[str, str] | None, text_of: TextOf
) -> Sequence[Token]:
    """Drop the tokens of closed reasoning blocks (`get_tokens_exclude_think`).

    `tags` None disables it. An unclosed block is kept, and so is the token after a block.
    """
    # `--reasoning-tokens none`.
    if tags is None or not tokens:
        return tuple(tokens)
    if _all_unknown(tokens) and not {*tags[0]} <= NUMERALS:
        return tokens  # their texts are numerals, so no tag is among them
    texts = list(map(text_of, tokens))
    blocks = _blocks("".join(texts), *tags)
    if not blocks:
        return tuple(tokens)
    kept, start, block = [], 0, 0
    for token, text in zip(tokens, texts, strict=True):
        while block < len(blocks) and start >= blocks[block][1]:
            block += 1
        # Trap: by the start of a token's text, so the token that follows a block is always kept.
        inside = block < len(blocks) and blocks[block][0] <= start < blocks[block][1]
        if not inside:
            kept.append(token)
        start += len(text)
    return tuple(kept)


def _all_unknown(tokens: Sequence[Token]) -> bool:
    rope = as_rope(tokens)
    if rope is not None:
        return all(text for text, _, _ in rope.runs)
    return min(tokens) >= LONGEST


def _blocks(text: str, opening: str, closing: str) -> list[tuple[int, int]]:
    """Character ranges of closed blocks, each start paired with the first later end.

    Upstream: `get_common_prefix`.
    """
    blocks: list[tuple[int, int]] = []
    at = 0
    while True:
        start = text.find(opening, at)
        if start < 0:
            return blocks
        end = text.find(closing, start + len(opening))
        if end < 0:
            return blocks
        end += len(closing)
        blocks.append((start, end))
        at = end


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of the known tokens; an unknown token's text is its number."""

    known: dict[Token, str]

    def of(self, token: Token) -> str:
        """The text of a token."""
        text = self.known.get(token)
        return f"[{token}]" if text is None else text


@cache
def texts(chat_template: str) -> TextOf:
    """Token texts under a chat template; a byte is one character, an unknown token its number."""
    of_bytes = {Token(FIRST_BYTE + byte): chr(byte) for byte in range(BYTES)}
    return Texts(of_bytes | ByteTokenizer(chat_template).texts).of


GONE: Final = "cancelled"
"""The error of a request whose client disconnected."""


class State(Enum):
    """The state of a slot."""

    IDLE = "idle"
    PROCESSING = "processing"


class Command(Enum):
    """The next command of a slot."""

    NONE = "none"
    LOAD_PROMPT = "load-prompt"
    RELEASE = "release"


@dataclass(slots=True, kw_only=True)
class CachedPrompt:
    """The prompt that a slot saves to the cache or loads from it (`server_prompt`)."""

    tokens: list[Token] = field(default_factory=list)
    n_kept_prompt: int = 0
    n_discarded_prompt: int = 0
    approximate: int | None = None
    checkpoints: list[Checkpoint] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Slot:
    """A slot; `cache_tokens` is the server's list of the tokens in memory."""

    id: SlotId
    n_ctx: Count
    state: State = State.IDLE
    command: Command = Command.NONE
    t_last_used: int = -1

    cache_tokens: list[Token] = field(default_factory=list)
    cached_prompt: CachedPrompt = field(default_factory=CachedPrompt)
    list_moved_out: bool = False  # not upstream's: a lookup emptied the list

    ticket: Ticket | None = None
    request: Request | None = None
    prompt_tokens: list[Token] = field(default_factory=list)
    prepared: bool = False
    n_past: int = 0  # cache-token space
    n_past_prompt: int = 0  # prompt-token space
    n_past_offset: int = 0  # kept by reset(): stale without a match (an oddity)
    n_prompt_tokens_cache: int = 0
    n_prompt_tokens_processed: int = 0
    n_kept_prompt: int = 0
    n_discarded_prompt: int = 0
    n_keep: int = 0  # survives requests (an oddity)
    checkpoint_pos: int = 0
    do_checkpoint: bool = False
    i_batch: int = -1
    stray: int = 0  # cells outside the list: of drafts longer than a batch, of retried batches
    sampled: Token = Token(0)
    n_decoded: int = 0
    generated: list[Token] = field(default_factory=list)
    logits: list[Array] = field(default_factory=list)
    truncated: bool = False
    shifted: bool = False  # the reply depends on values of a longer context
    approximate: int | None = None  # listed tokens from here on have such values
    drafted: list[Token] = field(default_factory=list)
    drafting: bool = False  # the step is verified as a draft, an empty one too (`i_batch_dft`)
    warmup_failed: bool = False  # the companion refused a part of the prompt: no drafts
    follow_up: Token | None = None  # the draft of the last commit
    follow_up_probability: float = 1.0
    draft_step: int = 0
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def running(self) -> Request:
        """The request of a busy slot."""
        if self.request is None:
            raise ContractError(f"slot {self.id} is {self.state.value} without a request")
        return self.request

    @property
    def id_task(self) -> Ticket:
        """The slot's last task."""
        if self.ticket is None:
            raise ContractError(f"slot {self.id} has had no task")
        return self.ticket

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints, oldest first."""
        return self.cached_prompt.checkpoints

    @property
    def available(self) -> bool:
        """True if the slot is idle without a command."""
        return self.state is State.IDLE and self.command is Command.NONE

    @property
    def prefilling(self) -> bool:
        """True while the slot prefills its prompt."""
        return self.state is State.IDLE and self.command is Command.LOAD_PROMPT

    @property
    def prompt_was_cut(self) -> bool:
        """True if the request's prompt did not fit (`context_shift_prompt`)."""
        return self.truncated and len(self.prompt_tokens) < len(self.running.prompt)

    def reset(self, interval_starts_at: int) -> None:
        """Reset the fields of the last request, not the conversation (`server_slot::reset`)."""
        self.prompt_tokens = []
        self.prepared = False
        self.n_past = self.n_past_prompt = 0
        self.n_prompt_tokens_cache = self.n_prompt_tokens_processed = 0
        self.n_kept_prompt = self.n_discarded_prompt = 0
        # `n_past_offset` and `n_keep` are not reset (oddities): a request may see those of the one
        # before it.
        self.checkpoint_pos = interval_starts_at
        self.do_checkpoint = False
        self.i_batch = -1
        self.n_decoded = 0
        self.generated, self.logits = [], []
        self.truncated = self.shifted = False
        self.drafted = []
        self.drafting = self.warmup_failed = False
        self.follow_up = None
        self.draft_step = 0

    def reply(self, error: str | None = None, message: str = "") -> Reply:
        """The reply to the client."""
        unread = error == GONE and not self.generated
        refused = error not in {None, GONE} or unread
        return Reply(
            prompt=self.running.prompt,
            generated=tuple(self.generated),
            logits=np.stack(self.logits) if self.logits else np.zeros((0, 0)),
            cached=None if refused else Count(self.n_prompt_tokens_cache),
            processed=None if refused else Count(self.n_prompt_tokens_processed),
            equal=self.ledger.equal,
            equal_with=self.ledger.equal_with,
            losses=self.ledger.losses,
            slot=self.id,
            truncated=self.truncated,
            error=error,
            message=message,
            approximated="context-shift" if self.shifted else None,
            unsent=Count(max(0, self.n_decoded - len(self.generated))),
            cut=tuple(self.prompt_tokens) if self.prompt_was_cut else None,
        )


@dataclass(slots=True, eq=False, kw_only=True)
class PromptEntry:
    """A prompt-cache entry: a conversation's full state and a copy of its checkpoint list."""

    tokens: list[Token]
    n_kept_prompt: int
    n_discarded_prompt: int
    approximate: int | None
    checkpoints: list[Checkpoint]
    state: SequenceState
    pos_min: Pos
    length: Count  # number of tokens when saved; a lookup may empty the list (an oddity)
    number: int = 0  # of all that were saved
    size: int = field(init=False)  # bytes of the state and all checkpoints

    def __post_init__(self) -> None:
        self.size = self.state.size + sum(checkpoint.size for checkpoint in self.checkpoints)


@dataclass(slots=True, kw_only=True)
class PromptCache:
    """Entries in order of insertion; `limit` in bytes, None for no limit."""

    limit: int | None
    text_of: TextOf
    tags: tuple[str, str] | None
    entries: list[PromptEntry] = field(default_factory=list)
    size: int = 0  # bytes of all entries
    _saved: int = 0
    _beginnings: Beginnings[PromptEntry] = field(default_factory=Beginnings)
    _by_text: dict[PromptEntry, None] = field(default_factory=dict)  # tokens do not decide alone

    def add(self, entry: PromptEntry) -> None:
        """Append an entry, as the newest."""
        self._saved += 1
        entry.number = self._saved
        self.entries.append(entry)
        self.size += entry.size
        self._beginnings.add(entry)
        if entry.n_discarded_prompt or not self._plain(entry.tokens):
            self._by_text[entry] = None

    def remove(self, entry: PromptEntry) -> None:
        """Take an entry out."""
        self.entries.remove(entry)
        self.size -= entry.size
        self._beginnings.remove(entry)
        self._by_text.pop(entry, None)

    def empty_lists(self) -> None:
        """Empty the token lists of all entries."""
        self._beginnings = Beginnings()
        for entry in self.entries:
            entry.tokens = []
            self._beginnings.add(entry)
            self._by_text[entry] = None

    def _plain(self, tokens: Sequence[Token]) -> bool:
        """True if texts match where tokens do: those of unknown tokens are numerals, none of which
        begins with another one.
        """
        tags = self.tags is not None and {*self.tags[0]} <= NUMERALS
        return bool(tokens) and not tags and _all_unknown(tokens)

    def common(self, tokens: Sequence[Token]) -> dict[PromptEntry, Count]:
        """The entries with equal tokens at the beginning, and how many, oldest first."""
        counts: dict[PromptEntry, Count] = {}
        for count, entries in self._beginnings.shared(tokens)[1:]:
            counts.update(dict.fromkeys(entries, count))
        return counts

    def compared(self, tokens: Sequence[Token]) -> dict[PromptEntry, Count | None]:
        """The entries that may match, oldest first, and the match where it is one of tokens."""
        if not self._plain(tokens):
            return dict.fromkeys(self.entries)
        counts: dict[PromptEntry, Count | None] = {**self.common(tokens)}
        if self._by_text:
            counts.update(dict.fromkeys(self._by_text))
            counts = {
                entry: counts[entry]
                for entry in sorted(counts, key=lambda prompt_entry: prompt_entry.number)
            }
        return counts

    def room_for(self, prompt: CachedPrompt) -> bool:
        """Drop entries that the new one contains; False if an entry contains it (`alloc`)."""
        tokens = discard(prompt.tokens, prompt.n_kept_prompt, prompt.n_discarded_prompt)
        for entry, equal in self.compared(tokens).items():
            left, right = (
                (equal, equal) if equal else common_prefix(entry.tokens, tokens, self.text_of)
            )
            # Contained in an entry: nothing is saved, but entries erased before stay erased.
            if right == len(tokens):
                return False
            # The new conversation continues this one, so the old entry is obsolete.
            if left == len(entry.tokens):
                self.remove(entry)
        return True

    def match(self, entry: PromptEntry, prompt: Sequence[Token]) -> Match:
        """The common prefix of an entry and a prompt, both without reasoning."""
        return common_prefix(self.stripped(entry.tokens), self.stripped(prompt), self.text_of)

    def similarity(self, held: "PromptEntry | CachedPrompt", prompt: Sequence[Token]) -> np.float32:
        """The score of an entry; the prompt is shifted as the entry is."""
        shifted = discard(self.stripped(prompt), held.n_kept_prompt, held.n_discarded_prompt)
        return similarity(self.stripped(held.tokens), shifted, self.text_of)

    def stripped(self, tokens: Sequence[Token]) -> Sequence[Token]:
        """The tokens without their reasoning blocks."""
        return without_reasoning(tokens, self.tags, self.text_of)

    def update(self) -> list[PromptEntry]:
        """Drop and return the oldest entries while several exceed the limit."""
        dropped: list[PromptEntry] = []
        # Oldest first; a single entry stays, however large it is.
        while self.limit is not None and len(self.entries) > 1 and self.size > self.limit:
            dropped.append(self.entries[0])
            self.remove(self.entries[0])
        return dropped


MAGIC: Final = b"CSIK"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSlot:
    """The content of a slot file."""

    tokens: tuple[Token, ...]
    state: SequenceState
    checkpoints: tuple[Checkpoint, ...]
    approximate: int | None = None


def encode(saved: SavedSlot) -> bytes:
    """Write a slot as bytes (`llama_state_seq_save_file`)."""
    elements: list[bytes] = []
    text = {
        "tokens": list(saved.tokens),
        "approximate": saved.approximate,
        "state": _describe(saved.state, elements),
        "checkpoints": [
            {
                "pos": [c.pos_min, c.pos_max, c.pos_min_prompt, c.pos_max_prompt],
                "state": _describe(c.state, elements),
            }
            for c in saved.checkpoints
        ],
    }
    return slot_file.write(MAGIC, text, elements)


def decode(data: bytes) -> SavedSlot:
    """Parse a slot file; a damaged one is refused."""
    return slot_file.read(
        data, MAGIC, "ik_llama.cpp", lambda text, rest: _read(text, _Elements(rest))
    )


def _read(text: dict[str, Any], rest: "_Elements") -> SavedSlot:
    state = rest.state(text["state"])
    return SavedSlot(
        tokens=tuple(tokens_of(text["tokens"])),
        approximate=None if text["approximate"] is None else whole(text["approximate"]),
        state=state,
        checkpoints=tuple(_checkpoint(checkpoint, rest) for checkpoint in text["checkpoints"]),
    )


def _checkpoint(text: dict[str, Any], rest: "_Elements") -> Checkpoint:
    """Parse a checkpoint; upstream leaves n_tokens undefined (an oddity), here it is 0."""
    pos_min, pos_max, pos_min_prompt, pos_max_prompt = (Pos(whole(pos)) for pos in text["pos"])
    return Checkpoint(
        made_by=-1,  # not in the file
        pos_min=pos_min,
        pos_max=pos_max,
        pos_min_prompt=pos_min_prompt,
        pos_max_prompt=pos_max_prompt,
        n_tokens=Count(0),
        state=rest.state(text["state"]),
    )


def _describe(state: SequenceState, elements: list[bytes]) -> dict[str, Any]:
    def layers(arrays: dict[int, Array] | None) -> list[Any] | None:
        if arrays is None:
            return None
        elements.extend(array.tobytes() for array in arrays.values())
        return [[n, list(array.shape), array.dtype.str] for n, array in arrays.items()]

    return {
        "positions": list(state.positions),
        "born": list(state.born),
        "size": state.size,
        "keys": layers(state.keys),
        "values": layers(state.values),
        "rows": layers(state.rows),
    }


def _position(value: object) -> Pos:
    return Pos(whole(value, most=MOST_CELLS))


class _Elements:
    """The elements after the text, parsed in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def layers(self, described: list[Any]) -> dict[int, Array]:
        arrays: dict[int, Array] = {}
        for layer, shape, kind in described:
            count = math.prod(whole(size, 0) for size in shape)
            array = np.frombuffer(self._data, kind, count, self._at).reshape(shape)
            self._at += array.nbytes
            arrays[whole(layer)] = array.copy()
        return arrays

    def state(self, text: dict[str, Any]) -> SequenceState:
        keys, values = text["keys"], text["values"]
        return SequenceState(
            positions=tuple(map(_position, text["positions"])),
            born=tuple(map(_position, text["born"])),
            size=whole(text["size"]),
            keys=None if keys is None else self.layers(keys),
            values=None if values is None else self.layers(values),
            rows=self.layers(text["rows"]),
        )
