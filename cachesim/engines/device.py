"""The machine of a server: what it picks the defaults of left-out flags by."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from cachesim.engines.option import option
from cachesim.typed import Value


@dataclass(frozen=True, slots=True)
class Device:
    """A machine with one device: what a server asks its driver about."""

    name: str
    about: str
    gib: int  # of memory that the driver reports


_ALL: Final = (
    Device("t4", "16 GB", 15),
    Device("l4", "24 GB", 22),
    Device("l40s", "48 GB", 44),
    Device("a100", "80 GB", 79),
    Device("h100", "80 GB", 79),
    Device("gb10", "DGX Spark, 128 GB shared with the host", 119),
    Device("h200", "141 GB", 139),
    Device("b200", "192 GB", 178),
    Device("cpu", "no GPU", 0),
)

DEVICES: Final = MappingProxyType({device.name: device for device in _ALL})

USUAL: Final = "h100"
"""The machine of a scenario or a trace that names none."""


def device_option(chosen: str, *without: str) -> Value:
    """The option `device` of an engine that chooses these flags by it."""
    kinds = [device for device in _ALL if device.name not in without]
    shown = ", ".join(f"{kind.name}: {kind.about}" for kind in kinds)
    return option(
        "",
        f"the machine, by which the server chooses {chosen} where they are left out ({shown})",
        default=USUAL,
        choices=tuple(kind.name for kind in kinds),
    )
