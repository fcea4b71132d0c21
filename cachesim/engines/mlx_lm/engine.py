"""mlx-lm's server as an engine: requests go in, replies and events come out."""

from typing import Any

from cachesim.engines.base import Request, Ticket
from cachesim.engines.held import Amounts, Held, Texts
from cachesim.engines.job import JobEngine
from cachesim.engines.mlx_lm.events import ModelCalled
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import PAD
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.profiles import MlxRules
from cachesim.engines.mlx_lm.server.held import amounts, held, texts
from cachesim.engines.mlx_lm.server.request import Job, job_of
from cachesim.engines.mlx_lm.server.thread import ResponseGenerator
from cachesim.model.build import arithmetic_of, build
from cachesim.model.trace import Traced


class MlxLm(JobEngine[MlxRules, MlxOptions, Job]):
    """`mlx_lm.server` at one release, with one model."""

    padding = PAD

    def _set_up(self) -> None:
        rules, network = self.rules, self.network
        self.tokenizer = self.options.chat_tokenizer(network.spec.vocabulary)
        if self.options.provenance and not isinstance(network, Traced):
            network = Traced(network)
        self.model = Forward(
            network,
            rules.caches,
            recurrent=rules.recurrent(family_of(network.spec), self.profile.release),
            element_bytes=self.options.element_bytes,
            on_call=self._tell_call,
        )
        self.server = ResponseGenerator(
            model=self.model,
            draft=self._draft(),
            options=self.options,
            rules=rules,
            tell=self._events.append,
        )

    def _draft(self) -> Forward | None:
        """The draft model, where there is one; nobody asks what its states have folded in."""
        spec = self.options.draft_spec(self.network.spec)
        if spec is None:
            return None
        return Forward(
            build(spec, arithmetic_of(self.network)),
            self.rules.caches,
            recurrent=self.rules.recurrent(family_of(spec), self.profile.release),
            element_bytes=self.options.element_bytes,
            on_call=self._tell_call,
        )

    def _tell_call(self, rows: int, columns: int) -> None:
        self._tell(ModelCalled(rows=rows, columns=columns))

    def submit(self, request: Request) -> Ticket:
        ticket = self._jobs.ticket()
        job = job_of(
            ticket,
            request,
            self._fields(request),
            tokenizer=self.tokenizer,
            network=self.network,
            options=self.options,
            rules=self.server.rules,
        )
        self._jobs.append(job)
        if job.error is None:
            self.server.requests.append(job)
        return ticket

    def step(self) -> bool:
        return self.server.step()

    def said(self, ticket: Ticket) -> int:
        """Number of a request's generated tokens."""
        return len(self._jobs[ticket].generated)

    def trimmed(self, ticket: Ticket) -> int:
        """Number of last tokens that the HTTP side holds back: a stop word, before #1072."""
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
        return held(self.server.store, self.model.network)

    def texts(self) -> Texts:
        return texts(self.server.store)

    def amounts(self) -> Amounts:
        return amounts(self.server.store)

    def check_integrity(self) -> None:
        self.server.store.check_integrity()
