"""#923 and #929: copies of finished conversations, kept at the ends of messages. Never merged.

    key       [ message 1 ][ message 2 ] ... [ message m ]
    state     [ the same, the generation prompt and the reply, and whatever earlier turns left ]
    snapshot  [ message 1 ][ message 2 ]     the state again, its layers cut back if they can be

The key leaves out what the state has folded in, so every state under it is longer than its key;
and a recurrent layer's state at a boundary cannot be made after the fact.
"""

from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy

from cachesim.engines.base import Message
from cachesim.engines.chat import ChatTokenizer
from cachesim.engines.events import Event
from cachesim.engines.mlx_lm.caches import (
    LayerCache,
    can_trim_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.lru_prompt_cache import CacheEntry, Fetched, LRUPromptCache
from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.mlx_lm.segments import message_boundaries
from cachesim.engines.mlx_lm.server_rules import ServerRules, SnapshotRules
from cachesim.engines.mlx_lm.store_events import PromptCacheInserted, PromptCacheReplaced
from cachesim.engines.mlx_lm.trie import Key, PromptTrieResult
from cachesim.units import Count, Tokens

QUEUE: str = "all"
"""The only queue of that generation of the store."""


def snapshot_key(
    rules: ServerRules,
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    prompt: Tokens,
) -> tuple[Tokens, tuple[Count, ...]]:
    """What a prompt is looked up and stored under, and where its messages end.

    Follows `_tokenize_for_cache_key`: the template without the generation prompt. Without #923 the
    prompt is its own key.
    """
    if rules.snapshots is None or not messages:
        return prompt, ()
    key = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    every = rules.snapshots.boundary_after_every_message
    return key, message_boundaries(tokenizer, messages, after_every_message=every)


def checkpoint_positions(
    rules: SnapshotRules, length: int, boundaries: Sequence[int]
) -> tuple[int, ...]:
    """At which ends of messages to keep a snapshot. Follows `_find_checkpoint_positions`.

    For every multiple of the interval below the length: the last boundary up to half an interval
    behind it. #929 adds the last boundary of all.
    """
    valid = [each for each in boundaries if 0 < each < length]
    positions: set[int] = set()
    if rules.always_the_last_boundary and valid:
        positions.add(valid[-1])
    last = 0
    for start in range(rules.interval, length, rules.interval):
        candidates = [each for each in valid if last < each <= start + rules.interval // 2]
        if candidates:
            last = max(candidates)
            positions.add(last)
    return tuple(sorted(positions))


class SnapshotStore(LRUPromptCache):
    """The store of #923: entries are handed out as they are, and move to their new key."""

    def __init__(
        self,
        rules: StoreRules,
        max_size: int,
        *,
        snapshots: SnapshotRules,
        on_event: Callable[[Event], None],
    ) -> None:
        super().__init__(rules, max_size, on_event=on_event)
        self.snapshots = snapshots

    def _shorter(self, found: PromptTrieResult, tokens: Key) -> Fetched:
        """A snapshot leaves the store; an ordinary entry stays, and the same object is handed out.

        Follows `fetch_nearest_cache` of #923; the kind "shared" is an entry that will move.
        """
        if found.shorter is None or self.trie.get(found.model, found.shorter).is_snapshot:
            return super()._shorter(found, tokens)
        entry = self.trie.get(found.model, found.shorter)
        if entry.count > 1:
            entry.count -= 1
        used, equal = Count(len(found.shorter)), Count(found.common_prefix)
        losses = (self._why_not_longer(found, equal, used),) if used < equal else ()
        return Fetched(
            prompt_cache=entry.prompt_cache,
            rest=tokens[used:],
            kind="shared",
            key=found.shorter,
            equal=equal,
            losses=losses,
        )

    def _handed_out(self, model: Hashable, key: Key) -> list[LayerCache]:
        """As before, but an entry that is counted more than once is handed out itself."""
        entry = self.trie.get(model, key)
        if entry.count == 1:
            return super()._handed_out(model, key)
        entry.count -= 1
        return entry.prompt_cache

    def insert_conversation(
        self,
        model: Hashable,
        tokens: Key,
        prompt_cache: list[LayerCache],
        *,
        boundaries: Sequence[int],
        old_position: Key | None,
    ) -> None:
        """Move, store, take snapshots, evict. Follows `insert_cache` of #923.

        Two followers of one conversation hold the same object; the second one's move finds nothing
        to move and raises `KeyError`.
        """
        if old_position is not None and list(old_position) != list(tokens):
            self._uncount(self.trie.pop(model, old_position))
            self._forget(model, old_position)
        self._put(model, tokens, prompt_cache)
        self.order.push(model, tokens, QUEUE)
        for position in checkpoint_positions(self.snapshots, len(tokens), boundaries):
            self._take_snapshot(model, tokens, prompt_cache, position)
        while len(self.order) > self.max_size:
            self._evict()
        while self._n_bytes > self.max_bytes and len(self.order) > 1:
            self._evict()

    def _forget(self, model: Hashable, tokens: Key) -> None:
        if (model, tokens) in self.order.queues[QUEUE]:
            self.order.remove(model, tokens)

    def _put(self, model: Hashable, tokens: Key, prompt_cache: list[LayerCache]) -> None:
        """An existing key is overwritten, counted once more, its bytes corrected."""
        nbytes = sum(each.nbytes for each in prompt_cache)
        entry = CacheEntry(prompt_cache=prompt_cache, nbytes=nbytes, cache_type=QUEUE)
        held = self.trie.add(model, tokens, entry)
        self._n_bytes += nbytes
        self._n_bytes_by_type[QUEUE] += nbytes
        if held is not None:
            entry.count = held.count + 1
            self._uncount(held)
            self.order.remove(model, tokens)
            self._say(PromptCacheReplaced, tokens, held)
        self._say(PromptCacheInserted, tokens, entry)

    def _take_snapshot(
        self, model: Hashable, tokens: Key, prompt_cache: list[LayerCache], position: int
    ) -> None:
        """A copy of the finished state under the boundary's key, cut back by the key's tokens.

        Follows `_create_checkpoint_snapshot`: all layers or none; with #929 each that can be cut.
        """
        key = tokens[:position]
        if self.trie.holds(model, key):
            return
        snapshot = deepcopy(prompt_cache)
        surplus = len(tokens) - position
        if can_trim_prompt_cache(snapshot):
            trim_prompt_cache(snapshot, surplus)
        elif self.snapshots.trims_each_layer_it_can:
            for layer in snapshot:
                if layer.is_trimmable():
                    layer.trim(surplus)
        nbytes = sum(each.nbytes for each in snapshot)
        entry = CacheEntry(prompt_cache=snapshot, nbytes=nbytes, cache_type=QUEUE, is_snapshot=True)
        self.trie.add(model, key, entry)
        self._n_bytes += nbytes
        self._n_bytes_by_type[QUEUE] += nbytes
        self.order.push(model, key, QUEUE)
        self._say(PromptCacheInserted, key, entry)
