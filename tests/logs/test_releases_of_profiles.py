"""The release of a profile, with patches that are laid over it and patches that are taken back."""

import pytest

from cachesim.cli.main import main
from cachesim.lab.logs.other import release_of


@pytest.mark.parametrize(
    ("profile", "release"),
    [
        ("llama.cpp@b8672", "b8672"),
        ("llama.cpp@b9538+24143", "b9538"),
        ("llama.cpp@b8672-16382", "b8672"),
        ("llama.cpp@b8672-12161-14177", "b8672"),
        ("mlx-lm@0.31.1-main+1006", "0.31.1-main"),
    ],
)
def test_the_release_is_told_from_its_patches(profile: str, release: str) -> None:
    assert release == release_of(profile)


def test_a_scenario_is_tuned_on_a_release_without_a_patch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert 0 == main(["why", "--tune", "llama.cpp-16382-no-checkpoints"])
    assert "2 requests replayed" in capsys.readouterr().out
