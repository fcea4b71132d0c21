"""What a search draws for mlx-lm's server and those built on it, and the laws that it checks.

Each law holds on every release and patch, but where a rule of theirs is named here.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from cachesim.engines.events import Event
from cachesim.engines.mlx_lm.families import model_classes
from cachesim.engines.mlx_lm.observe import problems, quantised_otherwise
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import MlxRules, PrefixCacheRules
from cachesim.engines.mlx_lm.search.recomputed import Recomputed
from cachesim.engines.mlx_lm.search.stored import CUT, KEPT, lengths
from cachesim.engines.mlx_lm.server.engine import MlxLm
from cachesim.engines.mlx_lm.server.request import LONGEST_TAIL, opening_mark
from cachesim.engines.mlx_lm.vocabulary import (
    Insertion,
    ModelCalled,
    PromptCacheConsumed,
    PromptCacheEvicted,
    PromptCacheInserted,
    PromptCachePruned,
    PromptCacheReplaced,
    PromptProgress,
    RequestAdmitted,
    RequestFinished,
)
from cachesim.engines.search import ACTS, Corner, Guide, Images, Scope, Search
from cachesim.engines.seen import Breach, Seen
from cachesim.engines.tokens import get_common_prefix
from cachesim.model.build import arithmetic_of
from cachesim.typed import there_is

LEAVES: Final = (PromptCacheConsumed, PromptCacheEvicted, PromptCachePruned, PromptCacheReplaced)
"""Events of an entry that leaves the store."""

STOPS: Final = "stop_words"
"""The field after which a reply may end sooner, or go on until the worker is stopped."""

DEEP: Final = 10
"""Entries of a store with several queues that never evicts the newest one first."""

REFUSED: Final = frozenset({"ValueError", "NotImplementedError"})
"""Errors with which a request may fail: its prompt is covered, its draft or ring has no rule."""


class MlxLaws:
    """The laws, with the contents of the store by its events.

    Those of a server that is built on mlx-lm say what its own store keeps and finds.
    """

    feeds_all = False
    """Whole prompts are fed, whatever is cached, and no rule is known for their states."""

    evicts_early = False
    """An entry may be evicted while there is room."""

    def __init__(self, engine: MlxLm) -> None:
        self._engine, self._rules, self._options = engine, engine.rules, engine.options
        own = engine.rules.server
        self._drafts = self._options.draft_model is not None
        # A checkpoint before the last token: what follows it is fed again, one by one.
        thinks = self._options.chat_template == "strip-reasoning"
        self._ragged = own.checkpoint_at_last_user or (own.checkpoint and thinks)
        self._before: Seen | None = None
        self.begin_anew()

    def begin_anew(self) -> None:
        """Read the content of the store."""
        cache = self._engine.server.store.cache
        self._before = None
        self._keys = self._held()
        self._entries, self._bytes = len(cache), cache.nbytes if self._counts_bytes else 0
        self._stored = self._engine.server.store.number
        self._recomputed: dict[str, Recomputed] = {}

    @property
    def _counts_bytes(self) -> bool:
        return self._rules.store.limits_bytes

    def broken(self, seen: Seen) -> Breach | None:
        """The first law that a request breaks."""
        before, self._before = self._before, seen if seen.alone else None
        keys, self._keys = self._keys, self._held()
        evicted = self._count(seen.events)
        if self._rounds and seen.reply.error is None and (wrong := self._wrong(seen)):
            return Breach(kind="broken invariant", detail=wrong)
        if seen.reply.error is not None:
            return self._failed(seen)
        if not seen.alone:
            return None
        for detail in (evicted, *self._accounts(seen), *self._work(seen), *self._kept(seen)):
            if detail:
                return Breach(kind="broken invariant", detail=detail)
        if before is not None and (lost := self._lost(before, seen)):
            return lost
        unequal = self._equal(seen, keys)
        return next(
            (Breach(kind="broken invariant", detail=difference) for difference in unequal), None
        )

    def _held(self) -> list[list[int]]:
        """The keys of the store."""
        return [key for _, key, _ in self._engine.server.store.cache.trie.items()]

    def _equal(self, seen: Seen, keys: Sequence[Sequence[int]]) -> Iterator[str]:
        """The equal tokens of a reply: the prompt's longest common prefix with a key."""
        own, several = self._rules.server, len(self._engine.networks) > 1
        if own.snapshots is not None or seen.images or several:
            return  # snapshots are found under other keys
        most = max((int(get_common_prefix(key, seen.reply.prompt)) for key in keys), default=0)
        if seen.reply.equal != most:
            yield f"{seen.reply.equal} tokens are equal, a key of the store has {most}"

    @property
    def _rounds(self) -> bool:
        """True if keys and values are quantised, and calls of the model alone decide an answer."""
        own = self._rules.server
        plain = own.prefix_cache is None and own.snapshots is None
        exact = not (self._rules.store.reuses_untrimmed or self._rules.caches.arrays_trim_resets)
        ring = arithmetic_of(self._engine.network) == "ring"
        rounds = self._options.kv_bits is not None and not self._drafts
        return rounds and plain and exact and ring

    def _wrong(self, seen: Seen) -> str:
        """The detail of a quantised answer that follows from no calls of the model.

        Judged only while the events account for every entry of the store.
        """
        reply, flags = seen.reply, self._options
        start, step = flags.quantized_kv_start, flags.prefill_step_size
        if seen.model not in self._recomputed:
            network = self._engine.networks[seen.model]
            self._recomputed[seen.model] = Recomputed(network, start=start, step=step)
        known = self._stored == self._engine.server.store.number
        given = reply.prompt, reply.generated, int(reply.cached or 0), reply.logits
        judged = seen.plain and "window" not in seen.layers  # a ring is not quantised
        wrong = judged and self._recomputed[seen.model].wrong(*given)
        return "a quantised answer is that of no calls of the model" if known and wrong else ""

    # -- the store -----------------------------------------------------------------------------

    def _count(self, events: Sequence[Event]) -> str:
        """Count entries and bytes; the reason if one was evicted while there was room."""
        cache = self._engine.server.store.cache
        limited = self._options.prompt_cache_bytes is not None
        broken = ""
        for event in events:
            self._stored += isinstance(event, Insertion)
            if isinstance(event, PromptCacheInserted):
                self._entries += 1
                self._bytes += event.nbytes
            elif isinstance(event, LEAVES):
                room = self._entries <= cache.max_size
                if isinstance(event, PromptCacheEvicted) and room and not limited:
                    broken = f"an entry is evicted from {self._entries} of {cache.max_size}"
                self._entries -= 1
                self._bytes -= event.nbytes
        return "" if self.evicts_early else broken

    def _accounts(self, seen: Seen) -> Iterator[str]:
        """The store's counts against its events, and its limit."""
        cache = self._engine.server.store.cache
        yield from problems(cache)
        if self._options.kv_bits is not None:
            yield from quantised_otherwise(self._rules.caches, self._options.kv_bits)
        if len(cache) > cache.max_size:
            yield f"the store holds {len(cache)} entries, {cache.max_size} are allowed"
        if self._rules.server.snapshots is not None:  # whose entries move without an event
            return
        if self._entries != len(cache):
            yield f"{self._entries} entries by the events, {len(cache)} in the store"
        if self._counts_bytes and self._bytes != cache.nbytes:
            yield f"{self._bytes} bytes by the events, {cache.nbytes} by the store's counter"
        for event in seen.events:
            if isinstance(event, RequestAdmitted):
                yield from self._admitted(event, seen)

    def _admitted(self, admitted: RequestAdmitted, seen: Seen) -> Iterator[str]:
        """The reported counts of an admitted request, and its path: batched, or alone."""
        own, flags, cached = self._rules.server, self._options, seen.reply.cached
        if admitted.cached != cached:
            yield f"{admitted.cached} tokens cached as it was admitted, {cached} after"
        if admitted.reported != (cached if own.reports_cached else None):
            yield f"{admitted.reported} tokens are reported as cached, {cached} are"
        if admitted.prompt_tokens != len(seen.reply.prompt):
            yield f"a prompt of {len(seen.reply.prompt)} tokens is admitted with another length"
        apart = own.prefix_cache is not None or flags.kv_bits is not None
        alone = apart or self._drafts or seen.images or "seed" in seen.fields
        merges = seen.plain and seen.layers <= KEPT and not self._engine.network.spec.chunked
        known = alone or (merges and len(self._engine.networks) == 1)
        if known and (admitted.path == "single") != alone:
            yield f"a request is served on the path of a {admitted.path}"
        yield from self._tail(admitted, seen)

    def _tail(self, admitted: RequestAdmitted, seen: Seen) -> Iterator[str]:
        """A mark that opens a reasoning part near the end of a chat begins its last segment."""
        mark, prompt = opening_mark(self._engine.tokenizer), seen.reply.prompt
        kinds = [kind for _, kind in admitted.segments]
        if not (mark and seen.chat) or kinds in ([], ["assistant"]):
            return
        near = range(max(0, len(prompt) - LONGEST_TAIL), len(prompt))
        starts = [at for at in near if prompt[at:][: len(mark)] == mark]
        length = admitted.segments[-1][0] if kinds[-1] == "assistant" else 0
        if length != (len(prompt) - starts[-1] if starts else 0):
            yield f"a tail of {length} tokens, where a reasoning part opens at {starts}"

    def _kept(self, seen: Seen) -> Iterator[str]:
        """A state is stored under the tokens that it was fed, and its layers count them."""
        own, tokens = self._rules.server, seen.reply.prompt + seen.reply.generated
        if self._drafts or own.snapshots is not None or self.feeds_all:
            return
        unrolls = self._rules.caches.rotating_unrolls_on_trim
        exact = not (self._ragged or own.binds_late or self._rules.store.reuses_untrimmed)
        # #1494: a chunk goes back to its front at most, the layers with full attention all the way
        apart = self._engine.network.spec.chunked and self._rules.caches.chunks_always_trim
        exact = exact and not (unrolls or apart)
        for event in seen.events:
            if not isinstance(event, Insertion):
                continue
            if not seen.images and event.key != tokens[: event.length]:
                yield f"a state of {event.length} tokens is stored under another key"
            counts = {layer["offset"] for layer in event.layers if "offset" in layer}
            if exact and counts - {event.length, *self._uncounted(seen)}:
                yield f"a state of {counts} tokens is stored under a key of {event.length}"
        if STOPS in seen.fields or seen.images or not seen.plain:
            return
        stored = [event for event in seen.events if isinstance(event, Insertion)]
        due, kept = self._lengths(seen), [int(insertion.length) for insertion in stored]
        if due is not None and due != kept:
            yield f"states of {kept} tokens are stored, not of {due}"
        others = {insertion.type for insertion in stored[-1:]} - {
            self._rules.store.queue_of("assistant")
        }
        if own.prefix_cache is None and others:
            yield f"the state after a reply is stored as one of {others}"

    def _lengths(self, seen: Seen) -> list[int] | None:
        """Tokens of each state, in the order of their insertion; None where no rule is known.

        Read off the rules alone, without the store, for a request that was served alone.
        """
        return lengths(self._rules.server, seen)

    def _uncounted(self, seen: Seen) -> frozenset[int]:
        """The count of layers without one."""
        return frozenset() if seen.plain else frozenset({0})

    # -- the work ------------------------------------------------------------------------------

    def _work(self, seen: Seen) -> Iterator[str]:
        """The tokens fed to the model, the progress of a prompt, the end of a reply."""
        reply, events = seen.reply, seen.events
        told = (
            reply.generated[: len(seen.forced or ())] if STOPS in seen.fields else reply.generated
        )
        if seen.forced is not None and told != seen.forced:
            yield f"{len(reply.generated)} tokens are returned of {len(seen.forced)}"
        reasons = [event.reason for event in events if isinstance(event, RequestFinished)]
        if reasons != ["length"] and STOPS not in seen.fields:
            yield f"a reply without a stop word ends as {reasons}"
        rest = len(reply.prompt) - (0 if self.feeds_all else there_is(reply.cached))
        fed = sum(event.rows * event.columns for event in events if isinstance(event, ModelCalled))
        if not self._drafts and not self._ragged and fed != rest + len(reply.generated):
            yield f"{fed} tokens are fed for {rest} of the prompt and {len(reply.generated)}"
        widest = max(
            (event.columns for event in events if isinstance(event, ModelCalled)), default=0
        )
        most = self._options.prefill_step_size
        if not (self._drafts or self._ragged) and widest > most:
            yield f"the model is given {widest} tokens at once"
        for event in events:
            if isinstance(event, RequestAdmitted) and event.segments:
                cut = sum(length for length, _ in event.segments)
                if cut != len(reply.prompt):
                    yield f"the segments have {cut} tokens of {len(reply.prompt)}"
        done = [(event.done, event.total) for event in events if isinstance(event, PromptProgress)]
        if any(one[0] > other[0] for one, other in pairwise(done)):
            yield "the progress of a prompt goes back"
        alone = any(
            isinstance(event, RequestAdmitted) and event.path == "single" for event in events
        )
        short = 0 if alone or self._rules.server.segments else 1  # its last token is fed apart
        if done and not self._ragged and done[-1][0] != done[-1][1] - short:
            yield f"a prompt's progress ends at {done[-1][0]} of {done[-1][1]}"

    def _failed(self, seen: Seen) -> Breach | None:
        """A lone request that fails by an error of no rule."""
        error = seen.reply.error or ""
        if not error.isidentifier() or error in REFUSED:
            return None
        return Breach(kind="refusal", detail=f"{error}: {seen.reply.message}")

    # -- reuse ---------------------------------------------------------------------------------

    def _lost(self, before: Seen, seen: Seen) -> Breach | None:
        """Too little reuse of the request right before."""
        same = before.model == seen.model and not (before.images or seen.images)
        if not same or before.reply.error is not None or seen.reply.cached is None:
            return None
        due = self._due(before, seen)
        if seen.reply.cached >= due:
            return None
        detail = f"{seen.reply.cached} of {due} tokens cached that the request before wrote"
        return Breach(kind="lost reuse", detail=detail, due=due)

    def _due(self, before: Seen, seen: Seen) -> int:
        """The tokens that the server must reuse of the request right before."""
        flags, rules = self._options, self._rules.server
        fewest = DEEP if len(self._rules.store.queues) > 1 else 1
        shallow = flags.prompt_cache_size < fewest or flags.prompt_cache_bytes is not None
        if self._drafts or shallow or rules.snapshots is not None or STOPS in before.fields:
            return 0
        prompt, held = seen.reply.prompt, before.reply.prompt + before.reply.generated
        shared, length = int(get_common_prefix(prompt, held)), len(prompt)
        end = shared if shared == len(held) < length else 0  # where it continues the whole reply
        cut = min(shared, length - 1) if seen.plain and seen.layers <= CUT else 0
        if rules.prefix_cache is not None:
            return self._due_of(rules.prefix_cache, before, seen, Shared(shared, end, cut))
        store = self._rules.store
        cuts = store.cuts_to_common_prefix and store.leaves_one_token
        return max(end, cut if cuts else 0) if shared > 1 else 0

    def _due_of(self, own: PrefixCacheRules, before: Seen, seen: Seen, shared: "Shared") -> int:
        """The tokens that the prefix cache of another server must reuse; none where unknown."""
        return 0


