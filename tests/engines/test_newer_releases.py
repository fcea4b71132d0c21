"""A newer release with any known rules: no sentence about it follows from the rules of another."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from cachesim.engines import FAMILIES
from cachesim.engines.base import Engine
from cachesim.engines.family import Family, register
from cachesim.engines.option import Option
from cachesim.engines.vllm.groups import COMPRESSED_WINDOW
from cachesim.errors import OptionError, SpecError
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec

TOMORROW: Final = "tomorrow"
COMPUTED: Final = "the releases that have it are"
"""In sentences that are composed of `since`, `until` and `arrived`."""


def models(family: Family[Any, Any]) -> Iterator[ModelSpec]:
    yield from (preset(each) for each in ("dense", "hybrid", "swa"))
    if family.plays_chunks:
        yield preset("swa", chunked=True, window=8)
    if family.plays_compressed:
        yield preset("swa", compressed=True, window=COMPRESSED_WINDOW)


def values(option: Option) -> tuple[Any, ...]:
    if option.kind == "yes or no" and not option.patch:
        return (not option.default,)
    return () if option.patch else option.choices or option.tried[1:]


def named(family: Family[Any, Any], text: str) -> list[str]:
    """The releases that a sentence names, by a whole number or by the minor alone."""
    names = {*family.names()} | {name.rpartition(".")[0] for name in family.names()} - {""}
    return re.findall(rf"(?<![\w.])(?:{'|'.join(map(re.escape, names))})(?![\w.]*\w)", text)


def refusals(family: Family[Any, Any]) -> Iterator[str]:
    """What a newest release says to each choice of its options, under the rules of any release."""
    for spec in models(family):
        network = build(spec, "counts")
        for option in (None, *family.table()):
            for value in (None,) if option is None else values(option):
                given = {} if option is None else {option.name: value}
                try:
                    Engine.create(f"{family.name}@{TOMORROW}", model=network, options=given)
                except (OptionError, SpecError) as error:
                    yield f"{spec.layers} {given}: {error}"


@pytest.mark.parametrize("name", FAMILIES)
def test_no_refusal_of_a_newer_release_names_an_older_one(name: str) -> None:
    """A rule's field that stands for a release gives such sentences: write `arrived`, `since`, or
    a field of its own.
    """
    family, newest = FAMILIES[name], FAMILIES[name].releases[-1]
    wrong = []
    try:
        for release in family.releases:
            newer = replace(newest, name=TOMORROW, rules=release.rules, aliases=(), package=None)
            made = replace(family, releases=(*family.releases, newer))
            register(made)
            said = refusals(made)
            wrong += [
                each
                for each in said
                if COMPUTED not in each and named(family, each.partition("}: ")[2])
            ]
    finally:
        register(family)

    assert [] == wrong


def test_a_choice_beside_another_option_has_releases_of_its_own() -> None:
    family = FAMILIES["vllm"]
    chunks = build(preset("swa", chunked=True, window=8), "counts")

    def refused(release: str, **options: Any) -> str:
        try:
            Engine.create(f"vllm@{release}", model=chunks, options={"block_size": 8} | options)
        except OptionError as error:
            return str(error)
        return ""

    older = "vllm@0.32.0 has no connector 'nixl'; the releases that have it are 0.33.0; "
    assert f"{older}beside rings: 0.31.0, 0.32.0, 0.33.0" == refused("0.32.0", connector="nixl")
    assert "0.33.0" == family.having(family.option("connector"), "nixl")[0]
    assert "" == refused("0.32.0", connector="nixl", rings=True)
    assert "" == refused("0.33.0", connector="nixl")
