"""Events as lines: a sign for the tone, then what the event itself says."""

from cachesim.engines.events import Event
from cachesim.engines.llamacpp.events import CheckpointCreated, MemoryCut, PromptCleared
from cachesim.report.consoles import plain_text
from cachesim.report.story import event_lines


def shown(*events: Event) -> list[str]:
    return plain_text(event_lines(events)).splitlines()


def test_a_line_begins_with_a_sign_for_what_it_means_for_the_tokens() -> None:
    made = CheckpointCreated(index=1, most=32, pos_min=3, pos_max=3, n_tokens=4, size=9)
    assert ["  + checkpoint 4[3..3] is saved, 1 of at most 32"] == shown(made)
    assert ["  - memory cannot be cut at position 7"] == shown(
        MemoryCut(slot=0, n_tokens=7, p0=7, removed=False)
    )


def test_what_an_event_means_may_depend_on_its_numbers() -> None:
    full, empty = PromptCleared(slot=0, n_tokens=5), PromptCleared(slot=0, n_tokens=0)
    assert ("loss", "quiet") == (full.loudness(), empty.loudness())


def test_one_token_is_one_token() -> None:
    assert ["  - slot 0 is cleared of 1 token"] == shown(PromptCleared(slot=0, n_tokens=1))


def test_a_long_line_goes_on_below_its_words() -> None:
    lines = shown(MemoryCut(slot=0, n_tokens=int("9" * 60), p0=1, removed=True))
    assert 2 == len(lines)
    assert lines[1].startswith("    ")
