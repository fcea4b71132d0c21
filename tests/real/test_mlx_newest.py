"""The alarm for mlx-lm: another version may stand in for a release."""

import pytest

from cachesim.lab.real.mlx_lm import commands
from cachesim.lab.real.mlx_lm.process import environment_for, played_by


def test_another_version_stands_in_for_a_release_and_goes_again() -> None:
    own = environment_for("0.32.2")

    with played_by("0.32.2", "0.33.0"):
        assert "mlx-lm==0.33.0" in environment_for("0.32.2").requirements
        assert own.name != environment_for("0.32.2").name

    assert own == environment_for("0.32.2")


@pytest.mark.parametrize(("status", "said"), [(0, "is as 0.32.2"), (1, "is NOT as 0.32.2")])
def test_the_newest_version_is_held_against_the_newest_release(
    status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    class Ready:
        def ready(self) -> None: ...

    def played(flags: commands.MlxFlags, _record: object) -> int:
        asked.append((flags.release, environment_for("0.32.2").requirements[-1]))
        return status

    monkeypatch.setattr(commands, "versions_of", lambda _: ("0.34.0", "0.32.2"))
    monkeypatch.setattr(commands, "environment_for", lambda _: Ready())
    monkeypatch.setattr(commands, "_random", played)

    assert status == commands.real_mlx_lm(flags=commands.MlxFlags(newest=True))

    assert [("0.32.2", "mlx-lm==0.34.0")] == asked
    assert f"mlx-lm 0.34.0 {said}" in capsys.readouterr().out
