"""Two conversations on one server: one of them is answered with the other one's code.

Run it with `python -m examples.two_codes`; `make run` starts with it.
"""

from cachesim import load, run_scenario
from cachesim.scenario.shipped import shipped_file

NAME = "llama.cpp-two-codes"


def main() -> None:
    """Print the story of the scenario on each profile that it names."""
    scenario = load(shipped_file(NAME))
    print(scenario.about)
    for profile in scenario.engine.profiles:
        step = run_scenario(NAME, profile=profile).steps[-1]
        verdict = {"same": "right", "diverged": "WRONG"}.get(step.answer or "", "not compared")
        print(f"\n{profile}: {step.cached} of {step.prompt_tokens} tokens cached, {verdict}")
        for fact in step.facts:
            if fact.word in {"leak", "kept by"}:
                print(f"  {fact.word:8} {fact.sentence}")
    print()


if __name__ == "__main__":
    main()
