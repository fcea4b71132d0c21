"""A real `transformers serve`: answers from its paged cache are those without, also over HTTP.

Its answers have no cached counts, so that its own lookup is written down, and compared with the
simulated engine's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

from cachesim import Engine
from cachesim.engines.base import Request
from cachesim.model.presets import preset
from cachesim.probe.connection import Connection, Limits, Meter
from cachesim.probe.target import ServerProcess
from conformance.real.transformers.environments import NEWEST, environment_for
from conformance.servers import TRANSFORMERS_SERVER

SERVING: Final = environment_for(NEWEST, serves=True)
SCRIPT: Final = TRANSFORMERS_SERVER
PAGE, BLOCKS, BATCH, REPLY = 4, 96, 32, 6
BATCHING: Final = (
    f"--continuous-batching --cb-block-size {PAGE} --cb-num-blocks {BLOCKS} "
    f"--cb-max-batch-tokens {BATCH}"
)
FIRST: Final = 4  # the id of w0

pytestmark = [
    pytest.mark.wheel,
    pytest.mark.nightly,
    pytest.mark.skipif(
        not SERVING.is_ready(), reason="fastapi is not installed beside torch: make nightly"
    ),
]


@contextmanager
def served(flags: str) -> Iterator[Connection]:
    server = ServerProcess(f"{SERVING.python} -W ignore {SCRIPT} {{port}} {flags}")
    server.start()
    try:
        yield Connection(server.url, Meter(Limits()))
    finally:
        server.close()


def asked(connection: Connection, prompt: list[str]) -> list[str]:
    """The words of a greedy answer."""
    body = {"prompt": " ".join(prompt), "max_tokens": REPLY, "temperature": 0}
    _, answer = connection.post("/v1/completions", body, REPLY)
    return str(answer["choices"][0]["text"]).split()


def conversations(connection: Connection) -> list[tuple[list[str], list[str]]]:
    """Prompts that grow by the answers, part, differ in a block's last word, and come again."""
    rng, found, held = Random(4), [], [""]
    for turn in range(12):
        base = [] if turn % 4 == 0 else held if turn % 4 < 3 else held[: 2 * PAGE - 1]
        prompt = [*base, *(f"w{rng.randrange(120)}" for _ in range(rng.randint(5, 14)))]
        answer = asked(connection, prompt)
        found.append((prompt, answer))
        held = [*prompt, *answer]
    return [*found, (found[0][0], asked(connection, found[0][0]))]


def test_answers_from_the_paged_cache_are_those_without_and_matches_the_simulated_ones(
    tmp_path: Path,
) -> None:
    lookups = tmp_path / "lookups"
    with served(f"matches={lookups} {BATCHING}") as warm:
        found = conversations(warm)
    with served("--no-continuous-batching") as cold:
        assert [answer for _, answer in found] == [asked(cold, prompt) for prompt, _ in found]

    real = [tuple(map(int, line.split())) for line in lookups.read_text().splitlines()]
    assert real == [
        (len(prompt), each) for (prompt, _), each in zip(found, simulated(found), strict=True)
    ]
    assert 5 <= sum(matched > 0 for _, matched in real)


def simulated(found: list[tuple[list[str], list[str]]]) -> Iterator[int]:
    """Tokens that the simulated server finds for each prompt."""
    options = {"page_size": PAGE, "num_blocks": BLOCKS, "max_batch_tokens": BATCH}
    engine = Engine.create(
        f"transformers@{NEWEST}", model=preset("dense"), options=options, arithmetic="ring"
    )
    for prompt, answer in found:
        tokens, reply = ([FIRST + int(word[1:]) for word in each] for each in (prompt, answer))
        ticket = engine.submit(
            Request(prompt=tuple(tokens), predict=len(reply), reply=tuple(reply))
        )
        engine.run()
        yield int(engine.reply(ticket).cached)


def test_a_hash_without_the_last_token_of_a_block_gives_other_answers() -> None:
    with served(f"bug {BATCHING}") as warm:
        found = conversations(warm)
    with served("--no-continuous-batching") as cold:
        assert [answer for _, answer in found] != [asked(cold, prompt) for prompt, _ in found]
