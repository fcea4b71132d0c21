"""`python -m tests.playground [FOLDER]`: the playground in a real browser, one line per check.

It is built as `make docs` builds it and served from this machine. With a folder, pictures are left
there. Where the browser, or the engine's packages, cannot be had, it says so and checks the rest.
"""

import functools
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from tests.browser import FLAGS, SIZES, axe_script, browser_path, equal, holds, text, violations

ROOT: Final = Path(__file__).parents[1]
RESULT: Final = "window.playground.result()"
SLOW: Final = 180_000
"""Milliseconds that loading may take on a busy machine."""


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that prints no line for each of them."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Patient(ThreadingHTTPServer):
    """One that a page may leave while it is being served."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder while it is served."""
    handler = functools.partial(Quiet, directory=str(folder))
    with Patient(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/playground/index.html"
        server.shutdown()


def built(folder: Path) -> bool:
    """Build the page; whether the engine is in it."""
    command = [sys.executable, str(ROOT / "docs" / "make_playground.py"), str(folder)]
    subprocess.run(command, check=True)
    manifest = json.loads((folder / "playground" / "manifest.json").read_text(encoding="utf-8"))
    return "files" in manifest


def printed() -> str:
    """What the command line prints for three requests, in the arithmetic that is exact anywhere."""
    command = ["run", "llama.cpp-three-requests", "--profile", "llama.cpp@b11549"]
    more = ["--arithmetic", "ring", "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "cachesim", *command, *more],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip()


def wait(tab: Any, condition: str = f"{RESULT} !== null") -> None:
    """Until something holds in the page."""
    tab.wait_for_function(condition, timeout=SLOW)


def played(tab: Any) -> None:
    """The story of three requests, its bytes, what follows from a drag, every opening, the link."""
    wait(tab)
    holds("Step C gets a wrong answer" in text(tab, "#verdict"), text(tab, "#verdict"))
    holds("has folded in token" in text(tab, "#cause"), text(tab, "#cause"))
    holds("restored from 1[0..0] of A" in tab.locator("#story").text_content(), "no arrow")
    tab.select_option("#arithmetic", "ring")
    wait(tab, f"JSON.parse({RESULT}.json).runs[0].arithmetic === 'ring'")
    equal(printed(), tab.evaluate(f"{RESULT}.json"))
    say("three requests: the bytes of the command line's JSON")
    tab.get_by_role("checkbox", name="erase-equal").check()
    wait(tab, f"{RESULT}.fate === 'lost'")
    tab.get_by_role("checkbox", name="erase-equal").uncheck()
    wait(tab, f"{RESULT}.fate === 'wrong'")
    say("the patch takes the wrong answer away, and without it it is back")
    tab.get_by_label("length of hello", exact=True).fill("6")
    tab.get_by_label("length of hello", exact=True).press("Tab")
    wait(tab, f"{RESULT}.fate === 'lost'")
    say("one token more in the first request, and the third is right")
    tab.click("#share")
    tab.goto(tab.url)
    tab.reload()
    wait(tab)
    equal("6", tab.get_by_label("length of hello", exact=True).input_value())
    equal("lost", tab.evaluate(f"{RESULT}.fate"))
    say("a link opens the same run")
    with tab.expect_download() as kept:
        tab.click("#take")
    holds("hello = 6" in Path(kept.value.path()).read_text(encoding="utf-8"), "not in the file")
    say("the run is taken as a scenario file")
    for title, fate in (
        ("A lost conversation", "lost"),
        ("A window one key short", "wrong"),
        ("Two agents on one slot", "lost"),
        ("Three requests", "wrong"),
    ):
        before = tab.evaluate(f"{RESULT}.json.slice(0, 120)")
        tab.get_by_role("button", name=title).click()
        wait(tab, f"{RESULT}.json.slice(0, 120) !== {json.dumps(before)}")
        equal(fate, tab.evaluate(f"{RESULT}.fate"))
        say(f"opening: {title}: {text(tab, '#verdict')}")
    tab.fill("#flags", "parallel = many")
    tab.press("#flags", "Tab")
    wait(tab, "!document.getElementById('trouble').hidden")
    holds("parallel" in text(tab, "#trouble"), text(tab, "#trouble"))
    say("what cannot be played is told")


def looked_at(browser: Any, address: str, pictures: Path | None, *, engine: bool) -> None:
    """Both widths, light and dark: nothing sticks out, axe finds nothing."""
    axe = axe_script()
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            tab = context.new_page()
            tab.goto(address)
            wait(
                tab,
                f"{RESULT} !== null" if engine else "!document.getElementById('trouble').hidden",
            )
            if pictures is not None:
                tab.screenshot(path=pictures / f"playground-{size}-{scheme}.png", full_page=True)
            holds(tab.evaluate("document.documentElement.scrollWidth") <= width, f"{size} is wider")
            equal([], violations(tab, axe))
            context.close()
    say("it fits 1280 and 390 pixels, light and dark; axe finds nothing")


def say(words: str) -> None:
    """A line for a check."""
    sys.stdout.write(f"ok      {words}\n")
    sys.stdout.flush()


def checked(browser: Any, folder: Path, pictures: Path | None) -> None:
    """Everything, in one page where that can be."""
    engine = built(folder)
    with served(folder) as address:
        if engine:
            context = browser.new_context()
            asked: list[str] = []
            context.on("request", lambda request: asked.append(request.url))
            tab = context.new_page()
            tab.on("pageerror", lambda error: asked.append(f"error: {error}"))
            tab.goto(address)
            played(tab)
            home = address.rpartition("playground")[0]
            equal([], [each for each in asked if not each.startswith((home, "blob:", "data:"))])
            say("nothing is fetched from elsewhere")
            tab.goto(f"{address}#not-a-form")
            tab.reload()
            wait(tab, "!document.getElementById('trouble').hidden")
            say("a damaged link is told")
            context.close()
        else:
            sys.stdout.write("SKIPPED the run in the browser: the engine is not in this build\n")
        looked_at(browser, address, pictures, engine=engine)
        manifest = folder / "playground" / "manifest.json"
        manifest.write_text(json.dumps({"why": "npm is not installed"}), encoding="utf-8")
        tab = browser.new_page()
        tab.goto(address)
        wait(tab, "!document.getElementById('trouble').hidden")
        holds("npm is not installed" in text(tab, "#trouble"), text(tab, "#trouble"))
        say("a build without the engine says so")


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 all well or skipped, 1 something failed."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sys.stdout.write("SKIPPED playground: the Python package playwright is not installed\n")
        return 0
    found = browser_path()
    if found is None:
        sys.stdout.write("SKIPPED playground: no Chromium here\n")
        return 0
    pictures = Path(arguments[0]) if arguments else None
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=list(FLAGS))
        try:
            checked(browser, Path(folder), pictures)
        except Exception as error:
            sys.stdout.write(f"FAILED  {str(error)[:600]}\n")
            return 1
        finally:
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
