"""The Marconi engine: requests in sequence, from lookup to insertion."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cachesim.engines import base
from cachesim.engines.base import Ticket
from cachesim.engines.held import Amounts, Held
from cachesim.engines.job import SampledJob as Job
from cachesim.engines.job import SerialEngine
from cachesim.engines.marconi import vocabulary
from cachesim.engines.marconi.account import Account
from cachesim.engines.marconi.observe import amounts, held, snapshot
from cachesim.engines.marconi.options import MarconiOptions
from cachesim.engines.marconi.rules import Rules
from cachesim.engines.marconi.tree import Node, Tree
from cachesim.errors import OptionError
from cachesim.model.arithmetic import Network
from cachesim.model.counts import NOWHERE
from cachesim.model.store import BLOCK, Frame, Lanes, Ubatch
from cachesim.units import Array, Count, Token


@dataclass(slots=True)
class Content:
    """Content of a node: keys and values of its tokens, the state at its end."""

    keys: dict[int, tuple[Array, Array]]
    state: dict[int, Array]

    def parted(self, length: int) -> "tuple[Content, Content]":
        """Split after `length` tokens; the first part has no state."""
        upper = {layer: (k[:length], v[:length]) for layer, (k, v) in self.keys.items()}
        lower = {layer: (k[length:], v[length:]) for layer, (k, v) in self.keys.items()}
        return Content(upper, {}), Content(lower, self.state)

    def before(self, other: "Content") -> "Content":
        """The content of a node merged with its child."""
        both = {
            layer: (
                np.concatenate((k, other.keys[layer][0])),
                np.concatenate((v, other.keys[layer][1])),
            )
            for layer, (k, v) in self.keys.items()
        }
        return Content(both, other.state)


@dataclass(slots=True)
class Memory:
    """The memory of the running request: a network's `Store`, from position 0 on."""

    network: Network
    longest: int
    computes: bool  # without a network there are no keys to keep
    planes: int = 1
    length: int = 0
    keys: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    state: dict[int, Array] = field(default_factory=dict)
    windows: dict[int, int] = field(default_factory=dict)  # of the layers that have one
    count: int = 0  # tokens of the current ubatch

    def __post_init__(self) -> None:
        capacity = -(-self.longest // BLOCK) * BLOCK
        for shape in self.network.shapes:
            if shape.place == "recurrent":
                self.state[shape.layer] = np.zeros(shape.row, shape.dtype)
            elif self.computes:
                if shape.place == "window":
                    self.windows[shape.layer] = self.network.spec.window
                self.keys[shape.layer] = (
                    np.zeros((capacity, *shape.key), shape.dtype),
                    np.zeros((capacity, *shape.value), shape.dtype),
                )

    def load(self, nodes: list[Node]) -> None:
        """Load the matched nodes: the keys of all, the state of the last."""
        for node in nodes:
            start, end = self.length, self.length + len(node.key)
            for layer, (keys, values) in node.content.keys.items():
                held_keys, held_values = self.keys[layer]
                held_keys[start:end], held_values[start:end] = keys, values
            self.length = end
        if nodes:
            self.state = dict(nodes[-1].content.state)  # a row is replaced, never written to

    def content(self, start: int, end: int, state: dict[int, Array]) -> Content:
        """Content of a node of tokens `[start, end)`."""
        keys = {
            layer: (k[start:end].copy(), v[start:end].copy()) for layer, (k, v) in self.keys.items()
        }
        return Content(keys, state)

    def saved(self) -> dict[int, Array]:
        """The running state, which later ubatches replace and never write to."""
        return dict(self.state)

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Write the ubatch's keys and values, then return those of the sequence."""
        start, end = self.length, self.length + self.count
        held_keys, held_values = self.keys[layer]
        held_keys[start:end], held_values[start:end] = keys, values
        frame = Frame.of_run(start, end, self.windows.get(layer, 0))
        first = int(frame.positions[0])
        shown = slice(first, first + len(frame.positions))
        return (frame.lane(held_keys[shown], held_values[shown]),)

    def states(self, layer: int) -> Array:
        """The running state."""
        return self.state[layer][None].copy()

    def keep_states(self, layer: int, states: Array) -> None:
        """Store the state after the ubatch."""
        self.state[layer] = states[0, 0].copy()


LONGEST = 1 << 17
"""Maximum tokens of a request."""


class Marconi(SerialEngine[Rules, MarconiOptions]):
    """A tree under a policy, with real keys and states in its nodes. Follows `replay_trace`."""

    def _set_up(self) -> None:
        self.account = Account()
        self._start()

    def _start(self) -> None:
        self.tree = Tree(self.options, self.rules)
        self.tree.on_deleted = self._deleted
        self.tree.on_merged = self._merged

    # -- requests ----------------------------------------------------------------------------------

    def submit(self, request: base.Request) -> Ticket:
        cache_prompt = not request.cache_prompt
        self._check(request, drafts=request.drafts is not None, cache_prompt=cache_prompt)
        self._fields(request)
        limit = request.predict if request.predict >= 0 else 16
        if request.reply is not None:
            limit = min(limit, len(request.reply)) if request.predict >= 0 else len(request.reply)
        if limit < 1:
            raise OptionError("a request generates at least 1 token: let it")
        ticket = self._jobs.ticket()
        job = Job(ticket=ticket, prompt=request.prompt, limit=limit, forced=request.reply)
        self._jobs.append(job)
        if len(request.prompt) + limit > LONGEST:
            job.end("BadRequestError")
        return ticket

    def _empty(self) -> None:
        self._start()

    # -- one request -------------------------------------------------------------------------------

    @property
    def _right(self) -> bool:
        """True if one token is left to compute, and only fed tokens are kept.

        Trap: the artifact counts a whole prompt as reused, and the last sampled token as kept.
        """
        return self.options.leaves_last_token

    def _serve(self, job: Job) -> None:
        job.prompt = prompt = tuple(job.prompt)  # keys are cut and compared: a rope's are slow
        # Trap: the artifact counts a whole prompt as reused, with nothing left to compute.
        query = prompt[:-1] if self._right else prompt
        match = self.tree.look_up(query)
        job.cached = Count(match.reusable)
        job.ledger = self.account.of(prompt, match, self.tree, whole=not self._right)
        self._emit(
            vocabulary.PrefixMatched(
                task=int(job.ticket), cached=Count(match.reusable), agreed=Count(match.agreed)
            )
        )
        memory = Memory(self.network, len(prompt) + job.limit, self.computes)
        usable = [node for node in match.nodes if node.content is not None]
        while usable and sum(len(node.key) for node in usable) >= len(prompt):
            usable.pop()  # the last token is computed for its logits, but the artifact counts it
        memory.load(usable)
        states: dict[int, dict[int, Array]] = {}
        tokens = list(job.prompt)
        # The branch is where the next request with this prefix resumes, so the prefill stops there
        # once.
        stops = {match.agreed} if match.branches else set()
        for stop in sorted({end for end in stops if memory.length < end < len(tokens)}):
            self._piece(memory, tokens[memory.length : stop], wanted=False)
            states[stop] = memory.saved()
        row = self._piece(memory, tokens[memory.length :], wanted=True)
        states[memory.length] = memory.saved()
        for index in range(job.limit):
            job.rows.append(row)
            job.sampled.append(Token(self._token(job, index, row)))
            tokens.append(job.sampled[-1])
            # The last sampled token is never fed; the artifact counts it as kept, so it is fed for
            # that.
            if index + 1 < job.limit or not self._right:
                row = self._piece(memory, tokens[memory.length :], wanted=True)
                states[memory.length] = memory.saved()
        self._keep(job, memory, states)

    def _piece(self, memory: Memory, tokens: list[Token], *, wanted: bool) -> Array:
        memory.count = len(tokens)
        ubatch = Ubatch(
            tokens=np.array(tokens, np.int64),
            positions=np.arange(memory.length, memory.length + len(tokens), dtype=np.int64),
            outputs=np.array([len(tokens) - 1] if wanted else [], np.int64),
        )
        logits = self.network.run(ubatch, memory if self.computes else NOWHERE).logits
        memory.length += len(tokens)
        row: Array = logits[-1] if wanted else logits
        return row

    def _keep(self, job: Job, memory: Memory, states: dict[int, dict[int, Array]]) -> None:
        tokens = (*job.prompt, *job.generated)[: memory.length]
        self.account.learn(tokens)
        asked = job.prompt
        leaf, branch = self.tree.insert(asked, tokens, int(job.ticket))
        if branch is not None:
            self._fill_branch(branch, states)
            self._emit(vocabulary.BranchSaved(task=int(job.ticket), tokens=Count(branch.end)))
        if leaf.content is None and leaf is not self.tree.root:
            end = leaf.end
            start = end - len(leaf.key)
            leaf.content = memory.content(start, end, states.get(end) or memory.saved())
            self._emit(vocabulary.SequenceKept(task=int(job.ticket), tokens=Count(end)))

    def _fill_branch(self, branch: Node, states: dict[int, dict[int, Array]]) -> None:
        """Split the content of a divided edge, and set the state at the branch.

        A state that this prefill did not pass is recomputed from the root, as in the paper's second
        pass.
        """
        [lower] = [node for node in branch.children.values() if node.content is not None][:1]
        end = branch.end
        whole: Content = lower.content
        upper, lower.content = whole.parted(len(branch.key))
        # Above the matched state this prefill did not pass: a second pass computes it.
        upper.state = states[end] if end in states else self._second_pass(branch)
        branch.content = upper

    def _second_pass(self, branch: Node) -> dict[int, Array]:
        tokens = [token for node in branch.path() for token in node.key]
        memory = Memory(self.network, len(tokens), self.computes)
        self._piece(memory, tokens, wanted=False)
        return memory.saved()

    # -- events ------------------------------------------------------------------------------------

    def remember(self, most: int) -> None:
        self.account.computed.remember(most)

    def _deleted(self, node: Node) -> None:
        own = Count(len(node.key))
        self._emit(vocabulary.NodeEvicted(tokens=Count(node.end), own=own))

    def _merged(self, node: Node) -> None:
        """Prepend an inner node's keys to its child's before the merge."""
        [child] = node.children.values()
        if node.content is not None and child.content is not None:
            child.content = node.content.before(child.content)
        self._emit(vocabulary.StateEvicted(tokens=Count(node.end)))

    # -- inspection --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        return snapshot(self.tree)

    def held(self) -> Held:
        return held(self.tree, self.network)

    def amounts(self) -> Amounts:
        return amounts(self.tree)

    def check_integrity(self) -> None:
        self.tree.check()
