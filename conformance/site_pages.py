"""`python -m conformance.site_pages [FOLDER] [--every]`: the site, built and tested in a browser.

Home, a lesson, a reference and the scenarios, at both widths, light and dark; then a lesson is
taken as a reader takes it, and the exercises of three are answered, with `--every` those of all.
Where the browser or the site's packages are missing, it says so.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from cachesim.learn import is_right
from conformance.browser import (
    EVERY,
    FLAGS,
    SIZES,
    axe_script,
    browser_path,
    equal,
    holds,
    is_sampled,
    new_tab,
    text,
    violations,
)
from conformance.playground import ROOT, say, served, wait
from conformance.playground import built as playground_in
from tests.answers import OTHER_ANSWERS, SAME_ANSWERS
from tests.docs.conftest import SITE

sys.path.insert(0, str(ROOT / "docs"))  # scripts that write the documentation, which are no package

import make_lessons  # type: ignore[import-not-found]  # isort: skip
from two_codes import LENGTHS  # type: ignore[import-not-found]  # isort: skip

LESSON: Final = "_generated/lessons/5-checkpoints.html"
PAGES: Final = (
    "index.html", LESSON, "_generated/lessons/12-server-log.html", "_generated/causes.html",
    "quickstart.html", "install.html", "gallery.html",
    "_generated/releases.html", "_generated/python.html", "_generated/flags.html",
    "howto/hybrid-reprocesses-everything.html", "search.html",
)  # fmt: skip
WIDER: Final = """() => [...document.querySelectorAll("article table")].flatMap((table, i) =>
    table.parentElement.scrollWidth > table.parentElement.clientWidth + 1 ? [i] : [])"""
"""The tables of a page that stick out of what holds them."""
BROKEN: Final = r"""() => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
    while (walker.nextNode()) {
        const node = walker.currentNode;
        if (node.parentElement.closest("pre, script, style, textarea, svg")) continue;
        for (const flag of node.data.matchAll(/(?<![\w-])--[a-z]+(-[a-z0-9]+)+/g)) {
            const range = document.createRange();
            range.setStart(node, flag.index);
            range.setEnd(node, flag.index + flag[0].length);
            const lines = new Set([...range.getClientRects()].map((each) => Math.round(each.top)));
            if (lines.size > 1 && flag[0].length < 36) found.push(flag[0]);
        }
    }
    return found;
}"""
"""The flags of a page that are broken at a hyphen; longer ones do not fit a line."""
NEEDED: Final = ("sphinx", "myst_parser", "furo", "PIL")
SITE_TESTS: Final = ("test_site.py", "test_generated.py", "test_words.py")


def built(folder: Path) -> Path:
    docs, site = folder / "docs", folder / "site"
    shutil.copytree(ROOT / "docs", docs, ignore=shutil.ignore_patterns("_generated", "_build"))
    subprocess.run([sys.executable, str(docs / "generate.py")], check=True)
    sphinx = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(docs), str(site)]
    subprocess.run(sphinx, check=True)
    return site


def looked_at(browser: Any, home: str, pictures: Path | None, *, every: bool) -> None:
    """Nothing sticks out sideways, axe finds nothing, and the page says nothing to the console."""
    axe = axe_script()
    for name in PAGES:
        for size, (width, height) in SIZES.items():
            for scheme in ("light", "dark"):
                screen = {"width": width, "height": height}
                tab = new_tab(browser, viewport=screen, color_scheme=scheme)
                trouble: list[str] = []
                tab.on("pageerror", lambda error, found=trouble: found.append(str(error)))
                holds(tab.goto(home + name).ok, f"no page {name}")
                if pictures is not None:
                    stem = f"{Path(name).stem}-{size}-{scheme}"
                    tab.screenshot(path=pictures / f"{stem}.png", full_page=True)
                holds(
                    tab.evaluate("document.documentElement.scrollWidth") <= width, f"{name} {size}"
                )
                if every or is_sampled(size, scheme):
                    equal(
                        [],
                        [
                            f"{name} {size} {scheme}: {violation}"
                            for violation in violations(tab, axe)
                        ],
                    )
                equal([], trouble)
                tab.context.close()
    say(f"{len(PAGES)} pages fit 1280 and 390 pixels, light and dark; axe finds nothing")


def misfits(tab: Any, home: str, site: Path) -> Iterator[str]:
    """Tables of any page that are wider than its text, and broken flags, at both widths."""
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    for size, (width, height) in SIZES.items():
        tab.set_viewport_size({"width": width, "height": height})
        for name in names:
            tab.goto(home + name)
            yield from (f"{name} {size}: table {number}" for number in tab.evaluate(WIDER))
            yield from (f"{name} {size}: {flag} is broken" for flag in tab.evaluate(BROKEN))


def taken(tab: Any, home: str) -> None:
    """A question is answered, its run appears; a control changes what is drawn."""
    tab.goto(home + LESSON)
    equal(False, tab.locator("details.reveal").first.evaluate("each => each.open"))
    form = tab.locator("form.ask:has(strong)").last
    form.get_by_role("button", name="Check").click()
    holds("guess" in form.locator(".said").inner_text(), "an empty answer is taken")
    form.get_by_role("button", name="Hint").click()
    holds(form.locator(".hint").is_visible(), "no hint")
    for word in ("Try again", "the run gives first"):
        form.locator("input").fill("second")
        form.locator("input").press("Enter")
        holds(word in form.locator(".said").inner_text(), "no verdict")
    exercise = tab.locator("form.ask:not(:has(strong))").first
    for field, answer in zip(exercise.locator("input").all(), ("seven", "06", "6.0"), strict=True):
        field.fill(answer)
    exercise.get_by_role("button", name="Check").click()
    holds("Right: 7, 6, 6." in exercise.locator(".said").inner_text(), "not marked")
    for said, answer in (*SAME_ANSWERS, *OTHER_ANSWERS):
        is_same = tab.evaluate("([said, answer]) => plain(said) === plain(answer)", [said, answer])
        equal(is_right(said, answer), is_same)
    say("an exercise is checked on the page, as in the terminal")
    equal(True, tab.locator("details.reveal").last.evaluate("each => each.open"))
    say("a question is committed to, and its run appears")
    sweep = tab.locator(".sweep").last
    sweep.locator("input").focus()
    tab.keyboard.press("Home")
    seen = []
    for _ in range(4):
        seen.append(sweep.locator("figure:visible figcaption").inner_text())
        tab.keyboard.press("ArrowRight")
    equal([False, False, False, True], ["reply 7413" in each for each in seen])
    say("a control changes a number by key, and the picture follows")


def watched(browser: Any, home: str) -> None:
    """Home plays five frames once and stops; the slider and the fix change the answer."""
    tab = browser.new_context().new_page()
    tab.goto(home + "index.html")
    current = "document.querySelector('.first [aria-current=true]').dataset.frame"
    seen = [tab.evaluate(current)]
    while seen[-1] != "4":
        tab.wait_for_function(f"{current} !== '{seen[-1]}'")
        seen.append(tab.evaluate(current))
    equal(list("01234"), seen)
    equal("▶ Play", text(tab, ".first .play"))
    still = new_tab(browser)
    still.goto(home + "index.html")
    equal("4", still.evaluate(current))
    slider, fix = (still.locator(f".first [type={kind}]") for kind in ("range", "checkbox"))
    for words, fixed, reply in (
        (600, False, "7413 ✗"),
        (515, False, "2361 ✓"),
        (520, False, "7413 ✗"),
        (520, True, "2361 ✓"),
    ):
        slider.fill(str(LENGTHS.index(words)))
        fix.set_checked(fixed)
        equal(reply, text(still, ".first .told")[: len(reply)])
    sent = still.evaluate("performance.getEntriesByType('navigation')[0].decodedBodySize")
    holds(sent < MOST_BYTES, f"home has {sent} bytes")
    names = still.evaluate("performance.getEntriesByType('resource').map((each) => each.name)")
    equal([], [name for name in names if "playground" in name])
    holds("Install" in text(still, "article a[href='install.html']"), "no way to install it")
    say("home plays five frames once, without the simulator: 515 words are right, 520 are wrong")


MOST_BYTES: Final = 100_000
"""Of the home page, with all its frames."""


def done(tab: Any, home: str, name: str) -> None:
    """A lesson from its first question to its last exercise, and each block of its code."""
    tab.goto(f"{home}_generated/lessons/{name}")
    for form in tab.locator("form.ask").all():
        answers = json.loads(form.get_attribute("data-answers"))
        fields, said = form.locator("input").all(), form.locator(".said")
        fields[0].fill("no such answer")
        for field, answer in list(zip(fields, answers, strict=True))[1:]:
            field.fill(answer)
        form.get_by_role("button", name="Check").click()
        holds("Try again with the hint" in said.inner_text(), f"{name}: no hint for {answers}")
        fields[0].fill(answers[0])
        form.get_by_role("button", name="Check").click()
        equal(f"Right: {', '.join(answers)}.", said.inner_text())
    for cell in tab.locator("div.highlight-python:has(textarea)").all():
        if cell.evaluate("each => each.closest('details:not([open])') !== null"):
            continue  # the answer of an exercise
        shown = cell.locator("xpath=following-sibling::*[1][contains(@class, 'highlight-text')]")
        before = shown.inner_text() if shown.count() else None
        cell.get_by_role("button", name="Run").click()
        wait(tab, FINISHED)
        equal("Done", cell.locator("p.run span").inner_text())
        if before is not None:
            texts = (TINY.sub("tiny", each.rstrip()) for each in (before, shown.inner_text()))
            equal(*texts)
    links = tab.locator("figure a[href*='playground/index.html#']").count()
    holds(links, f"{name} has no way to the playground")


TINY: Final = re.compile(r"\d(\.\d)?e-1\d")
"""A rounding difference: another processor has another one."""
FINISHED: Final = (
    """[...document.querySelectorAll("p.run button")].every((each) => !each.disabled)"""
)
"""No block of code is running."""


def ran(tab: Any, home: str) -> None:
    """The code of a lesson is changed and run in the page."""
    tab.goto(home + "_generated/lessons/1-cells.html")
    cell = tab.locator("div.highlight-python").nth(4)
    code = cell.locator("textarea").input_value()
    cell.locator("textarea").fill(code.replace('"day"', '"sun"'))
    cell.get_by_role("button", name="Run").click()
    wait(tab, "[...document.querySelectorAll('p.run')].some((e) => /Done|Could/.test(e.innerText))")
    shown = tab.locator("div.highlight-python + div.highlight-text").all_inner_texts()
    holds(any("s   u   n" in each for each in shown), f"{shown}")
    say("the code of a lesson is changed and run on its page")


def tested(site: Path) -> bool:
    """Run the tests of a built site; True where they pass."""
    files = [str(ROOT / "tests/docs" / name) for name in SITE_TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-rs", *files]
    return not subprocess.run(
        command, cwd=ROOT, env={**os.environ, SITE: str(site)}, check=False
    ).returncode


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 all well or skipped, 1 something failed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.stdout.write(f"SKIPPED the site: no {', '.join(missing)}\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        site = built(Path(folder))
        return 0 if tested(site) and in_browser(site, arguments) else 1


def in_browser(site: Path, arguments: Sequence[str]) -> bool:
    """True if its pages pass in a browser, or without one."""
    found = browser_path()
    if importlib.util.find_spec("playwright") is None or found is None:
        sys.stdout.write("SKIPPED the site in a browser: no Chromium, or no playwright\n")
        return True
    from playwright.sync_api import sync_playwright

    folders = [argument for argument in arguments if argument != EVERY]
    pictures = Path(folders[0]) if folders else None
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=list(FLAGS))
        try:
            with served(site) as address:
                home = address.removesuffix("playground/index.html")
                looked_at(browser, home, pictures, every=EVERY in arguments)
                equal([], list(misfits(new_tab(browser), home, site)))
                say("no table is wider than its page, and no flag is broken at a hyphen")
                taken(new_tab(browser), home)
                watched(browser, home)
                if playground_in(site):
                    make_lessons.main(site)
                    ran(new_tab(browser), home)
                    lessons = sorted(path.name for path in (site / LESSON).parent.glob("*.html"))
                    tried = lessons if EVERY in arguments else lessons[::4]
                    for name in tried:
                        done(new_tab(browser), home, name)
                    count = f"{len(tried)} of {len(lessons)} lessons"
                    say(f"{count}: exercises answered, code run with its output")
                else:
                    sys.stdout.write("SKIPPED code in lessons: the engine is not in this build\n")
        except Exception as error:
            sys.stdout.write(f"FAILED  {str(error)[:1500]}\n")
            return False
        finally:
            browser.close()
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
