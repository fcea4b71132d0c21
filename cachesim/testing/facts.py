"""Workloads for models that recall facts: facts where conversations diverge, questions at the end.

Tokens are replaced by their place in the tree of all prompts and replies, so that what was equal
stays equal and what differed still differs:

    a  [ filler ... | name | value 1 | filler ... | name ? ]
    b  [ as in a ..........| value 2 | filler ... | name ? ]

A state of `a` that serves `b` recalls value 1, which `b` never contained.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cachesim.model import recall
from cachesim.scenario.format import Scenario, Step
from cachesim.testing.workloads import FIRST_WORD, LAST_WORD, Draws

SHORT: Final = ((4, 6), (1, 8), (9, 60))
LONG: Final = (61, 700)
"""Ranges of the number of new tokens of a request."""


def neighbours(draws: Draws) -> list[Step]:
    """Conversations behind one system prompt, which branch at its end or off an earlier request."""
    shared = draws.tokens(draws.integer(8, 120), FIRST_WORD, LAST_WORD)
    prompts, steps = [shared], []
    for number in range(draws.integer(3, 6)):
        base, size = draws.one_of(
            [
                (shared, draws.one_of(SHORT)),
                (shared, LONG),
                (draws.one_of(prompts[-2:]), draws.one_of(SHORT)),
            ]
        )
        if base is not shared and draws.integer(0, 3):
            base = base[: draws.integer(len(shared), len(base))]
        new = draws.tokens(draws.integer(*size), FIRST_WORD, LAST_WORD)
        prompts.append(base + new * bool(number))
        reply = draws.tokens(draws.integer(1, 3), FIRST_WORD, LAST_WORD)
        steps.append(Step(name=f"r{number}", prompt=prompts[-1], reply=reply))
    return steps


@dataclass(slots=True)
class Tree:
    """Nodes of all texts, numbered from the root; a node is a token after its prefix."""

    children: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    count: int = 1

    def path(self, tokens: Sequence[int]) -> list[int]:
        """The nodes of a text."""
        path, node = [], 0
        for token in tokens:
            after = self.children[node]
            if token not in after:
                after[token] = self.count
                self.count += 1
            node = after[token]
            path.append(node)
        return path


def with_facts(steps: Sequence[Step], draws: Draws) -> list[Step]:
    """The steps with facts and questions in their prompts and replies."""
    tree = Tree()
    texts = {
        index: (*step.ids, *map(int, step.reply or ()))
        for index, step in enumerate(steps)
        if step.ids
    }
    paths = {index: tree.path(text) for index, text in texts.items()}
    words: dict[int, int] = {}
    names, values = draws.integer(0, len(recall.NAMES) - 1), draws.integer(0, recall.VALUES - 1)
    for node, after in list(tree.children.items()):
        if node and len(after) > 1:
            words[node] = recall.FIRST_NAME + names % len(recall.NAMES)
            names += 1
            for child in after.values():
                if child not in words:
                    words[child] = recall.FIRST_VALUE + values % recall.VALUES
                    values += 1
    for index, path in paths.items():
        *before, name, ask = path[: len(steps[index].ids)] if len(steps[index].ids) > 1 else (0, 0)
        known = [words[node] for node in before if recall.is_name(words.get(node, 0))]
        if name and not {name, ask} & words.keys():
            words[name] = draws.one_of(known or range(recall.FIRST_NAME, recall.FIRST_VALUE))
            words[ask] = recall.ASK
    return [
        _worded(step, texts[index], [words.get(node, 0) for node in paths[index]])
        if index in paths
        else step
        for index, step in enumerate(steps)
    ]


def with_texts(scenario: Scenario) -> Scenario:
    """A scenario with texts of words as prompts, and replies that the model generates."""
    texts = {step.name: recall.text_of(step.ids) for step in scenario.step if step.ids}
    steps = tuple(
        replace(step, prompt=step.name, reply=None, predict=len(step.reply or ()))
        if step.name in texts
        else step
        for step in scenario.step
    )
    return replace(scenario, spans=texts, step=steps)


def _worded(step: Step, text: Sequence[int], words: Sequence[int]) -> Step:
    """The step with its text's words; tokens without one become fillers."""
    fillers = len(recall.FILLERS)
    tokens = tuple(
        word or recall.FIRST_FILLER + token % fillers
        for token, word in zip(text, words, strict=True)
    )
    end = len(step.ids)
    return replace(step, prompt=tokens[:end], reply=step.reply and tokens[end:])
