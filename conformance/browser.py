"""`python -m conformance.browser [FOLDER] [--every]`: the report in a real browser, check by check.

Chromium is driven by Playwright's Python package; the browser itself is the system's. Where either
is missing the checks are skipped, in so many words. With a folder, pictures are left there; with
`--every` axe runs at both widths in both colour schemes, and not in one each.
"""

import importlib.resources
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from cachesim.play import run
from cachesim.play.result import Run
from cachesim.play.statements import side_by_side
from cachesim.report.html import page as page_of
from cachesim.scenario import full_profile, load
from cachesim.scenario.shipped import shipped_file
from tests.report.hostile import hostile_runs

FLAGS: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
SLOW: Final = 180_000
"""Milliseconds until a page or an element has to be there."""
NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
EVERY: Final = "--every"
SIZES: Final = {"wide": (1280, 900), "phone": (390, 844)}
THREE: Final = "llama.cpp-three-requests"
CONSUMED: Final = "llama.cpp-24143-load-consumes-entry"
WINDOW: Final = "llama.cpp-three-requests-window"
MLX: Final = "mlx-lm-1908-tokens-lost"
FITTED: Final = (THREE, CONSUMED, WINDOW, MLX)
FOLD: Final = {"wide": 800, "phone": 844}
"""Pixels from the top that a reader sees without scrolling."""

CHECKS: dict[str, tuple[str, Callable[[Any], None]]] = {}
"""The sentence of a check -> its page, and its function."""


