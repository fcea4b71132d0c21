"""mlx-lm's server as an engine: requests in, replies and events out."""

from collections.abc import Iterator, Mapping
from typing import Any

from cachesim.engines.base import Request, Ticket
from cachesim.engines.held import Amounts, EntryHeld, Held, NodeHeld, Texts, TreeHeld
from cachesim.engines.job import JobEngine
from cachesim.engines.mlx_lm.events import ModelCalled
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.family import MlxRules
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import PAD
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.server.request import Job, job_of
from cachesim.engines.mlx_lm.server.store import ServerStore
from cachesim.engines.mlx_lm.server.store import holdings as proof_of
from cachesim.engines.mlx_lm.server.thread import ResponseGenerator
from cachesim.engines.mlx_lm.store.lru_prompt_cache import CacheEntry
from cachesim.engines.mlx_lm.store.mllm_prompt_cache import has_images
from cachesim.errors import OptionError
from cachesim.model.arithmetic import Network
from cachesim.model.build import arithmetic_of, build
from cachesim.model.trace import Traced
from cachesim.units import Tokens, as_tokens


def held(store: ServerStore, networks: Mapping[Any, Network]) -> Held:
    """Every entry of the store, and the places that hold other tokens than its key's."""
    return Held(
        entries=tuple(
            EntryHeld(
                tokens=as_tokens(tokens),
                checkpoints=0,
                size=int(entry.nbytes),
                kind=entry.cache_type,
                held=_misplaced(networks[model], entry, as_tokens(tokens)),
            )
            for model, tokens, entry in store.cache.trie.items()
        ),
        tree=TreeHeld(name="prompt trie", of="entries", nodes=tuple(_nodes(store, networks))),
    )


def _nodes(store: ServerStore, networks: Mapping[Any, Network]) -> Iterator[NodeHeld]:
    """The nodes of the trie; a leaf without an entry is a remainder of a removed one."""
    for each in store.cache.trie.segments():
        tokens = as_tokens(each.tokens)
        saved = [f"{entry.cache_type} cache".strip() for entry in each.values]
        yield NodeHeld(
            number=each.number,
            parent=each.parent,
            tokens=tokens,
            count=each.count,
            kept="here" if saved or each.leads_on else "gone",
            saved=saved[0] if saved else "",
            held=tuple(
                place
                for entry in each.values
                for place in _misplaced(networks[each.model], entry, tokens)
            ),
        )


def _misplaced(
    network: Network, entry: CacheEntry, tokens: Tokens
) -> tuple[tuple[str, Tokens], ...]:
    if has_images(tokens):  # their tokens are not in the key
        return ()
    return tuple(
        (each.place, each.tokens)
        for each in proof_of(network, entry.prompt_cache, tokens)
        if not each.sound
    )


def texts(store: ServerStore) -> Texts:
    """The keys of the entries without images, whose ids are no tokens of a text."""
    keys = (as_tokens(tokens) for _, tokens, _ in store.cache.trie.items())
    return Texts(entries=tuple(key for key in keys if not has_images(key)))


def amounts(store: ServerStore) -> Amounts:
    """The bytes of all entries; 0 in releases without a byte limit."""
    return Amounts(prompt_cache=store.cache.nbytes if store.cache.rules.limits_bytes else 0)


class MlxLm(JobEngine[MlxRules, MlxOptions, Job]):
    """`mlx_lm.server` at one release."""

    padding = PAD

    def _set_up(self) -> None:
        self.tokenizer = self.options.chat_tokenizer(self.network.spec)
        self.models = {name: self._forward(each) for name, each in self.networks.items()}
        self.server = self._started()

    def _forward(self, network: Network) -> Forward:
        if self.options.provenance and not isinstance(network, Traced):
            network = Traced(network)
        return self._untraced(network)

    def _untraced(self, network: Network) -> Forward:
        return Forward(
            network,
            self.rules.caches,
            recurrent=self.rules.recurrent(family_of(network.spec), self.profile.release),
            element_bytes=self.options.element_bytes,
            on_call=self._emit_call,
        )

    def _started(self) -> ResponseGenerator:
        return ResponseGenerator(
            models=self.models,
            draft=self._draft(),
            options=self.options,
            rules=self.rules,
            emit=self._events.append,
        )

    def restart(self) -> None:
        """Restart the server; files on disk stay (upstream: `_scan_existing_files`)."""
        old = self.server
        if old.rules.memory is not None:
            raise OptionError("the files that this server writes when it ends are not simulated")
        if not all(job.done for job in self._jobs):
            raise OptionError("the server is busy; let it finish first")
        self.server = self._started()
        if old.rules.grid is not None and old.rules.grid.on_disk:
            self.server.store.cache = old.store.cache

    def sleep(self) -> None:
        """Refuse it: the server has no idle state."""
        raise OptionError("mlx-lm's server never sleeps: write 'restart'")

    def _draft(self) -> Forward | None:
        """The draft model or None; its states are not traced."""
        spec = self.options.draft_spec(self.network.spec)
        return None if spec is None else self._untraced(build(spec, arithmetic_of(self.network)))

    def _emit_call(self, rows: int, columns: int) -> None:
        self._emit(ModelCalled(rows=rows, columns=columns))

    def submit(self, request: Request) -> Ticket:
        ticket = self._jobs.ticket()
        job = job_of(
            ticket,
            request,
            self._fields(request),
            tokenizer=self.tokenizer,
            network=self.networks[request.model],
            options=self.options,
            rules=self.server.rules,
        )
        self._jobs.append(job)
        if job.error is None:
            self.server.requests.append(job)
        return ticket

    def step(self) -> bool:
        return self.server.step()

    def n_generated(self, ticket: Ticket) -> int:
        """Number of a request's generated tokens."""
        return len(self._jobs[ticket].generated)

    def trimmed(self, ticket: Ticket) -> int:
        """Number of last tokens that the HTTP side removes: a stop word, before #1072."""
        watcher = self._jobs[ticket].watcher
        return 0 if watcher is None else watcher.met

    def cancel(self, ticket: Ticket) -> None:
        if self.server.rules.notices_leaving:
            self._jobs[ticket].should_stop = True

    def snapshot(self) -> dict[str, Any]:
        batch = self.server.batch
        return {
            "slots": [],
            "prompt_cache": self.server.store.entries(),
            "order": {
                name: [len(tokens) for _, tokens in queue]
                for name, queue in self.server.store.cache.order.queues.items()
            },
            "at_work": [] if batch is None else [int(job.ticket) for job in batch.jobs.values()],
            "queued": [int(job.ticket) for job in self.server.requests],
            "worker": self.server.dead or "alive",
        }

    def held(self) -> Held:
        return held(self.server.store, {n: each.network for n, each in self.models.items()})

    def texts(self) -> Texts:
        return texts(self.server.store) if len(self.networks) == 1 else Texts()

    def amounts(self) -> Amounts:
        return amounts(self.server.store)

    def check_integrity(self) -> None:
        self.server.check_integrity()
