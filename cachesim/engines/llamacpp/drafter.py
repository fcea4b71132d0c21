"""The companion of speculative decoding: a second context that follows the first and proposes.

target's batch    tokens    t0  t1  t2         hidden rows  h0  h1  h2
an MTP head gets            t0  t1  t2         beside       h-1 h0  h1      h2 is carried on
a draft model gets          t0  t1  t2
"""

from dataclasses import replace
from typing import Protocol

import numpy as np

from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.capability import SeqRm, seq_rm_type
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.llamacpp.memory.create import ContextParams, create_context
from cachesim.engines.llamacpp.options import Options
from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.errors import OptionError
from cachesim.model.arithmetic import Network
from cachesim.model.build import arithmetic_of, build
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.units import Array, Token


class Drafter(Protocol):
    """A companion: it is given every batch that the target decoded, and proposes tokens."""

    @property
    def context(self) -> Context:
        """Its own context, under the same sequence ids."""
        ...

    @property
    def seq_rm_type(self) -> SeqRm:
        """The ability of its context to remove tokens."""
        ...

    def process(self, batch: Batch, target: Context) -> int:
        """Follow a batch (`common_speculative_process`); what decode returned."""
        ...

    def accept(self, seq: int, accepted: int) -> None:
        """Take the number of accepted draft tokens (`common_speculative_accept`)."""
        ...

    def draft(self, seq: int, last: Token, position: int, most: int) -> list[Token]:
        """Propose what follows `last`, which stands at `position`."""
        ...

    def carried(self, seq: int) -> Array | None:
        """The data carried from batch to batch beside the memory."""
        ...

    def carry(self, seq: int, row: Array) -> None:
        """Put back what it carried."""
        ...


class DraftModel:
    """A smaller model of its own (`draft-simple`)."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.seq_rm_type = seq_rm_type(context)

    def process(self, batch: Batch, target: Context) -> int:
        """Decode the same tokens."""
        del target  # it reads tokens alone
        return self.context.decode(batch)

    def accept(self, seq: int, accepted: int) -> None:
        """Do nothing: no data is carried."""

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
        """Do nothing: no data is carried."""

    def carry(self, seq: int, row: Array) -> None:
        """Do nothing: no data is carried."""


class MtpHead:
    """The target's own extra layer, which reads hidden rows beside tokens (`draft-mtp`).

    The row it carries is not part of a saved prompt; after a load the next draft is merely worse.

    Upstream: `common_speculative_impl_draft_mtp`.
    """

    seq_rm_type = SeqRm.PART  # attention layers only

    def __init__(self, context: Context) -> None:
        self.context = context
        self._rows: dict[int, list[Array]] = {}  # hidden rows of the last batch, per sequence

    def process(self, batch: Batch, target: Context) -> int:
        """Give each token the hidden row of the one before it."""
        rows: dict[int, list[Array]] = {}
        beside = []
        for index, (seq, *_) in enumerate(batch.seqs or ()):
            before = rows.get(seq) or self._rows.get(seq)
            row = target.hidden(index)
            beside.append(np.zeros_like(row) if before is None else before[-1])
            rows.setdefault(seq, []).append(row)
        self._rows.update(rows)
        return self.context.decode(replace(batch, hidden=np.stack(beside)))

    def accept(self, seq: int, accepted: int) -> None:
        """Go on from the row of the last token that was right."""
        del self._rows[seq][accepted + 1 :]

    def draft(self, seq: int, last: Token, position: int, most: int) -> list[Token]:
        """The head's own hidden row is beside each further token."""
        row = self.carried(seq)
        drafted: list[Token] = []
        while row is not None and len(drafted) < most:
            at = position + len(drafted)
            one = Batch.of([last], start=at, seq=seq, hidden=row[None])
            if self.context.decode(one) != 0:
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
        """Set the row that the last batch ended with."""
        self._rows[seq] = [row]


def open_drafter(
    options: Options,
    params: ContextParams,
    network: Network,
    rules: ServerRules,
) -> Drafter | None:
    """The companion that `--spec-type` asks for (`common_speculative_init`)."""
    if not options.drafts:
        if options.model_draft is not None:
            msg = "option 'model_draft' needs 'spec_type'; write spec_type = \"draft-simple\""
            raise OptionError(msg)
        return None
    params = replace(params, n_rs_seq=0)
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
    """A network handed in, or one built from a spec or a preset's name like the target's."""
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
        msg = (
            f"the draft model has {network.spec.vocabulary} tokens and the target "
            f"{target.spec.vocabulary}; they must have the same vocabulary"
        )
        raise OptionError(msg)
    return network