def check(words: str, page: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:

    def entered(look: Callable[[Any], None]) -> Callable[[Any], None]:
        CHECKS[words] = (page, look)
        return look

    return entered


def equal(expected: object, actual: object) -> None:
    """Fail, saying both."""
    if expected != actual:
        raise AssertionError(f"expected {expected!r}, found {actual!r}")


def holds(claim: object, what: str) -> None:
    """Fail with these words."""
    if not claim:
        raise AssertionError(what)


def text(tab: Any, selector: str) -> str:
    """The text of an element."""
    return " ".join(tab.locator(selector).first.inner_text().split())


def place(tab: Any) -> str:
    """The position of the cursor."""
    return text(tab, "#where")


@check("the wrong answer is the first thing said, with its cause", THREE)
def _(tab: Any) -> None:
    verdict = text(tab, ".verdict")
    for words in (
        "WRONG ANSWER",
        "Generated token 1 is token 413, in an uncached run 309",
        "starts with token 402 (from A, hello), where this prompt has 410",
        "Here 0 > 0 is false, so it survived.",
    ):
        holds(words.lower() in verdict.lower(), f"the verdict lacks {words!r}: {verdict}")
    holds("of 40 cached" not in verdict, "the card of the wrong answer holds another's number")
    holds("b11549+erase-equal: answer matches" in text(tab, ".better"), text(tab, ".better"))


@check("a consumed entry is told with the step that took it, and the patch that keeps it", CONSUMED)
def _(tab: Any) -> None:
    verdict = text(tab, ".verdict")
    holds("C loaded the prompt-cache entry (200 tokens) for the 100" in verdict, verdict)
    holds("b9538+24143" in text(tab, ".but"), text(tab, ".but"))
    holds("it leaves the prompt cache" in text(tab, "#cache-0"), text(tab, "#cache-0"))
    holds("it stays in the prompt cache" in text(tab, "#cache-1"), text(tab, "#cache-1"))


@check("the cursor begins where it happens: the state turns into another conversation's", THREE)
def _(tab: Any) -> None:
    holds("checkpoint restored" in text(tab, "#now"), text(tab, "#now"))
    memory = text(tab, "#memory-0")
    holds("has processed 1 token" in memory, memory)
    holds("token 402 of request A, hello at position 0" in memory, memory)
    tab.keyboard.press("ArrowLeft")
    holds("has processed 43 tokens" in text(tab, "#memory-0"), text(tab, "#memory-0"))


@check("right and left step through the events and over the ends of steps", THREE)
def _(tab: Any) -> None:
    tab.keyboard.press("Home")
    start = place(tab)
    count = int(start.rpartition(" ")[2])
    equal(f"Request A event 1 of {count}", start)
    tab.keyboard.press("ArrowLeft")
    equal(start, place(tab))
    for _ in range(count):
        tab.keyboard.press("ArrowRight")
    holds(place(tab).startswith("Request B event 1 of"), place(tab))
    tab.keyboard.press("ArrowLeft")
    equal(f"Request A event {count} of {count}", place(tab))
    tab.keyboard.press("End")
    holds(tab.locator("#next").is_disabled(), "there is something behind the last event")
    tab.keyboard.press("p")
    holds(place(tab).startswith("Request B event 1 of"), place(tab))


@check("e goes to the next event that lost tokens, round and round", THREE)
def _(tab: Any) -> None:
    tab.keyboard.press("Home")
    seen = []
    for _ in range(40):
        tab.keyboard.press("e")
        shown = "#now .t-loss, #now .now.t-loss, #now .t-warn, #now .now.t-warn"
        holds(tab.locator(shown).count(), text(tab, "#now"))
        seen.append(place(tab))
    holds(1 < len(set(seen)) < 40, f"{len(set(seen))} places")
    equal(seen[0], seen[len(set(seen))])


@check("d finds where two profiles part, and alone the first answer that is not cold", THREE)
def _(tab: Any) -> None:
    tab.keyboard.press("Home")
    tab.keyboard.press("d")
    holds("Request B" in place(tab), place(tab))
    now = text(tab, "#now")
    holds("checkpoint kept" in now or "checkpoint erased" in now, now)
    tab.select_option("#right", "")
    equal(1, tab.locator(".pane").count())
    tab.keyboard.press("Home")
    tab.keyboard.press("d")
    holds("Request C" in place(tab), place(tab))
    holds("Off by 2.53" in text(tab, "#logits-0"), text(tab, "#logits-0"))


@check("two profiles share the cursor: one state is wrong, the other is not", THREE)
def _(tab: Any) -> None:
    equal(2, tab.locator(".pane").count())
    tab.keyboard.press("End")
    holds("token 402 of request A" in text(tab, "#memory-0"), text(tab, "#memory-0"))
    holds("402 of request A" not in text(tab, "#memory-1"), text(tab, "#memory-1"))
    equal(
        "Bit for bit the uncached logits. Both say token 309.",
        text(tab, "#logits-1 .logits > p + p"),
    )


@check("a refused checkpoint says why", THREE)
def _(tab: Any) -> None:
    tab.keyboard.press("End")
    shelf = text(tab, "#memory-1")
    holds("36[35..35] is refused if pos_max > pos_next; here 35 > 20" in shelf, shelf)
    holds("36[35..35] is erased. Rule: erase if pos_max >= pos_next. Here 35 >= 0" in shelf, shelf)


@check("every token of a prompt is marked, and names its place and span when pointed at", THREE)
def _(tab: Any) -> None:
    boxes = tab.locator("#prompt-0 .ribbon .tok")
    equal(40, boxes.count())
    equal(
        "^" + 39 * "+",
        "".join(all_inner_text[:1] for all_inner_text in boxes.all_inner_texts()),
    )
    boxes.nth(25).hover()
    equal("token 277 · position 25 · prefilled c", text(tab, "#tip"))
    boxes.nth(0).hover()
    holds(
        "the recurrent state holds token 402, from request A, hello" in text(tab, "#tip"), "no tip"
    )


@check("a click on an outcome, an event or a mark on the line goes there", THREE)
def _(tab: Any) -> None:
    tab.locator("button.outcome").nth(0).click()
    holds("Request A" in place(tab), place(tab))
    tab.locator(".tick[data-step='1'][data-row='4']").click()
    holds(place(tab).startswith("Request B event 5 of"), place(tab))
    tab.locator("#events-0 .events button").nth(2).click()
    holds("event 3 of" in place(tab), place(tab))


@check("the help opens by its key and closes by another; the theme turns", THREE)
def _(tab: Any) -> None:
    tab.keyboard.press("?")
    holds(tab.locator("#keys").is_visible(), "? opens no help")
    tab.keyboard.press("Escape")
    holds(not tab.locator("#keys").is_visible(), "Escape does not close it")
    before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.keyboard.press("t")
    holds(
        before != tab.evaluate("getComputedStyle(document.body).backgroundColor"), "t does nothing"
    )


@check("everything that can be pressed has a name, and headings go down one by one", THREE)
def _(tab: Any) -> None:
    nameless = tab.evaluate(
        "[...document.querySelectorAll('button, select, [role=group], [role=slider]')].filter("
        "(e) => !e.ariaLabel && !e.textContent.trim() && !e.closest('label')).length"
    )
    levels = tab.evaluate(
        "[...document.querySelectorAll('main :is(h1, h2, h3, h4)')].map((e) => +e.tagName[1])"
    )
    equal(0, nameless)
    equal([1], levels[:1])
    holds(all(b - a <= 1 for a, b in pairwise(levels)), str(levels))


@check("the picture begins with the rows that matter, and opens to all and closes again", THREE)
def _(tab: Any) -> None:
    few = tab.locator("#picture .r").count()
    tab.click("#rows")
    many = tab.locator("#picture .r").count()
    holds(few < many, f"{few} rows, then {many}")
    tab.click("#rows")
    equal(few, tab.locator("#picture .r").count())
    tab.keyboard.press("Home")
    equal(0, tab.locator("#rows").count())


@check("w walks the cause: made, kept, restored, wrong; and round again", THREE)
def _(tab: Any) -> None:
    seen = []
    for _ in range(5):
        tab.keyboard.press("w")
        seen.append((place(tab).split(" event")[0], text(tab, ".chain [aria-current] b")))
    equal(
        [
            ("Request C", "wrong"),
            ("Request A", "made"),
            ("Request B", "kept"),
            ("Request C", "restored"),
            ("Request C", "wrong"),
        ],
        seen,
    )


@check("the walk and the other profile can be reached with Tab and Enter alone", THREE)
def _(tab: Any) -> None:
    reached = []
    for _ in range(40):
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate("document.activeElement.id"))
        if reached[-1] == "walk":
            break
    equal("walk", reached[-1])
    holds("swap" in reached, f"{reached}")
    tab.keyboard.press("Enter")
    holds(text(tab, "#said").endswith("wrong"), text(tab, "#said"))


