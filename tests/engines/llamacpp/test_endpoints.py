"""Endpoints that share the slots with completions: embeddings, rerank, infill; and failures."""

import csv
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.causes import Candidates, Cause
from cachesim.engines.family import Profile
from cachesim.engines.llamacpp.checkpoints import FROM_START, THRESHOLD, accept_tests
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.errors import ContractError, InputError, OptionError, TokenError, UpstreamAbort
from cachesim.model.adapters import Adapted, adapted_in, deltas
from cachesim.model.build import build
from cachesim.model.network import FloatNetwork
from cachesim.model.presets import preset
from cachesim.model.trace import Traced
from cachesim.play.session import SlotFiles
from cachesim.typed import of_kind, there_is
from cachesim.units import Count, as_tokens
from tests.engines.asking import answer
from tests.engines.llamacpp.play import Play, run


def test_before_21510_a_checkpoint_from_position_0_passes_no_threshold_of_0() -> None:
    found = {
        release: {THRESHOLD, FROM_START}
        & {*accept_tests(FAMILY.release(release).rules.reuse, exact=False, thold=0)}
        for release in ("b8672", "b9093", "b11549")
    }

    assert {"b8672": {THRESHOLD}, "b9093": {FROM_START}, "b11549": {FROM_START}} == found


def named(name: str) -> Cause:
    return Cause(id=name, sentence="words", about="About.")


def test_a_race_ends_with_the_losses_of_those_that_were_best() -> None:
    candidates = Candidates({"one": Count(5), "other": Count(9), "third": Count(2)}, str.upper)
    assert (candidates.ledger.equal, candidates.ledger.equal_with) == (9, "OTHER")
    candidates.rule_out("third", named("never the best"))
    candidates.rule_out("other", named("too old"))
    candidates.settle_on("one", named("unseen"))
    assert [(loss.rule, loss.before, loss.after) for loss in candidates.ledger.losses] == [
        ("too old", 9, 5)
    ]


def test_cells_are_shown_while_the_copies_for_further_completions_wait() -> None:
    network = Traced(build(preset("swa"), "ring"))
    options = {"parallel": 3, "batch_size": 64}
    engine = of_kind(LlamaCpp, Engine.create("llama.cpp@b11549", model=network, options=options))
    prompt = as_tokens(range(265, 365))
    ticket = engine.submit(Request(prompt=prompt, predict=3, completions=3))

    held = [engine.held()]
    while engine.step():
        held.append(engine.held())

    assert [3, 3, 3] == [len(reply.generated) for reply in engine.replies(ticket)]
    streams = [cells.stream for cells in held[-2].cells if cells.part == "attention" and cells.runs]
    assert [0, 1, 2] == streams


def test_an_adapter_is_a_small_delta_on_the_weights_that_feed_the_memory() -> None:
    spec = preset("dense")
    network = Adapted(build(spec), ["A", "B"])
    laid = deltas(spec, "A")
    name = "blk.0.attn_v.weight"

    half = of_kind(FloatNetwork, network.under((0.5, 0.0)))

    plain = of_kind(FloatNetwork, build(spec))
    product = laid[f"{name}.lora_b"].astype(np.float64) @ laid[f"{name}.lora_a"]
    np.testing.assert_allclose(half.weights[name], plain.weights[name] + 0.5 * product, atol=1e-6)
    assert network.under((0.0, 0.0)) is plain
    assert half is network.under((0.5, 0.0))
    assert network is adapted_in(network)
    assert not np.array_equal(deltas(spec, "B")[f"{name}.lora_a"], laid[f"{name}.lora_a"])


def server(release: str = "b11549", model: str = "dense", **options: Any) -> LlamaCpp:
    profile, store = f"llama.cpp@{release}", SlotFiles()
    made = Engine.create(
        profile, model=preset(model), options=options, arithmetic="ring", store=store
    )
    return of_kind(LlamaCpp, made)


def test_no_context_is_the_one_that_the_model_was_trained_with() -> None:
    assert 65_536 == server(ctx_size=0).server.slots[0].n_ctx


@pytest.mark.parametrize(
    ("flags", "since"),  # the wheels' first release that ends as it starts
    [
        ({"parallel": 3, "ubatch_size": 512, "pooling": "mean"}, "b9538"),
        ({"parallel": 6, "ubatch_size": 512, "pooling": "mean"}, "b9538"),
        ({"parallel": 4, "ubatch_size": 510, "pooling": "mean"}, "b9538"),
        ({"parallel": 3, "ctx_size": 256, "pooling": "mean"}, "b9538"),
        ({"parallel": 3, "ubatch_size": 99, "batch_size": 64, "pooling": "mean"}, "b9538"),
        ({"parallel": 4, "ubatch_size": 2, "pooling": "last"}, "b9538"),
        ({"parallel": 4, "batch_size": 3, "embedding": False}, "b9538"),
        ({"parallel": 3, "ubatch_size": 510, "pooling": "mean"}, ""),
        ({"parallel": 3, "ubatch_size": 512, "pooling": "mean", "embedding": False}, ""),
        ({"parallel": 3, "ubatch_size": 512, "pooling": "cls"}, ""),
        ({"parallel": 4, "ubatch_size": 2, "embedding": False}, ""),
    ],
)
def test_a_graph_that_cannot_be_reserved_ends_the_server_at_start_as_on_the_wheels(
    flags: dict[str, Any], since: str
) -> None:
    names = FAMILY.real()
    for release in names:
        ends = bool(since) and names.index(release) >= names.index(since)
        expected = pytest.raises(UpstreamAbort, match="graph_reserve") if ends else nullcontext()
        with expected:
            server(release, **{"embedding": True, **flags})


