"""mlx-lm's server as an engine: requests in, replies and events out."""

from typing import Any

from cachesim.engines.base import Request, Ticket
from cachesim.engines.held import Amounts, Held, Texts
from cachesim.engines.job import JobEngine
from cachesim.engines.mlx_lm import observe
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import PAD
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.mlx_lm.server.request import Job, job_of
from cachesim.engines.mlx_lm.server.serving import Serve
from cachesim.engines.mlx_lm.server.single import serve_single
from cachesim.engines.mlx_lm.server.thread import ResponseGenerator
from cachesim.engines.mlx_lm.store.lru_prompt_cache import LRUPromptCache
from cachesim.engines.mlx_lm.store.snapshot_prompt_cache import SnapshotPromptCache
from cachesim.engines.mlx_lm.vocabulary import ModelCalled
from cachesim.errors import OptionError
from cachesim.model.arithmetic import Network
from cachesim.model.build import arithmetic_of, build
from cachesim.model.trace import Traced


class MlxLm(JobEngine[MlxRules, MlxOptions, Job]):
    """`mlx_lm.server` at one release."""

    padding = PAD

    def _set_up(self) -> None:
        self.tokenizer = self.options.chat_tokenizer(self.network.spec)
        self.models = {name: self._forward(network) for name, network in self.networks.items()}
        self.server = self._started()

    def _forward(self, network: Network) -> Forward:
        if self.options.provenance and not isinstance(network, Traced):
            network = Traced(network)
        return self._untraced(network)

    def _untraced(self, network: Network) -> Forward:
        return Forward(
            network,
            self.rules.caches,
            recurrent=self.rules.of_class(family_of(network.spec)),
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
            cache=self._prompt_cache(),
            serve=self._serve(),
        )

    def _prompt_cache(self) -> LRUPromptCache:
        """The store of the server; one that is built on mlx-lm has its own."""
        size, snapshots = self.options.prompt_cache_size, self.rules.server.snapshots
        if snapshots is not None:
            return SnapshotPromptCache(self.rules.store, snapshots, size)
        return LRUPromptCache(self.rules.store, size)

    def _serve(self) -> Serve:
        """How the server answers a request that it serves alone."""
        return serve_single

    def restart(self) -> None:
        """Restart the server; what it holds is lost."""
        if not all(job.done for job in self._jobs):
            raise OptionError("the server is busy; let it finish first")
        self.server = self._started()

    def sleep(self) -> None:
        """Refuse it: the server has no idle state."""
        raise OptionError("mlx-lm's server never sleeps: write 'restart'")

    def _draft(self) -> Forward | None:
        """The draft model or None; its states are not traced."""
        spec = self.options.draft_spec(self.network.spec)
        if spec is not None and self.rules.server.prefix_cache is not None:
            raise OptionError("a server with a prefix cache of its own has no draft_model here")
        return None if spec is None else self._untraced(build(spec, arithmetic_of(self.network)))

    def _emit_call(self, rows: int, columns: int) -> None:
        self._emit(ModelCalled(rows=rows, columns=columns))

    def submit(self, request: Request) -> Ticket:
        ticket = self._jobs.ticket()
        self._check_images(request)
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

    def _check_images(self, request: Request) -> None:
        """Refuse images where upstream's server does not read them, or not as here."""
        own, draft = self.rules.server, self.options.draft_model
        reads = own.reads_images and own.snapshots is None
        if request.images and own.prefix_cache is not None:
            raise OptionError("images in this server are not simulated: leave them out")
        if request.images and reads and draft is not None:
            raise OptionError(
                "images beside a draft model are not simulated: leave draft_model out"
            )
        if request.images and not reads:
            raise OptionError(
                "this release reads no images: name a later one of mlx-lm's own server"
            )

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
        return observe.snapshot(self.server)

    def held(self) -> Held:
        return observe.held(
            self.server.store, {n: model.network for n, model in self.models.items()}
        )

    def texts(self) -> Texts:
        return observe.texts(self.server.store) if len(self.networks) == 1 else Texts()

    def amounts(self) -> Amounts:
        return observe.amounts(self.server.store)

    def check_integrity(self) -> None:
        observe.check_books(self.server)