@check("c shows the fixed profile in the same picture, and back", THREE)
def _(tab: Any) -> None:
    holds("b9538" in text(tab, "#beside h2"), text(tab, "#beside h2"))
    tab.keyboard.press("End")
    holds(tab.locator("#picture .wrong").count() > 0, "nothing is outlined")
    tab.keyboard.press("c")
    holds("erase-equal" in text(tab, "#beside h2"), text(tab, "#beside h2"))
    tab.keyboard.press("End")
    equal(0, tab.locator("#picture .wrong").count())
    tab.keyboard.press("c")
    holds("b9538" in text(tab, "#beside h2"), text(tab, "#beside h2"))


@check("what has changed since the event before is outlined, and told in words", THREE)
def _(tab: Any) -> None:
    holds(tab.locator("#picture .changed").count() > 0, "nothing is outlined")
    about = tab.locator("#picture desc").first.text_content()
    holds("recurrent state at 0" in about, about)


@check("the address keeps the place", THREE)
def _(tab: Any) -> None:
    tab.keyboard.press("Home")
    tab.keyboard.press("ArrowRight")
    address = tab.evaluate("location.href")  # `tab.url` follows a moment later
    tab.goto("about:blank")
    tab.goto(address)
    holds(place(tab).startswith("Request A event 2 of"), place(tab))


