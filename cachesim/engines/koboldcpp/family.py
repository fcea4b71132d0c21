"""The `Family` of KoboldCpp."""

from typing import Final

from cachesim.engines.family import READ, Family
from cachesim.engines.koboldcpp.options import KoboldOptions
from cachesim.engines.koboldcpp.releases import HISTORY, RELEASES
from cachesim.engines.koboldcpp.rules import KoboldRules

FAMILY: Final[Family[KoboldRules, KoboldOptions]] = Family(
    name="koboldcpp",
    about="KoboldCpp: one sequence, context shift, Smart Context, save slots (SmartCache)",
    repository="LostRuins/koboldcpp",
    evidence=READ,
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    engine=f"{__package__}.server:KoboldCpp",
    releases=RELEASES,
    patches=HISTORY.patches,
    options=KoboldOptions,
    kin=("llama.cpp", "llama-cpp-python"),
    has_slots=False,
)