# Bytes of parked prompts and their checkpoints, beside what the real servers' logs count.
#
# the same requests: the limit in bytes by the bytes of an average token; exact to a byte.
# the same requests: the limit in bytes by the bytes of an average token, so exact to a byte.

FILE: Final = Path(__file__).with_name("parked.csv")
LENGTHS: Final = (100, 700, 300, 1500, 33, 900)
REPLY: Final = as_tokens([300, 301, 302, 303])

Row = tuple[str, str, str, int]


def rows() -> list[Row]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return [(*fields, int(parked)) for *fields, parked in list(csv.reader(file))[1:]]  # type: ignore[misc]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("release", FAMILY.real())
def test_what_is_parked_has_the_bytes_that_the_wheel_counts(release: str) -> None:
    for own, model, types, parked in rows():
        if own == release:
            assert (model, types, parked) == (model, types, room_for(release, model, types))


def room_for(release: str, model: str, types: str) -> int:
    """The capacity of the prompt cache in tokens, by its content after six requests."""
    options: dict[str, object] = {"ctx_size": 8192, "batch_size": 256, "ubatch_size": 64}
    options |= {"cache_type_k": types, "cache_type_v": types}
    if model == "hybrid-mtp":
        options["spec_type"] = "draft-mtp"
    engine = Engine.create(
        f"llama.cpp@{release}", model=preset(model), options=options, arithmetic="counts"
    )
    for number, length in enumerate(LENGTHS):
        prompt = [265 + 40 * number + at % 40 for at in range(length)]
        answer(engine, prompt, len(REPLY), reply=REPLY)
    return there_is(of_kind(LlamaCpp, engine).server.cache).token_limit()


def test_every_release_and_preset_was_measured() -> None:
    measured = {(release, model) for release, model, _, _ in rows()}

    assert set(FAMILY.real()) == {release for release, _ in measured}
    assert {"dense", "swa", "recurrent", "hybrid", "hybrid-delta", "hybrid-swa", "hybrid-mtp"} == {
        model for _, model in measured
    }


# What the server or the simulator refuses, and that a refusal leaves everything as it was.

MAY, JUNE, OCTOBER = ALL = ("llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549")


def create(profile: str = OCTOBER) -> Engine:
    return Engine.create(profile, model=preset("dense"), arithmetic="ring")


def test_older_names_of_a_release_are_the_release() -> None:
    assert Profile.parse("llama.cpp@b11434") == Profile.parse(OCTOBER)
    assert create("llama.cpp@b9509").profile.release == "b9538"
    assert create("llama.cpp@b9094").profile.release == "b9093"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"prompt": as_tokens([1, 512])}, TokenError),
        ({"prompt": as_tokens([-1])}, TokenError),
        ({"prompt": as_tokens([1]), "reply": as_tokens([600])}, TokenError),
        ({"prompt": as_tokens([1]), "drafts": (as_tokens([600]),)}, TokenError),
        ({"prompt": as_tokens([1]), "predict": -2}, OptionError),
        ({"prompt": as_tokens([1]), "completions": 0}, OptionError),
        ({"prompt": as_tokens([1]), "slot": -3}, OptionError),
        ({"prompt": as_tokens([1]), "options": {"n_kep": 1}}, OptionError),
        ({"prompt": as_tokens([1]), "options": {"n_keep": "x"}}, OptionError),
        ({"prompt": as_tokens([1]), "options": {"ignore_eos": 1}}, OptionError),
        ({"prompt": (), "options": {"prompt_string": "yes"}}, OptionError),
        ({"prompt": as_tokens([1]), "options": {"n_discard": -5}}, OptionError),
        ({"prompt": as_tokens([1]), "options": {"message_spans": [{"role": "user"}]}}, OptionError),
        ({"prompt": as_tokens([1]), "options": {"message_spans": [{"role": "user", "start": 9}]}},
         OptionError),
        ({"prompt": as_tokens([1]), "options": {"message_delimiters": [{"role": "user"}]}},
         OptionError),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_and_changes_nothing(
    fields: dict[str, Any], error: type[InputError]
) -> None:
    engine = create()
    before = engine.snapshot()
    with pytest.raises(error):
        engine.submit(Request(**fields))
    assert engine.snapshot() == before
    assert not engine.step()


def test_a_refused_cut_ends_the_process_since_june() -> None:
    """#24891 keeps what only its warning tolerates; without it such a cut is fatal."""
    play = Play("llama.cpp@b9538", "recurrent", ctx_checkpoints=0)
    play.ask(run(range(100)), 4)
    server = play.engine.server
    slot = server.slots[0]
    slot.prompt.keep_first(50)
    with pytest.raises(UpstreamAbort, match="common_memory::seq_rm"):
        server.contexts.seq_rm(slot.id, 50, -1)


def test_books_that_disagree_are_a_broken_contract() -> None:
    play = Play(OCTOBER, "dense")
    play.ask(run(range(100)))
    play.engine.server.slots[0].prompt.tokens.pop()
    with pytest.raises(ContractError, match="99 tokens"):
        play.engine.check_integrity()