@check("hostile names and texts stay texts", "hostile")
def _(tab: Any) -> None:
    for key in ("ArrowRight", "e", "d", "n", "End", "?"):
        tab.keyboard.press(key)
    equal(None, tab.evaluate("window.harmed ?? null"))
    equal(0, tab.locator("main img, main b b, main script").count())
    holds("</script>" in text(tab, "h1"), text(tab, "h1"))


@check("thousands of tokens and events answer a key in a tenth of a second of its work", "large")
def _(tab: Any) -> None:
    # The page's own time on the processor: what else the machine does is no property of it.
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def worked() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(
            next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")
        )

    before = worked()
    tab.evaluate(
        "() => { for (let i = 0; i < 10; i++) {"
        " document.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }));"
        " document.body.offsetHeight; } }"
    )
    spent = 1000 * (worked() - before) / 10
    holds(0 < spent < 100, f"{spent:.0f} ms")


def runs_of(name: str) -> list[Run]:
    """A shipped scenario on all its profiles, in detail, as `run --report` puts them together."""
    scenario = load(shipped_file(name))
    return side_by_side(
        [
            run(scenario, full_profile(scenario.engine.name, profile), detail=True)
            for profile in scenario.engine.profiles
        ]
    )


def large() -> list[Run]:
    """A long conversation: 3,000 tokens, then 300 generated."""
    from cachesim.play import run_scenario

    story = {
        "format": 1,
        "name": "large",
        "model": {"preset": "hybrid"},
        "engine": {"name": "llama.cpp", "profiles": ["b9538"], "options": {"ctx_size": 8192}},
        "spans": {"S": 3000, "a": 40, "b": 60},
        "step": [
            {"name": "A", "prompt": "S a", "predict": 300},
            {"name": "B", "prompt": "S b", "predict": 4},
        ],
    }
    return [
        run_scenario(story, profile=each, arithmetic="ring", detail=True)
        for each in ("b9538", "b11549")
    ]


def write_pages(folder: Path) -> dict[str, Path]:
    """Write the checked pages."""
    three = runs_of(THREE)
    pages = {
        **{name: three if name == THREE else runs_of(name) for name in FITTED},
        "hostile": hostile_runs(three),
        "large": large(),
    }
    paths = {name: folder / f"{name}.html" for name in pages}
    for name, runs in pages.items():
        paths[name].write_text(page_of(runs), encoding="utf-8")
    return paths


def new_tab(browser: Any, **options: Any) -> Any:
    """A page in a fresh profile, patient with a machine that installs packages meanwhile.

    Without smooth scrolling: a click during its animation hits a moved element.
    """
    context = browser.new_context(reduced_motion="reduce", **options)
    context.set_default_timeout(SLOW)
    return context.new_page()


@contextmanager
def opened(browser: Any, path: Path, **options: Any) -> Iterator[tuple[Any, list[str]]]:
    """A page in a fresh profile; its errors and fetches are added to the list."""
    tab = new_tab(browser, **options)
    trouble: list[str] = []
    tab.on("console", lambda message: trouble.append(f"console: {message.text}"))
    tab.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    tab.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((path.as_uri(), "data:", "about:"))
            else trouble.append(f"request: {request.url[:80]}")
        ),
    )
    tab.goto(path.as_uri())
    yield tab, trouble
    tab.context.close()


def looked_at(browser: Any, paths: dict[str, Path]) -> int:
    """Every check on its page; how many failed."""
    failed = 0
    for words, (name, look) in CHECKS.items():
        with opened(browser, paths[name], viewport={"width": 1280, "height": 900}) as (
            tab,
            trouble,
        ):
            try:
                look(tab)
                equal([], trouble)
            except Exception as error:
                failed += 1
                said = (str(error) or repr(error)).splitlines()[0]
                sys.stdout.write(f"FAILED  {words}\n        {said}\n")
            else:
                sys.stdout.write(f"ok      {words}\n")
    return failed


