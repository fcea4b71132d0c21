"""Plan of a recorder: address, upstream server, output, which is written line by line.

A line goes out in one write, at the end of a file that only its owner can read. Where a write
fails or is cut short, what it left is taken back. Only a kill may cut the last line, as the kernel
ends a write between two pages then; readers leave that line out, and print its number.
"""

import ipaddress
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

from cachesim.errors import InputError
from cachesim.files import not_writable, refuse_existing

EXAMPLE: Final = "http://127.0.0.1:8080"
LOOPBACK: Final = ("localhost", "ip6-localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A proxy's validated settings."""

    upstream: str  # without a slash at its end
    host: str
    port: int
    output: Path
    keep_text: bool = False
    tokenize: bool = True  # for exact tokens, of servers that report them


def upstream_of(text: str) -> str:
    """The upstream server's scheme, host, port and path prefix."""
    if "://" not in text:
        text = f"http://{text}"
    parts = _split(text, "--upstream")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InputError(f"--upstream {text}: is no address of a server; write one like {EXAMPLE}")
    if parts.username or parts.password:
        msg = "--upstream: leave name and password out; the client's own headers are passed on"
        raise InputError(msg)
    if parts.query or parts.fragment:
        raise InputError(f"--upstream {text}: ends in ? or #; write one like {EXAMPLE}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def place_of(text: str, *, public: bool) -> tuple[str, int]:
    """Host and port to listen on: `8081`, `127.0.0.1:8081` or `[::1]:8081`."""
    parts = _split(f"//{text}" if not text.isdigit() else f"//127.0.0.1:{text}", "--listen")
    host, port = parts.hostname or "", parts.port
    if not host or port is None or parts.path or parts.username:
        msg = f"--listen {text}: write a port, or a host and a port, as in 127.0.0.1:8081"
        raise InputError(msg)
    if not public and not is_loopback(host):
        raise InputError(
            f"--listen {text}: others could reach this address, and every prompt passes through "
            "here; listen on 127.0.0.1, or add --public if that is what you want"
        )
    return host, port


Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_loopback(host: str) -> bool:
    """True if an address is reachable from this machine only."""
    return host.lower() in LOOPBACK or any(address.is_loopback for address in spelled(host))


def spelled(host: str) -> tuple[Address, ...]:
    """The address that a text spells, whatever its spelling; none for a name.

    Sockets take `127.1`, `2130706433`, `0x7f.1` and `0177.0.0.1` for 127.0.0.1, and so does
    `[::ffff:127.0.0.1]` reach it.
    """
    bare = host.strip("[]").partition("%")[0]
    address: Address
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        try:
            address = ipaddress.IPv4Address(socket.inet_aton(bare))
        except (OSError, UnicodeError):
            return ()
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address,)


def addresses_of(host: str) -> frozenset[Address]:
    """All addresses that connections to a host may go to; none if its name is unknown."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return frozenset(spelled(host))
    return frozenset(address for *_, place in found for address in spelled(str(place[0])))


def is_here(address: Address) -> bool:
    """True for an address of this machine: a socket can be bound to it."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((str(address), 0))
    except OSError:
        return False
    return True


def check_no_circle(upstream: str, host: str, port: int) -> None:
    """Refuse to forward requests to the proxy itself, however the two addresses are spelled.

    A proxy that listens on all addresses (0.0.0.0, ::) is reached at each one of this machine; a
    connection to such an address goes to the loopback.
    """
    parts = urlsplit(upstream)
    theirs = parts.port or (443 if parts.scheme == "https" else 80)
    if not port or theirs != port:
        return
    goals, places = addresses_of(parts.hostname or ""), addresses_of(host)
    local = any(place.is_loopback or place.is_unspecified for place in places)
    everywhere = any(place.is_unspecified for place in places)
    if (
        parts.hostname == host
        or goals & places
        or (local and any(goal.is_loopback or goal.is_unspecified for goal in goals))
        or (everywhere and any(map(is_here, goals)))
    ):
        msg = f"--upstream {upstream} is where the recorder itself listens; give --listen another"
        raise InputError(msg)


def _split(text: str, flag: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port  # read only now, and refused where it is no number
    except ValueError as error:
        raise InputError(f"{flag} {text.removeprefix('//')}: {str(error).lower()}") from None
    return parts


OWNER_ONLY: Final = 0o600


class RecordFile:
    """A writer of lines until it is closed, or the disk is full."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0  # of requests; what is added to one later does not count
        self.problem = ""  # why writing has stopped
        self._size = 0
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._file: int | None = os.open(path, flags, OWNER_ONLY)
        except (OSError, ValueError) as error:
            refuse_existing(path, "--output")
            raise not_writable(path, "--output", error) from None

    def write(self, entry: Mapping[str, Any]) -> bool:
        """Write a line; False once a write failed."""
        if self._file is None:
            return False
        text = json.dumps(entry, ensure_ascii=True, separators=(",", ":"))
        line = text.encode("ascii") + b"\n"
        try:
            written = os.write(self._file, line)
            if written != len(line):
                written += os.write(self._file, line[written:])  # says why, if it fails again
        except OSError as error:
            why = error.strerror or str(error)
            self.problem = why
            if self._file is not None:
                try:
                    os.ftruncate(self._file, self._size)
                except OSError:
                    self.problem = f"{why}; the last line is cut"
            self.close()
            return False
        self._size += len(line)
        self.lines += "adds" not in entry
        return True

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
