"""The companion of speculative decoding: a second context that follows the first and proposes.

target's batch    tokens    t0  t1  t2         hidden rows  h0  h1  h2
an MTP head gets            t0  t1  t2         beside       h-1 h0  h1      h2 is carried over
a draft model gets          t0  t1  t2
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.llamacpp.memory.create import (
    ContextParams,
    SeqRm,
    create_context,
    seq_rm_type,
)
from cachesim.engines.llamacpp.options import Options
from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.errors import OptionError
from cachesim.model.arithmetic import Network
from cachesim.model.build import arithmetic_of, build
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.units import Array, Token

# Drafts from the n-grams of a slot's tokens (`--spec-type ngram-cache`).
#
# text     a b c a b            the continuation of `a b` before: c
# draft              c a b
#
# Upstream: `common_speculative_impl_ngram_cache` and `common/ngram-cache.cpp`, without the files
# of a static and a dynamic cache.

CACHED: Final = "ngram-cache"
"""The `spec_type` of n-gram drafts."""

LONGEST: Final = 4
"""The longest n-gram (`LLAMA_NGRAM_MAX`); the shortest is one token."""

LEAST_SEEN: Final = (2, 2, 1, 1)
"""Minimum occurrences of an n-gram of each length (`draft_min_sample_size_lax`)."""

LEAST_PERCENT: Final = (66, 50, 50, 50)
"""Minimum share of the most frequent next token, in percent (`draft_min_percent_lax`)."""

MOST_DRAFTED: Final = 8
"""Fixed maximum tokens of a draft (`n_draft`)."""

STATIC: Final = 2
"""Minimum length of a text with a draft (`LLAMA_NGRAM_STATIC`)."""


class NgramCache:
    """The continuations of each n-gram in a slot, and the length of the text that they come from.

    Upstream: `common_ngram_cache`, one per slot in `common_speculative_impl_ngram_cache`.
    """

    __slots__ = ("after", "size")

    def __init__(self) -> None:
        self.after: dict[tuple[Token, ...], dict[Token, int]] = {}
        self.size = 0

    def draft(self, tokens: Sequence[Token], sampled: Token, most: int) -> list[Token]:
        """Add the new part of a slot's text, and propose a continuation."""
        # Trap: a new request is not noticed (#27866). A text shorter than the earlier one is not
        # added at all, a longer one from there on.
        if self.size < len(tokens) + 1:
            # Follows `common_ngram_cache_update`; n-grams across the join are not counted (a trap).
            new = [*tokens[self.size :], sampled]
            for length in range(1, LONGEST + 1):
                for end in range(length, len(new)):
                    part = self.after.setdefault(tuple(new[end - length : end]), {})
                    part[new[end]] = part.get(new[end], 0) + 1
            self.size = len(tokens) + 1
        text = [*tokens[-LONGEST:], sampled]
        if len(tokens) + 1 < STATIC:
            return []
        drafted: list[Token] = []
        while len(drafted) < MOST_DRAFTED:
            token = self._following([*text, *drafted])
            if token is None:
                break
            drafted.append(token)
        return drafted[:most]

    def _following(self, text: Sequence[Token]) -> Token | None:
        """The token that follows the longest n-gram often enough. Follows `try_draft`."""
        for length in range(min(LONGEST, len(text)), 0, -1):
            part = self.after.get(tuple(text[-length:]))
            # A shorter n-gram of the same end is tried, because it has been seen more often.
            if part is None:
                continue
            seen = sum(part.values())
            best = max(reversed(part), key=part.__getitem__)  # the newest first among equals
            often_enough = 100 * part[best] >= LEAST_PERCENT[length - 1] * seen
            if seen >= LEAST_SEEN[length - 1] and often_enough:
                return best
        return None


class Drafter(Protocol):
    """A companion: it gets every batch that the target decoded, and proposes tokens."""

    @property
    def context(self) -> Context:
        """The companion's context, under the same sequence ids."""
        ...

    @property
    def seq_rm_type(self) -> SeqRm:
        """The ability of its context to remove tokens."""
        ...

    def process(self, batch: Batch, target: Context) -> int:
        """Follow a batch (`common_speculative_process`); return the result of decode."""
        ...

    def accept(self, seq: int, accepted: int) -> None:
        """Process the number of accepted draft tokens (`common_speculative_accept`)."""
        ...

    def draft(self, seq: int, last: Token, position: int, most: int) -> list[Token]:
        """Propose a continuation of `last`, which is at `position`."""
        ...

    def carried(self, seq: int) -> Array | None:
        """The data carried from batch to batch beside the memory."""
        ...

    def carry(self, seq: int, row: Array) -> None:
        """Restore the carried data."""
        ...