def fits(
    browser: Any, paths: dict[str, Path], pictures: Path | None, *, every: bool = False
) -> int:
    """Pages at both widths, light and dark: nothing sticks out, all is seen, axe finds nothing."""
    failed = 0
    axe = axe_script()
    for name in FITTED:
        for size, (width, height) in SIZES.items():
            for scheme in ("light", "dark"):
                options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
                with opened(browser, paths[name], **options) as (tab, trouble):
                    actual = tab.evaluate("document.documentElement.scrollWidth")
                    trouble.extend(hidden(tab, FOLD[size]))
                    if every or is_sampled(size, scheme):
                        trouble.extend(violations(tab, axe))
                    if pictures is not None:
                        tab.screenshot(
                            path=pictures / f"{name}-{size}-{scheme}.png", full_page=True
                        )
                    if actual > width or trouble:
                        failed += 1
                        sys.stdout.write(f"FAILED  {name} {size} {scheme}: {actual} {trouble}\n")
    sys.stdout.write(
        "ok      pages fit 1280 and 390 pixels, light and dark; verdict, timeline and picture"
        " are on the first screen; axe finds nothing\n"
        if not failed
        else ""
    )
    return failed


def is_sampled(size: str, scheme: str) -> bool:
    """True where axe runs without `--every`: at both widths, in both colour schemes."""
    return (size == "wide") == (scheme == "light")


def hidden(tab: Any, fold: int) -> list[str]:
    """Elements missing from the first screen."""
    low = {
        name: tab.evaluate(f"document.querySelector('{name}').getBoundingClientRect().{edge}")
        for name, edge in ((".sentence", "bottom"), ("#timeline", "bottom"), ("#picture", "top"))
    }
    low["half of #picture"] = low["#picture"] + 100
    return [f"{name} ends at {y:.0f}" for name, y in low.items() if y > fold]


def axe_script() -> str | None:
    """The text of axe-core, which a Python package brings."""
    if importlib.util.find_spec("axe_playwright_python") is None:
        sys.stdout.write("SKIPPED axe: the Python package axe-playwright-python is not installed\n")
        return None
    found = importlib.resources.files("axe_playwright_python").joinpath("axe.min.js")
    return found.read_text(encoding="utf-8")


def violations(tab: Any, axe: str | None) -> list[str]:
    if axe is None:
        return []
    tab.evaluate(axe)
    found = tab.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [
        f"axe {each['id']}: {node['target']} {node['failureSummary'].splitlines()[-1].strip()}"
        for each in found
        for node in each["nodes"][:3]
    ]


def browser_path() -> str | None:
    """The system's Chromium, or the one that `CACHESIM_BROWSER` names."""
    named = os.environ.get("CACHESIM_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 all well or skipped, 1 something failed."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sys.stdout.write("SKIPPED browser checks: the Python package playwright is not installed\n")
        return 0
    found = browser_path()
    if found is None:
        sys.stdout.write(
            "SKIPPED browser checks: no Chromium here (Debian: apt-get install chromium;"
            " or set CACHESIM_BROWSER)\n"
        )
        return 0
    folders = [argument for argument in arguments if argument != EVERY]
    pictures = Path(folders[0]) if folders else None
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        paths = write_pages(Path(folder))
        browser = driver.chromium.launch(executable_path=found, args=list(FLAGS))
        failed = looked_at(browser, paths)
        failed += fits(browser, paths, pictures, every=EVERY in arguments)
        browser.close()
    total = len(CHECKS) + len(FITTED) * 2 * len(SIZES)
    sys.stdout.write(f"browser: {total - failed} of {total} checks well\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