class Shared(NamedTuple):
    """What a prompt has in common with the request right before, in tokens."""

    tokens: int
    end: int  # the whole request with its reply, if the prompt continues it
    cut: int  # as far as its layers can be cut


FLAGS: Final[dict[str, tuple[Any, ...]]] = {
    "prompt_cache_bytes": (0, 2_000, 8_000, 30_000, 100_000),
    "kv_bits": (4, 8),
    "draft_model": ("self",),
}
"""Small limits in bytes; and flags with which no request is batched."""


FIELDS: Final[tuple[dict[str, Any], ...]] = ({"seed": 0}, {"tools": ("a tool",)})


def guide(
    sizes: Collection[int], images: Images = "none", fields: tuple[dict[str, Any], ...] = FIELDS
) -> Guide:
    """The guide of a server whose decisions change at these numbers of tokens."""
    return Guide(
        sizes=tuple(sorted({size for size in sizes if size > 1})),
        images=images,
        fields=fields,
        stop_words="stop_words",
        templates=("strip-reasoning",),
        flags=FLAGS,
    )


def _guide(rules: MlxRules, flags: MlxOptions) -> Guide:
    own = rules.server
    reads = own.reads_images and own.snapshots is None and flags.draft_model is None
    sizes = () if own.snapshots is None else (own.snapshots.interval,)
    return guide(sizes, "some" if reads else "none")


