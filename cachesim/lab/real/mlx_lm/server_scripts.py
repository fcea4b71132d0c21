"""Samplers that say what a workload says; they run in a release's environment."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Json: TypeAlias = Any
Real: TypeAlias = Any  # modules, classes and objects of the release: known only when it runs

FILLER = 20
NEVER_SAID = 21
"""Proposed token after the end of a workload's proposals."""


class Script:
    """A sampler that says what it is told to, whatever the logits are."""

    def __init__(self, mx: Real, tokens: Sequence[int]) -> None:
        self._mx = mx
        self._tokens = list(tokens)
        self.rows: list[list[float]] = []

    def __call__(self, logprobs: Real) -> Real:
        """The next token for one row of the batch; the row it was asked for is kept."""
        at = len(self.rows)
        self.rows.append(logprobs[0].tolist())  # at once: arrays belong to their thread
        said = self._tokens[at] if at < len(self._tokens) else FILLER
        return self._mx.array([said], dtype=self._mx.uint32)


class DraftScript(Script):
    """The same with a draft model: what it proposes step by step, and what the model says."""

    def __init__(self, mx: Real, request: Json, count: int) -> None:
        super().__init__(mx, request["reply"])
        self._drafts, self._limit, self._count = request["drafts"], request["max_tokens"], count
        self._proposed: list[int] = []

    def __call__(self, logprobs: Real) -> Real:
        said = len(self.rows)
        if len(self._proposed) < min(self._limit - said, self._count):
            step = self._drafts[0] if self._drafts else []
            at = len(self._proposed)
            self._proposed.append(step[at] if at < len(step) else NEVER_SAID)
            return self._mx.array(self._proposed[-1:], dtype=self._mx.uint32)
        whole = self._tokens + [FILLER] * (self._limit + self._count + 1)
        tokens = whole[said : said + logprobs.shape[0]]
        equal = zip(tokens, self._proposed, strict=False)
        accepted = next((i for i, (a, b) in enumerate(equal) if a != b), len(self._proposed))
        self.rows += logprobs[: accepted + 1].tolist()
        self._proposed, self._drafts = [], self._drafts[1:]
        return self._mx.array(tokens, dtype=self._mx.uint32)


class BatchScripts:
    """A sampler for a whole batch, as releases before #635 have it: each row says its own."""

    def __init__(self, mx: Real) -> None:
        self._mx = mx
        self.by_uid: dict[int, Script] = {}
        self.uids: Sequence[int] = ()  # the rows that are sampled now
        self.alone: Script | None = None  # of the request that is served alone

    def __call__(self, logprobs: Real) -> Real:
        """The next token of every row, or those of a request that is served alone."""
        if self.alone is not None:
            return self.alone(logprobs)
        said = [self.by_uid[uid](logprobs[i : i + 1]) for i, uid in enumerate(self.uids)]
        return self._mx.concatenate(said)

    def watched(self, kind: Real, current: Callable[[], Script]) -> Real:
        """`BatchGenerator`, whose rows are known whenever it samples."""
        scripts = self

        class Known(kind):  # type: ignore[misc]
            """The release's own, with its rows written down."""

            def insert(self, *args: Real, **more: Real) -> Real:
                uids = super().insert(*args, **more)
                scripts.by_uid.update((uid, current()) for uid in uids)
                return uids

            def _process_prompts(self, prompts: Real) -> Real:
                scripts.uids = [each[0] for each in prompts]
                batch = super()._process_prompts(prompts)
                scripts.uids = ()
                return batch

            def _step(self, *args: Real) -> Real:
                if not scripts.uids:
                    scripts.uids = list(self.active_batch.uids)
                sampled = super()._step(*args)
                scripts.uids = ()
                return sampled

        return Known