class DraftModel:
    """A smaller model (`draft-simple`)."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.seq_rm_type = seq_rm_type(context)

    def process(self, batch: Batch, target: Context) -> int:
        del target  # it uses tokens only
        return self.context.decode(batch)

    def accept(self, seq: int, accepted: int) -> None:
        """Do nothing: there is no carried data."""

    def draft(self, seq: int, last: Token, position: int, most: int) -> list[Token]:
        """Greedy continuation, token by token, into its own memory."""
        drafted: list[Token] = []
        while len(drafted) < most:
            one = Batch.of([last], start=position + len(drafted), seq=seq)
            if self.context.decode(one) != 0:
                break
            last = self.context.network.sample(self.context.logits(0))
            drafted.append(last)
        return drafted

    def carried(self, seq: int) -> Array | None:
        """Do nothing: there is no carried data."""

    def carry(self, seq: int, row: Array) -> None:
        """Do nothing: there is no carried data."""


class MtpHead:
    """The target's own extra layer, with hidden rows beside tokens (`draft-mtp`).

    Its carried row is not part of a saved prompt; after a load only the next draft is worse.

    Upstream: `common_speculative_impl_draft_mtp`.
    """

    seq_rm_type = SeqRm.PART  # attention layers only

    def __init__(self, context: Context) -> None:
        self.context = context
        self._rows: dict[int, list[Array]] = {}  # hidden rows of the last batch, per sequence

    def process(self, batch: Batch, target: Context) -> int:
        """Decode each token with the hidden row of the one before it."""
        rows: dict[int, list[Array]] = {}
        beside = []
        for index, (seq, *_) in enumerate(batch.seqs or ()):
            # The row of the last batch, if this batch does not hold the token before.
            before = rows.get(seq) or self._rows.get(seq)
            row = target.hidden(index)
            beside.append(np.zeros_like(row) if before is None else before[-1])
            rows.setdefault(seq, []).append(row)
        self._rows.update(rows)
        return self.context.decode(replace(batch, hidden=np.stack(beside)))

    def accept(self, seq: int, accepted: int) -> None:
        """Resume from the row of the last accepted token."""
        del self._rows[seq][accepted + 1 :]

    def draft(self, seq: int, last: Token, position: int, most: int) -> list[Token]:
        """Draft with the head's own hidden row beside each further token."""
        row = self.carried(seq)
        drafted: list[Token] = []
        while row is not None and len(drafted) < most:
            at = position + len(drafted)
            one = Batch.of([last], start=at, seq=seq, hidden=row[None])
            if self.context.decode(one) != 0:
                # A companion without room proposes what it has so far.
                break
            last = self.context.network.sample(self.context.logits(0))
            row = self.context.hidden(0)
            drafted.append(last)
        return drafted

    def carried(self, seq: int) -> Array | None:
        """The target's hidden row of the sequence's last token."""
        rows = self._rows.get(seq)
        return rows[-1] if rows else None

    def carry(self, seq: int, row: Array) -> None:
        """Set the row of the last batch's end."""
        self._rows[seq] = [row]


def open_drafter(
    options: Options, params: ContextParams, network: Network, rules: ServerRules
) -> Drafter | None:
    """The companion of `--spec-type` (`common_speculative_init`)."""
    if not options.drafts:
        if options.model_draft is not None:
            msg = "option 'model_draft' needs 'spec_type'; write spec_type = \"draft-simple\""
            raise OptionError(msg)
        return None
    # Only the target may have planes: a companion's rollback is a cut, or a saved state.
    params = replace(params, n_rs_seq=0)
    # `--cache-type-k` is the target's flag; only until b9538 an MTP head follows it.
    if rules.slots.mtp_is_f16 or options.spec_type != "draft-mtp":
        params = replace(params, type_k="f16", type_v="f16")
    if options.spec_type == "draft-mtp":
        head = network.companion()
        if head is None:
            msg = f"spec_type 'draft-mtp' needs an MTP head, and {network.spec.name!r} has none"
            raise OptionError(msg)
        return MtpHead(create_context(head, params, rules.memory))
    draft = _draft_network(options.model_draft, network)
    return DraftModel(create_context(draft, params, rules.memory))


def _draft_network(model: object, target: Network) -> Network:
    """A given network, or one built in the target's arithmetic from a spec or a preset's name."""
    if model is None:
        msg = "spec_type 'draft-simple' needs 'model_draft': a preset's name, a spec or a network"
        raise OptionError(msg)
    if isinstance(model, str):
        model = preset(model, vocabulary=target.spec.vocabulary, seed=target.spec.seed)
    if isinstance(model, ModelSpec):
        network: Network = build(model, arithmetic_of(target))
    elif isinstance(model, Network):
        network = model
    else:
        msg = f"spec_type 'draft-simple': 'model_draft' is {model!r}; write a preset's name"
        raise OptionError(msg)
    if network.spec.vocabulary != target.spec.vocabulary:
        raise OptionError(
            f"the draft model has {network.spec.vocabulary} tokens and the target "
            f"{target.spec.vocabulary}; they must have the same vocabulary"
        )
    return network
