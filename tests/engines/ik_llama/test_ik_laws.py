"""Laws of each request, and of slots and memory, which a search checks on ik_llama.cpp's server."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cachesim.engines.family import Profile, family_of
from cachesim.engines.ik_llama import vocabulary
from cachesim.engines.ik_llama.search import IkLaws
from cachesim.engines.ik_llama.server import IkLlama
from cachesim.engines.ik_llama.speculative import StrictTailCompanion
from cachesim.engines.seen import Seen
from cachesim.errors import ContractError
from cachesim.play.session import Session
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step
from cachesim.testing.workloads import Shape
from cachesim.typed import there_is
from tests.engines.seen_kit import changed, found, further, replied, seen_of, without

FAMILY = family_of("ik_llama.cpp")
PROMPT = tuple(range(265, 400))
OTHER = tuple(range(400, 500))


@pytest.mark.parametrize("release", FAMILY.names())
@pytest.mark.parametrize(("model", "number"), [("dense", 2), ("hybrid", 1), ("hybrid-mtp", 3)])
def test_no_release_breaks_one(release: str, model: str, number: int) -> None:
    findings = found(f"ik_llama.cpp@{release}", model, number, Shape(incidents=True, chats=True))

    assert [] == [finding for finding in findings if finding.kind == "broken invariant"]


class Played:
    """Requests one after the other; the last one as the laws read it."""

    def __init__(
        self,
        model: str,
        *prompts: Sequence[int],
        drafts: tuple[tuple[int, ...], ...] = ((502, 503), (505, 507)),
        reply: tuple[int, ...] = tuple(range(501, 507)),
        **options: Any,
    ) -> None:
        flags = {"ctx_size": 512, "batch_size": 64, "ctx_checkpoints_interval": 16, **options}
        scenario = Scenario(
            format=FORMAT,
            name="laws",
            model=Model(preset=model),
            engine=Server(name="ik_llama.cpp", profiles=("8337e4cd3",), options=flags),
            step=tuple(
                Step(
                    name=f"r{number}",
                    prompt=tuple(prompt),
                    reply=reply,
                    drafts=drafts if "companion" in options else None,
                )
                for number, prompt in enumerate(prompts)
            ),
        )
        profile = Profile.parse("ik_llama.cpp@8337e4cd3")
        session = Session(scenario, profile, arithmetic="counts")
        assert isinstance(session.engine, IkLlama)
        self.server = session.engine
        self.laws = IkLaws(self.server)
        for number, record in enumerate(session.run(), 1):
            reply = there_is(record.reply)
            self.seen = seen_of(reply, record.events, forced=reply.generated)
            if number < len(prompts):
                assert self.laws.broken(self.seen) is None

    def broken(self) -> str:
        """The law that the last request breaks."""
        breach = self.laws.broken(self.seen)
        return "" if breach is None else breach.detail


def of_last(change: Callable[[Seen], Seen]) -> Callable[[Played], None]:
    """Change the last request, as the laws read it."""

    def apply(played: Played) -> None:
        played.seen = change(played.seen)

    return apply


def lost_cell(played: Played) -> None:
    played.server.primary.cells.seq_rm(played.server.slots[0].id, 3, 4)


def other_list(played: Played) -> None:
    played.server.slots[0].cache_tokens[-1] += 1


def companion_of_other_length(played: Played) -> None:
    assert isinstance(played.server.companion, StrictTailCompanion)
    played.server.companion.tail = 20


def loaded_entry(played: Played) -> None:
    of_last(further(vocabulary.PromptLoaded(entry=0, n_tokens=9, similarity=0.5)))(played)
    played.laws._entries += 1


Change = Callable[[Played], None]
SAVED = vocabulary.PromptSaved(n_tokens=9, size=9, checkpoints=0)
SHIFTED = vocabulary.ContextShifted(n_keep=0, n_discard=9, n_past=20, removed=9)
REFUSED = vocabulary.CheckpointRefused(pos_min=5, pos_max=5, thold=9)
RESET = vocabulary.CheckpointReset(n_past=10, pos_min=3, thold=9)
NO_ROOM = vocabulary.CompanionRefused(position=0, tokens=9)
DRAFTS = {"companion": "strict_tail", "draft_max": 2}


@pytest.mark.parametrize(
    ("model", "options", "change", "detail"),
    [
        ("dense", {}, of_last(changed(vocabulary.SlotSelected, similarity=0.0)),
         "a slot with similarity 0.0 is"),
        ("dense", {}, of_last(changed(vocabulary.SlotSelected, by="least recently used")),
         "no slot is similar"),
        ("dense", {}, of_last(changed(vocabulary.SlotSelected, f_keep=0.0)),
         "0.0 of a list would be kept, of"),
        ("dense", {}, of_last(changed(vocabulary.SlotSelected, f_keep=0.4)),
         "0.4 of a list would be kept, of"),
        ("dense", {}, loaded_entry, "an entry with similarity 0.5 is loaded"),
        ("dense", {}, of_last(further(SAVED)), "a list of which "),
        ("dense", {}, of_last(replied(processed=1)), "131 of 135 tokens are read"),
        ("dense", {}, of_last(further(SHIFTED)), "a shift keeps 0 of 29 tokens, drops 9"),
        ("dense", {}, of_last(changed(vocabulary.SequenceTrimmed, p0=3)),
         "130 tokens are cached, the slot is cut"),
        ("dense", {}, other_list, "slot 0 lists other tokens than were written from 130 on"),
        ("dense", {}, lost_cell, "slot 0 lists 140 tokens and has cells at"),
        ("hybrid", {}, of_last(further(REFUSED)), "a checkpoint at 5 is refused, below 9"),
        ("hybrid", {}, of_last(further(RESET)), "a memory from 3 on is reset, below 9"),
        ("hybrid", {}, of_last(without(vocabulary.CheckpointCreated)),
         "checkpoints are saved of [] tokens, not of ["),
        ("dense", DRAFTS, of_last(further(NO_ROOM)), "an empty companion refuses the beginning"),
        ("dense", DRAFTS, companion_of_other_length, "the companion ends at"),
        ("dense", DRAFTS, of_last(changed(vocabulary.DraftVerified, accepted=3)),
         "3 of 2 drafts are accepted"),
        ("dense", DRAFTS, of_last(changed(vocabulary.DraftVerified, accepted=0)),
         "drafts are verified as [(2, 0)"),
    ],
)  # fmt: skip
def test_each_law_can_be_broken(
    model: str, options: dict[str, Any], change: Change, detail: str
) -> None:
    prompts = PROMPT[:130], PROMPT
    played = Played(model, *prompts, **options)
    change(played)

    assert detail == played.broken()[: len(detail)]


def test_an_entry_that_is_more_similar_than_the_list_is_loaded() -> None:
    played = Played("dense", PROMPT, OTHER)
    [entry] = played.server.cache.entries
    entry.tokens = list(OTHER)

    assert played.broken().startswith("an entry with similarity 1.0 is left for 0.0")


def test_a_slot_that_was_not_idle_for_longest_is_found() -> None:
    played = Played("dense", PROMPT, parallel=2, slot_prompt_similarity=0.0)
    played.laws._used[0] = 9

    assert "slot 0 is not the one that is idle for longest" == played.broken()


def test_a_closed_block_that_is_compared_is_found() -> None:
    """Token 510 opens a reasoning part, 511 closes it."""
    played = Played("dense", PROMPT, chat_template="strip-reasoning")
    prompt = (*PROMPT[:2], 510, 300, 511, 301)

    assert [] == list(played.laws._without_reasoning(prompt, (*PROMPT[:2], 301)))
    assert (
        "'[265][266]<think>[300]</think>[301]' is compared, without reasoning it is "
        "'[265][266][301]'"
    ) == next(played.laws._without_reasoning(prompt, prompt))


def free_cell(server: IkLlama) -> None:
    server.primary.cells.shift[-1] = 1


def other_key(server: IkLlama) -> None:
    server.primary.cells.born[2] += 1


def full_state(server: IkLlama) -> None:
    [first, *_] = server.slots[0].checkpoints
    state = server.primary.save(server.slots[0].id, partial=False)
    server.slots[0].checkpoints[0] = replace(first, state=state)


def other_size(server: IkLlama) -> None:
    [first, *_] = server.slots[0].checkpoints
    server.slots[0].checkpoints[0] = replace(first, state=replace(first.state, size=9))


def other_order(server: IkLlama) -> None:
    server.slots[0].checkpoints.reverse()


@pytest.mark.parametrize(
    ("model", "change", "detail"),
    [
        ("dense", free_cell, "a free cell has a key or a shift"),
        ("dense", other_key, "keys of 1 cells are not rotated to their positions"),
        ("hybrid", full_state, "a saved sequence has other layers than the model"),
        ("hybrid", other_size, "a saved sequence has "),
        ("hybrid", other_order, "a checkpoint of "),
    ],
)
def test_a_disagreement_of_cells_or_states_is_found(
    model: str, change: Callable[[IkLlama], None], detail: str
) -> None:
    server = Played(model, PROMPT).server
    server.check_integrity()
    change(server)

    with pytest.raises(ContractError, match=f"ik_llama.cpp: {detail}"):
        server.check_integrity()


def test_an_entry_of_the_prompt_cache_is_checked() -> None:
    server = Played("dense", PROMPT, OTHER).server
    [entry] = server.cache.entries
    server.check_integrity()
    entry.pos_min += 1  # type: ignore[assignment]

    with pytest.raises(ContractError, match="an entry from 1 on has a state from 0 on"):
        server.check_integrity()


def test_a_rollback_of_a_draft_longer_than_a_batch_leaves_no_account_to_check() -> None:
    """An oddity of upstream's: the position of the cell is below 0, though a slot owns it."""
    options = {"companion": "attn", "draft_max": 20, "batch_size": 16}
    drafts, reply = (tuple(range(480, 500)),), tuple(range(440, 470))
    server = Played("hybrid-mtp", PROMPT[:1], drafts=drafts, reply=reply, **options).server

    assert server.primary.cells.pos.min() < -1
    server.check_integrity()