SEARCH: Final[Search[MlxRules, MlxOptions]] = Search(
    draws_models=True,
    may_decline=False,
    keeps_replies=True,
    model_classes=model_classes,
    chunked_layers=("window",) * 3 + ("attention",),
    further_layers=(("conv", "attention") * 2, ("window",) * 2),
    asks={"seed": 0},
    finds_again=lambda flags: int(
        flags.draft_model is None
        and flags.prompt_cache_size >= 10
        and flags.prompt_cache_bytes is None
    ),
    guide=_guide,
    laws=MlxLaws,
    draft_flag="draft_model",
    hunted=(
        {},
        {"prompt_concurrency": 2, "prefill_step_size": 8},
        {"prompt_concurrency": 2, "prefill_step_size": 4},
    ),
    corners=(Corner(), Corner(window=16, layers=frozenset({"window"}), replies=24, crowd=True)),
    scopes=(
        Scope(
            flags={"prompt_cache_size": 2, "prefill_step_size": 4},
            lengths=(1, 4, 5),
            acts=(*ACTS, "together"),
            window=4,
        ),
    ),
    incidents=("arrival",),
    exercised={
        "prompt-cache-evicted": "eviction",
        "store-trimmed": "eviction",
        "insertion": "save",
        "worker-died": "worker death",
    },
)


def above(
    *scopes: Scope, guide: Callable[[PrefixCacheRules], Guide], laws: type[MlxLaws]
) -> Search[MlxRules, MlxOptions]:
    """What a search draws for a server over these caches: no drafter, no flags of its own."""
    return replace(
        SEARCH,
        draws_models=False,
        finds_again=lambda _: 0,
        guide=lambda rules, _: guide(there_is(rules.server.prefix_cache)),
        laws=laws,
        draft_flag="",
        hunted=({},),
        scopes=scopes,
    )
