"""A scenario as a unittest for `tests/test_prompt_cache.py` of mlx-lm."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from pprint import pformat
from tempfile import TemporaryDirectory
from typing import Final

from cachesim.engines.mlx_lm.families import family_of
from cachesim.errors import ScenarioError
from cachesim.export.case import Case
from cachesim.export.python_text import span_lines, story, tokens_text
from cachesim.prove.mlx_lm.families import order_of, toy_of
from cachesim.scenario.checks import DEFAULT_PREDICT, spec_of
from cachesim.scenario.prompts import Vocabulary

FILE: Final = '''\
import random
import unittest

import mlx.core as mx
{utils}from mlx_lm.generate import generate_step
from mlx_lm.models import {module}
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.server import LRUPromptCache

{spans}

ARGS = {arguments}


class Test{title}(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        mx.random.seed(0)
        cls.model = {module}.Model({module}.ModelArgs.from_dict(ARGS))
{slow}        mx.eval(cls.model.parameters())

    def setUp(self):
        self.store = LRUPromptCache({size})

    def generate(self, tokens, cache, reply):
        """The likelihoods of each token of a reply that is given."""
        replies = iter(reply)
        rows = generate_step(
            mx.array(tokens), self.model, max_tokens=len(reply), prompt_cache=cache,
            sampler=lambda _: mx.array([next(replies, 0)]),
        )
        return mx.stack([row.reshape(-1) for _, row in rows])

    def complete(self, prompt, reply):
        """What the server does: how many tokens it reuses, and the likelihoods."""
        cache, rest = self.store.fetch_nearest_cache("model", prompt)
        cache = make_prompt_cache(self.model) if cache is None else cache
        rows = self.generate(rest, cache, reply)
        self.store.insert_cache("model", prompt + reply, cache)
        return len(prompt) - len(rest), rows

    def test_{slug}(self):
{why}
{body}


if __name__ == "__main__":
    unittest.main()
'''


SLOW: Final = """\
        for name, weight in tree_flatten(cls.model.parameters()):
            if name.endswith("A_log"):  # a state that forgets slowly
                cls.model.update(tree_unflatten([(name, mx.full(weight.shape, -4.0))]))
"""
UTILS: Final = "from mlx.utils import tree_flatten, tree_unflatten\n"


def unittest_of(case: Case) -> str:
    """The test; an error names what the classes cannot be asked."""
    scenario = case.scenario
    if why := why_not(case):
        raise ScenarioError(f"{scenario.name}: {why}")
    spec = spec_of(scenario.model)
    spans, lines = Vocabulary.of(scenario, spec).spans, list(_steps(case))
    toy = toy_of(
        {"family": family_of(spec).name} | ({"window": spec.window} if spec.window else {}),
        spec.vocabulary,
    )
    with TemporaryDirectory() as folder:
        order = order_of(toy, Path(folder) / "weights.npz")
    arguments = pformat(order["arguments"], width=80, sort_dicts=False).replace("'", '"')
    forgets = set(toy.layers) & {"ssm", "delta"}
    return FILE.format(
        module=order["module"],
        arguments=f"{{\n {arguments[1:-1]},\n}}",
        slow=SLOW if forgets else "",
        utils=UTILS if forgets else "",
        spans=span_lines(case, spans, " ".join(lines)),
        title="".join(part.title() for part in case.slug.split("_")),
        size=scenario.engine.options.get("prompt_cache_size", ""),
        slug=case.slug,
        why=story(case, " " * 8),
        body="\n".join(f"        {line}" for line in lines),
    )


def why_not(case: Case) -> str:
    """The reason for which the classes alone cannot play a scenario; empty where they can."""
    scenario, sent = case.scenario, case.scenario.step[: case.step + 1]
    others = set(scenario.engine.options) - {"prompt_cache_size"}
    reasons: Sequence[tuple[bool, str]] = (
        (any(step.messages for step in sent), "the server renders and cuts its chats"),
        (any(step.with_previous for step in sent), "requests at once are merged by the server"),
        (any(step.do != "complete" for step in sent), "the step is the server's"),
        (bool(scenario.models or scenario.images), "it needs several models, or images"),
        (bool(others), f"{', '.join(sorted(others))}: a flag of the server"),
    )
    return next((why for stands, why in reasons if stands), "")


def _steps(case: Case) -> Iterator[str]:
    for number in range(case.step + 1):
        step, seen = case.scenario.step[number], case.run.steps[number]
        replies = {
            f"{before.name}.reply": str(list(before.generated))
            for before in case.run.steps[:number]
        }
        prompt = tokens_text(step.prompt, step.ids, replies)
        given = step.reply if step.reply is not None else seen.generated
        count = step.predict or DEFAULT_PREDICT
        reply = tokens_text(given, given if isinstance(given, tuple) else (), replies)
        if not given:
            reply = f"[300] * {count}"
        if number < case.step:
            yield f"self.complete({prompt}, {reply})"
        elif case.law == "answer":
            yield f"_, rows = self.complete({prompt}, {reply})"
            yield f"cold = self.generate({prompt}, make_prompt_cache(self.model), {reply})"
            yield "self.assertTrue(mx.allclose(rows, cold, atol=1e-3))"
        elif case.law == "answered":
            yield "try:"
            yield f"    self.complete({prompt}, {reply})"
            yield "except Exception as error:"
            yield '    self.fail(f"no answer: {error!r}")'
        else:
            assertion = "assertGreaterEqual" if case.law == "reuse" else "assertEqual"
            yield f"reused, _ = self.complete({prompt}, {reply})"
            yield f"self.{assertion}(reused, {case.tokens})"
