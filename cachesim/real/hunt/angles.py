"""From where a release is searched, so that a common defect does not hide the rarer ones.

Over a release are laid all patches that cure known wrong answers, but one: what is wrong then is
the work of that one defect, however rare. With all of them laid, it is not known yet.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachesim.engines.family import family_of
from cachesim.engines.profile import Profile
from cachesim.model.presets import preset
from cachesim.testing.survey import STATELESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Angle:
    """One way to look at a release."""

    profile: Profile  # the release, and what is laid over it
    model: str
    flags: Mapping[str, Any]

    @property
    def seeks(self) -> str:
        """The one cure that is left out, where one is: what it cures is looked for."""
        left = family_of(self.profile.engine).cures(self.profile)
        return left[0].name if len(left) == 1 and self.profile.patches else ""


def angles(profile: Profile, models: Sequence[str]) -> Iterator[Angle]:
    """Every angle once: each model, with each set of flags; fixes are told apart at default flags.

    Fixes are of checkpoints and saved states: a model with plain attention alone is asked once.
    """
    family = family_of(profile.engine)
    sets = unmasked(profile)
    for flags in family.hunted:
        for patched in dict.fromkeys((sets[0], sets[-1]) if flags else sets):
            for model in models:
                if patched == profile or not set(preset(model).layers) <= STATELESS:
                    yield Angle(profile=patched, model=model, flags=flags)


def unmasked(profile: Profile) -> tuple[Profile, ...]:
    """The release as it is; with all cures but one, for each; with all of them."""
    names = [each.name for each in family_of(profile.engine).cures(profile)]
    without = [[other for other in names if other != each] for each in names]
    laid = [[], *without, names]
    return tuple(dict.fromkeys(profile.with_patches(*each) for each in laid))
