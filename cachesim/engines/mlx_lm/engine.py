"""mlx-lm's server as an engine: requests go in, replies and events come out."""

from collections.abc import Mapping, Sequence
from typing import Any

from cachesim.engines.base import ByteStore, Engine, Reply, Request, Ticket
from cachesim.engines.events import Event, EventLog
from cachesim.engines.family import Family
from cachesim.engines.held import Amounts, Held, Texts
from cachesim.engines.job import Jobs
from cachesim.engines.mlx_lm.events import ModelCalled
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import PAD
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.profiles import MlxRules
from cachesim.engines.mlx_lm.server.held import amounts, held, texts
from cachesim.engines.mlx_lm.server.integrity import check_books, entries_of
from cachesim.engines.mlx_lm.server.request import Job, job_of
from cachesim.engines.mlx_lm.server.thread import ResponseGenerator
from cachesim.engines.profile import Profile
from cachesim.model.arithmetic import Network
from cachesim.model.build import arithmetic_of, build
from cachesim.model.trace import Traced


class MlxLm(Engine):
    """`mlx_lm.server` at one release, with one model."""

    padding = PAD

    def __init__(
        self,
        profile: Profile,
        *,
        network: Network,
        options: Mapping[str, Any],
        store: ByteStore | None = None,
        family: Family[MlxRules, MlxOptions] = FAMILY,
    ) -> None:
        del store  # the server saves nothing
        self.profile = profile
        self.network = network
        self._family = family
        rules = family.rules(profile)
        self.options = family.read(profile, options)
        self.tokenizer = self.options.chat_tokenizer(network.spec.vocabulary)
        traced = network if isinstance(network, Traced) else Traced(network)
        self._events = EventLog()
        self.model = Forward(
            traced if self.options.provenance else network,
            rules.caches,
            recurrent=rules.recurrent(family_of(network.spec), profile.release),
            element_bytes=self.options.element_bytes,
            on_call=self._tell_call,
        )
        self.server = ResponseGenerator(
            model=self.model,
            draft=self._draft(rules),
            options=self.options,
            rules=rules,
            tell=self._events.append,
        )
        self._jobs: Jobs[Job] = Jobs()

    def _draft(self, rules: MlxRules) -> Forward | None:
        """The draft model, where there is one; nobody asks what its states have folded in."""
        spec = self.options.draft_spec(self.network.spec)
        if spec is None:
            return None
        return Forward(
            build(spec, arithmetic_of(self.network)),
            rules.caches,
            recurrent=rules.recurrent(family_of(spec), self.profile.release),
            element_bytes=self.options.element_bytes,
            on_call=self._tell_call,
        )

    def _tell_call(self, rows: int, columns: int) -> None:
        self._events.append(ModelCalled(rows=rows, columns=columns))

    @property
    def events(self) -> Sequence[Event]:
        """Everything that happened so far, in order."""
        return self._events

    def submit(self, request: Request) -> Ticket:
        """Put a request into the server's queue; several before a step are admitted together."""
        ticket = self._jobs.ticket()
        job = job_of(
            ticket,
            request,
            self._family.read_fields(self.profile, request.options or {}),
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
        """One turn of the generation thread."""
        return self.server.step()

    def reply(self, ticket: Ticket) -> Reply | None:
        """The reply to a request, once it is finished."""
        job = self._jobs[ticket]
        return job.reply() if job.done else None

    def forget(self, ticket: Ticket) -> None:
        """Nobody will ask for this reply again, nor for the events so far."""
        self._events.clear()
        if self._jobs[ticket].done:
            self._jobs.forget(ticket)

    def said(self, ticket: Ticket) -> int:
        """How many tokens a request has got so far."""
        return len(self._jobs[ticket].generated)

    def trimmed(self, ticket: Ticket) -> int:
        """How many of the last tokens the HTTP side keeps to itself: a stop word, before #1072."""
        watcher = self._jobs[ticket].watcher
        return 0 if watcher is None else watcher.met

    def cancel(self, ticket: Ticket) -> None:
        """The client goes away; a server that notices does when it next has something for it."""
        if self.server.rules.notices_leaving:
            self._jobs[ticket].should_stop = True

    def snapshot(self) -> dict[str, Any]:
        """What the server holds now, as plain data."""
        batch = self.server.batch
        return {
            "slots": [],
            "prompt_cache": entries_of(self.server.store),
            "order": {
                name: [len(tokens) for _, tokens in queue]
                for name, queue in self.server.store.cache.order.queues.items()
            },
            "at_work": [] if batch is None else [int(job.ticket) for job in batch.jobs.values()],
            "queued": [int(job.ticket) for job in self.server.requests],
            "worker": self.server.dead or "alive",
        }

    def held(self) -> Held:
        """The stored prompt caches, with the ledgers of a traced network."""
        return held(self.server.store, self.model.network)

    def texts(self) -> Texts:
        """The keys of the stored prompt caches."""
        return texts(self.server.store)

    def amounts(self) -> Amounts:
        """The bytes of the stored prompt caches."""
        return amounts(self.server.store)

    def check_integrity(self) -> None:
        """Raise ContractError where the server's own books disagree."""
        check_books(self.server.store)
