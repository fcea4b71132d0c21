"""`python -m tests.proofs`: every wrong answer of a shipped llama.cpp scenario, on the real server.

One line for each step that the simulator calls diverged on a release with a wheel: how far the real
server's answer lies from its own cold one over all tokens, with exact numbers, and how far rounding
goes. 1 where one of them is right, or where a step that should be the same is wrong.
"""

import sys
from collections.abc import Iterator

from rich.console import Console

from cachesim.errors import CachesimError
from cachesim.real.llama_cpp.scenarios import StepPlayed, play_scenario
from cachesim.scenario import load
from tests.wheel_scenarios import PATIENCE, wanted

OUT = Console(highlight=False, soft_wrap=True)


def diverging() -> Iterator[tuple[str, str, tuple[StepPlayed, ...]]]:
    """Scenarios of which a wrong answer is expected on a release that a wheel plays."""
    for file, engine, release in wanted():
        scenario = load(file)
        expected = [each for each in scenario.expect if each.profile in {None, release}]
        if engine != "llama.cpp" or not any("diverged" in (each.answer or "") for each in expected):
            continue
        try:
            yield file.stem, release, play_scenario(scenario, release, patience=PATIENCE)
        except CachesimError as error:
            OUT.print(f"cannot     {file.stem} {release}: {str(error).splitlines()[0]}")


def main() -> int:
    """Say of each step what the real server's answer is."""
    wrong = told = 0
    for name, release, steps in diverging():
        for number, step in enumerate(steps, 1):
            if step.proof is None or step.expected is None:
                unproven = step.expected == "diverged"
                wrong += unproven
                if unproven:
                    OUT.print(f"UNPROVEN   {name} {release}, step {number}")
                continue
            diverges = step.expected == "diverged"
            agrees = diverges == step.proof.wrong
            wrong += not agrees
            told += diverges and agrees
            if diverges or not agrees:
                word = "ok        " if agrees else "DISAGREES "
                OUT.print(
                    f"{word} {name} {release}, step {number}: {step.expected};"
                    f" really {step.proof}, noise {step.proof.noise:.0g}"
                )
    OUT.print(f"{told} diverged answers are wrong on the real server, {wrong} disagree")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
