"""`python -m conformance.playground [FOLDER] [--every] [--part 1/4]`: the playground in a browser.

It is built as `make docs` builds it and served from this machine; a line per check. With a folder,
pictures are left there. `--every` compares 200 scenarios and 30 logs with the program, `--part` a
share of them: the later parts check nothing else. Where the browser, or the engine's packages,
cannot be had, it says so and checks the rest.
"""

import argparse
import base64
import functools
import json
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, TypeVar

from cachesim.scenario.shipped import shipped_file, shipped_files
from conformance.browser import (
    FLAGS,
    SIZES,
    SLOW,
    THREE,
    axe_script,
    browser_path,
    equal,
    holds,
    is_sampled,
    new_tab,
    text,
    violations,
)

T = TypeVar("T")
ROOT: Final = Path(__file__).parents[1]
RESULT: Final = "window.playground.result()"
IN_VIEW: Final = (
    "(({top, bottom}) => top >= 0 && (bottom <= innerHeight || top < innerHeight / 2))"
    "(document.getElementById('player').getBoundingClientRect())"
)


FEW: Final = (2, 1)
"""Scenarios and logs that are compared without `--every`."""


@dataclass(frozen=True, slots=True)
class Part:
    """A share of what is compared: the first of four has every fourth from the first on."""

    number: int
    parts: int

    @classmethod
    def named(cls, text: str) -> "Part":
        """A part as it is typed."""
        number, _, parts = text.partition("/")
        if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
            msg = f"{text!r} is not a part: write 1/4, 2/4, 3/4 or 4/4 for quarters"
            raise argparse.ArgumentTypeError(msg)
        return cls(int(number), int(parts))

    def of(self, whole: Sequence[T]) -> Sequence[T]:
        """This part of a whole."""
        return whole[self.number - 1 :: self.parts]


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
    """The command's output for three requests, in arithmetic that is exact anywhere."""
    more = ("--profile", "llama.cpp@b11549", "--arithmetic", "ring", "--format", "json")
    return cachesim("run", THREE, *more).strip()


def wait(tab: Any, condition: str = f"{RESULT} !== null") -> None:
    """Until something holds in the page."""
    tab.wait_for_function(condition, timeout=SLOW)


def recalled(tab: Any) -> None:
    """The first opening: a value of another conversation, which the reader may replace."""
    wait(tab)
    wait(tab, "!document.getElementById('player').hidden")
    begins = int(tab.locator("#moment").input_value())
    tab.click("#go")
    holds(tab.evaluate(IN_VIEW), "the moments that play are not in view")
    wait(tab, "!window.playground.kept()")
    tab.wait_for_timeout(500)
    goes_on = text(tab, "#go") == "Pause" or int(tab.locator("#moment").input_value()) > begins
    holds(goes_on, "the run that the browser played itself stopped the moments")
    say("the first run is shown, and replaced by the browser's own, which stops no one who watches")
    holds("only a-asks contained 7413" in text(tab, "#verdict"), "no leak")
    holds("7413" in tab.locator("#story").text_content(), "no words in the picture")
    words = tab.get_by_label("words of code-a", exact=True)
    words.fill("7460 . code")
    words.press("Tab")
    wait(tab, "document.getElementById('verdict').textContent.includes('The reply is 7460')")
    words.fill("secret . code")
    words.press("Tab")
    wait(tab, "document.querySelector('.problem') !== null")
    holds("'secret' is not among the words" in text(tab, ".problem"), text(tab, ".problem"))
    say("a conversation gets the value that stands in the other one")


MOST_SECONDS: Final = 10.0
"""Processor time of all threads to the first own result: 4.7 to 7.4 s were seen on two cores."""


def in_time(browser: Any, address: str) -> None:
    """The first result that the page computes itself; loading runs on several threads at once."""
    session = browser.new_browser_cdp_session()

    def spent() -> float:
        found = session.send("SystemInfo.getProcessInfo")["processInfo"]
        return float(sum(process["cpuTime"] for process in found))

    tab, before, begun = new_tab(browser), spent(), time.perf_counter()
    tab.goto(address)
    wait(tab, f"{RESULT} !== null && !window.playground.kept()")
    passed, used = time.perf_counter() - begun, spent() - before
    tab.context.close()
    holds(used <= MOST_SECONDS, f"the first own result takes {used:.1f} s of processor time")
    say(f"the first own result after {passed:.1f} s, {used:.1f} s of processor time")


def share(tab: Any) -> None:
    """Put the link into the address bar; it is packed first."""
    before = tab.url
    tab.click("#share")
    tab.wait_for_function("before => location.href !== before", arg=before)


def played(tab: Any) -> None:
    """The story of three requests, its bytes, what follows from a drag, every opening, the link."""
    tab.get_by_role("button", name="Three requests").click()
    wait(tab)
    holds("Request C gets a wrong answer" in text(tab, "#verdict"), text(tab, "#verdict"))
    holds("starts with token" in text(tab, "#cause"), text(tab, "#cause"))
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
    share(tab)
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
        ("Two codes", "wrong"),
        ("Three requests", "wrong"),
    ):
        before = tab.evaluate(f"{RESULT}.json.slice(0, 120)")
        tab.get_by_role("button", name=title).click()
        wait(tab, f"{RESULT} !== null && {RESULT}.json.slice(0, 120) !== {json.dumps(before)}")
        equal(fate, tab.evaluate(f"{RESULT}.fate"))
        say(f"opening: {title}: {text(tab, '#verdict')}")


def press(tab: Any, key: str, word: str) -> None:
    """Press a key on the row of moments until its sentence has a word."""
    for _ in range(20):  # a result that arrives sets the moments back
        tab.locator("#moment").focus()
        tab.keyboard.press(key)
        if word in text(tab, "#sentence"):
            return
        tab.wait_for_timeout(250)
    holds(False, text(tab, "#sentence"))


def stepped(tab: Any) -> None:
    """The moments of a request, by button, by key and by themselves."""
    wait(tab, "!document.getElementById('player').hidden")
    holds("checkpoint restored" in text(tab, "#sentence"), text(tab, "#sentence"))
    press(tab, "End", "answer")
    holds(tab.locator("#on").is_disabled(), "there is more after the answer")
    press(tab, "Home", "arrives")
    tab.click("#go")
    wait(tab, "document.getElementById('moment').value !== '0'")
    tab.click("#go")
    equal("Play", text(tab, "#go"))
    rules = [
        text(tab, "#sentence")
        for _ in range(24)
        if tab.click("#on", force=True) is None and "rule" in text(tab, "#sentence")
    ]
    holds(any("20 → 0" in rule for rule in rules), f"no rule: {rules}")
    say("a request is stepped through, with the rule where it decides")
    few, rows = tab.locator("#frame .r").count(), tab.locator("#rows")
    rows.click()
    every = tab.locator("#frame .r").count()
    rows.click()
    holds(few < every, f"{few} of {every} rows are shown first")
    equal(few, tab.locator("#frame .r").count())
    say(f"it begins with the {few} rows that matter, and opens to all {every}")


def mistaken(tab: Any) -> None:
    """Errors stand at their field, in its words, and nothing older is shown or downloaded."""
    tab.get_by_label("prompt of request 3").fill("nope c")
    tab.get_by_label("prompt of request 3").press("Tab")
    wait(tab, "document.querySelector('.problem') !== null")
    equal(
        "Request C, prompt: there is no text 'nope'. Texts: hello, S, b, c", text(tab, ".problem")
    )
    equal("true", tab.get_by_label("prompt of request 3").get_attribute("aria-invalid"))
    equal(True, tab.locator("#take").is_disabled())
    equal(True, tab.locator("#json").is_disabled())
    equal(0, tab.locator("#story svg").count())
    tab.get_by_label("prompt of request 3").fill("S c")
    tab.get_by_label("prompt of request 3").press("Tab")
    wait(tab)
    equal(0, tab.locator(".problem").count())
    tab.fill("#flags", "parallel = many")
    tab.press("#flags", "Tab")
    wait(tab, "document.querySelector('.problem') !== null")
    holds("Flag parallel" in text(tab, ".problem"), text(tab, ".problem"))
    tab.fill("#flags", "")
    tab.press("#flags", "Tab")
    wait(tab)
    say("an error stands at its field, and no older run is shown or downloaded")


def dragged(tab: Any) -> None:
    """A slider takes a length as it is; keys in a row are one run; a run is cancelled."""
    length = tab.get_by_label("length of S", exact=True)
    length.fill("300")
    length.press("Tab")
    tab.get_by_label("length of S, to drag").focus()
    tab.keyboard.press("ArrowLeft")
    equal("299", length.input_value())
    tokens = f"{RESULT} !== null && JSON.parse({RESULT}.json).runs[0].steps[1].prompt_tokens"
    wait(tab, f"{tokens} === 319")
    tab.evaluate(COUNTED)
    for _ in range(12):
        tab.keyboard.press("ArrowLeft")
    equal("287", length.input_value())
    wait(tab, f"{tokens} === 307")
    holds(tab.evaluate("window.asked") <= 4, f"{tab.evaluate('window.asked')} runs for 12 keys")
    say("a slider takes any length, and twelve keys are few runs")
    for name in ("S", "b", "c"):
        field = tab.get_by_label(f"length of {name}", exact=True)
        field.fill("2000")
        field.press("Tab")
    tab.locator("#cancel").click(timeout=SLOW)
    wait(tab, "document.getElementById('verdict').textContent.startsWith('Cancelled')")
    equal(None, tab.evaluate(RESULT))
    tab.get_by_role("button", name="Three requests").click()
    wait(tab)
    equal("wrong", tab.evaluate(f"{RESULT}.fate"))
    say("a long run is cancelled, and the next one is played")


COUNTED: Final = """() => {
  window.asked = 0;
  const own = simulator.worker.postMessage.bind(simulator.worker);
  simulator.worker.postMessage = (each) => {
    window.asked += each.asked.includes('"run"');
    own(each);
  };
}"""


HOSTILE: Final[Mapping[str, object]] = {
    "it holds nothing": None,
    "text 1 is not a table": {"spans": [None]},
    "there is no engine “constructor”": {"engine": "constructor"},
    "there is no engine “__proto__”": {"engine": "__proto__"},
    "texts are not a list": {"spans": {"length": 10**9}},
    "it holds a list": [],
    "it holds a number": 7,
    "is not a number from 1 to 2000": {"spans": [{"name": "a", "length": 1e308}]},
    "the name of request 1 is not a text": {"steps": [{"name": [[[[]]]]}]},
    "flags is longer than": {"flags": "x" * 5000},
    "llama.cpp has no release “b0”": {"release": "b0"},
    "there is no model “toString”": {"model": "toString"},
}
"""Why a link does not open -> what it holds."""


def link(value: object) -> str:
    """A share link's fragment that is not deflated, as pages and older links have it."""
    data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def linked(tab: Any, address: str) -> None:
    """Links in an open tab: each opens, or says why not, and the first example is shown."""
    others = {"its text is damaged": "%%%", "damaged, or cut": link("[" * 50_000)}
    others["longer than 200000"] = "A" * 200_001
    packed = zlib.compressobj(wbits=-15)
    bomb = packed.compress(bytes(50_000_000)) + packed.flush()
    others["it is longer than 200000 letters"] = "~" + base64.urlsafe_b64encode(bomb).decode()
    others["there is no shipped scenario"] = "scenario=../../secrets"
    for why, fragment in {**{w: link(v) for w, v in HOSTILE.items()}, **others}.items():
        tab.evaluate("hash => { window.location.hash = hash; }", fragment)
        wait(tab, f"document.getElementById('trouble').textContent.includes({json.dumps(why)})")
        wait(tab)
        equal("wrong", tab.evaluate(f"{RESULT}.fate"))
    say(f"{len(HOSTILE) + len(others)} hostile links in one tab end in a sentence and the example")
    tab.goto("about:blank")
    tab.goto(f"{address}#{link(None)}")
    wait(tab, "document.getElementById('trouble').textContent.includes('it holds nothing')")
    wait(tab)
    say("a hostile link in a new tab does not keep the page from loading")
    former, profile = "vllm-43559-one-block-more", "vllm@0.33.0"
    place = f"scenario={former}&profile={profile}"
    tab.evaluate("hash => { window.location.hash = hash; }", place)
    wait(tab, f"{RESULT} !== null && {RESULT}.scenario === 'vllm-43559-one-block-too-many'")
    equal(profile, tab.evaluate(f"{RESULT}.profile"))
    say("a link to a shipped scenario, by a former name of it, opens it on its profile")


def opened(tab: Any) -> None:
    """Scenarios from the list, a pasted file, a dropped log."""
    tab.click("#open summary")
    tab.fill("#search", "checkpoints-not-applied")
    tab.locator("#found button").first.click()
    wait(tab, f"{RESULT} !== null && {RESULT}.scenario.includes('checkpoints-not-applied')")
    holds("format" in tab.locator("#toml").input_value(), "no file in the form")
    say("a scenario that the form has no place for opens as its file")
    tab.click("#open summary")
    shown = shipped_file(THREE).read_text(encoding="utf-8")
    tab.fill("#pasted", shown.replace('"llama.cpp-three-requests"', '"mine"', 1))
    tab.click("#take-pasted")
    wait(tab, f"{RESULT} !== null && {RESULT}.scenario === 'mine'")
    say("a pasted scenario opens")
    tab.click("#open summary")
    tab.fill("#pasted", shown.replace("hello = 5", "hello = 0"))
    tab.click("#take-pasted")
    wait(tab, "document.querySelector('.problem') !== null")
    holds("spans.hello" in text(tab, ".problem"), text(tab, ".problem"))
    say("a damaged file opens as text, with the error at its field")
    log = ROOT / "docs" / "examples" / "hybrid.log"
    tab.evaluate(DROP, [log.name, log.read_text(encoding="utf-8")])
    wait(tab, "window.playground.report() !== null && window.playground.report().json !== ''")
    equal(explained_by_the_program(log), tab.evaluate("window.playground.report().json"))
    holds("requests" in tab.frame_locator("#log iframe").locator("h1").inner_text(), "no report")
    say("a dropped log is explained as by `cachesim why`, byte for byte")
    followed(tab, log)
    tab.get_by_role("button", name="Three requests").click()
    wait(tab, "simulator.current !== null")
    tab.evaluate(DROP, [log.name, log.read_text(encoding="utf-8")])
    wait(tab, "window.playground.report() !== null && window.playground.report().json !== ''")
    equal((0, None), (tab.locator("#story svg").count(), tab.evaluate(RESULT)))
    say("a run that ends after a log was dropped is not shown beside its report")
    tab.evaluate(DROP, ["empty.log", "nothing"])
    wait(tab, "document.getElementById('verdict').textContent.startsWith('Not read')")
    equal(True, tab.locator("#json").is_disabled())
    say("a file that is no log is refused with a reason")


def followed(tab: Any, log: Path) -> None:
    """The form of a dropped log: its server, whose fields can be set, and its requests."""
    told = json.loads(explained_by_the_program(log))
    (server,) = told["servers"]
    shown = [tab.locator(each).input_value() for each in ("#engine", "#release", "#model")]
    equal(server["profile"], "@".join(shown[:2]))
    equal(server["model"]["preset"], shown[2])
    flags = (line.partition(" = ") for line in tab.locator("#flags").input_value().splitlines())
    equal(
        {name: option["value"] for name, option in server["options"].items()},
        {name: json.loads(value) for name, _, value in flags},
    )
    equal((False, False), (tab.locator("#steps").is_visible(), tab.locator("#toml").is_visible()))
    holds("Assumed: model" in text(tab, "#how"), text(tab, "#how"))
    say("the form shows the server that was read out of the log")
    tab.select_option("#model", "dense")
    wait(tab, "document.getElementById('same').textContent.includes('--model dense')")
    command = text(tab, "#same").partition("cachesim ")[2].split()
    equal(
        cachesim(*command, "--format", "json", folder=log.parent),
        tab.evaluate("window.playground.report().json"),
    )
    say("a field that is set reads the log again, as the command beside it does")
    tab.fill("#flags", "ctx_checkpoints = many")
    tab.press("#flags", "Tab")
    wait(tab, "document.querySelector('.problem') !== null")
    holds("option 'ctx_checkpoints'" in text(tab, ".problem"), text(tab, ".problem"))
    tab.evaluate(DROP, [log.name, log.read_text(encoding="utf-8")])
    wait(tab, "!document.getElementById('as-scenario').hidden")
    tab.click("#as-scenario")
    wait(tab)
    equal(
        [request["prompt_tokens"] for request in told["requests"]],
        tab.evaluate(f"JSON.parse({RESULT}.json).runs[0].steps.map((each) => each.prompt_tokens)"),
    )
    equal(False, tab.locator("#as-scenario").is_visible())
    say("the requests of a log open as a scenario")


DROP: Final = """([name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  window.dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
}"""


def explained_by_the_program(log: Path) -> str:
    """`cachesim why` on a log, as JSON."""
    return cachesim("why", log.name, "--format", "json", folder=log.parent)


def cachesim(*arguments: str, folder: Path = ROOT) -> str:
    """Standard output of the program."""
    return subprocess.run(
        [sys.executable, "-m", "cachesim", *arguments],
        cwd=folder, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip


def compared(tab: Any, scenarios: int, logs: int, part: Part) -> None:
    """Runs and reports in the browser have the bytes that the program prints."""
    files: Sequence[Path] = shipped_files()
    files = part.of(files[:: max(1, len(files) // scenarios)][:scenarios])
    for path in files:
        text = path.read_text(encoding="utf-8")
        wanted = tab.evaluate(ASKED, {"do": "open", "text": text})["profile"]
        question = {"do": "run", "text": text, "profile": wanted, "arithmetic": "ring"}
        found = tab.evaluate(ASKED, question)
        more = ("--profile", wanted, "--arithmetic", "ring", "--format", "json")
        holds("json" in found, f"{path.stem}: {found.get('problems')}")
        holds(cachesim("run", path.stem, *more).strip() == found["json"], f"{path.stem} differs")
    say(f"{len(files)} scenarios: the bytes of the program's JSON")
    lines = (ROOT / "tests" / "why" / "excerpts.jsonl").read_text(encoding="utf-8").splitlines()
    found_texts = [
        each["files"][0][1]
        for each in map(json.loads, lines)
        if len(each["files"]) == 1 and each["files"][0][0].endswith(".log")
    ]
    texts = part.of(found_texts[:logs])
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(texts):
            log = Path(folder) / f"{number}.log"
            log.write_text(text, encoding="utf-8")
            found = tab.evaluate(EXPLAINED, [log.name, text])
            told = explained_by_the_program(log)
            holds(told == found.get("json", ""), f"log {number} differs: {found.get('problems')}")
    say(f"{len(texts)} logs: the bytes of the program's JSON, or refused by both")


ASKED: Final = "question => window.playground.ask(question)"
EXPLAINED: Final = (
    "([name, text]) => window.playground.ask({ do: 'log' },"
    " { name, data: new TextEncoder().encode(text).buffer })"
)


def from_folder(tab: Any, folder: Path) -> None:
    """The page as a file, without a server: it runs, and opens what the site brings along."""
    tab.goto(f"{(folder / 'playground' / 'index.html').as_uri()}#log=few-checkpoints.log")
    wait(tab, "window.playground.report() !== null && window.playground.report().json !== ''")
    log = ROOT / "docs" / "examples" / "few-checkpoints.log"
    equal(explained_by_the_program(log), tab.evaluate("window.playground.report().json"))
    tab.evaluate(f"() => {{ window.location.hash = 'scenario={THREE}'; }}")
    wait(tab)
    equal("wrong", tab.evaluate(f"{RESULT}.fate"))
    tab.evaluate("() => { window.location.hash = 'log=nope'; }")
    wait(tab, "document.getElementById('trouble').textContent.includes('no example log “nope”')")
    say("it works from a folder, and a link opens a log of the documentation")


def heard(tab: Any) -> None:
    """The page as a screen reader has it."""
    tree = tab.locator("body").aria_snapshot()
    for each in (
        'navigation "examples"',
        'button "Three requests"',
        'form "the run"',
        'textbox "prompt of request 3"',
        'region "what happens"',
        'region "step through a request"',
        'slider "moment"',
        'button "previous moment"',
        'button "Copy a link to this run"',
    ):
        holds(each in tree, f"the tree lacks {each}:\n{tree[:4000]}")
    holds("three-requests on llama.cpp@b11549, step by step" in tree, f"no named picture: {tree}")
    say("a screen reader finds the examples, the form, the verdict, the picture and the moments")


def looked_at(
    browser: Any, address: str, pictures: Path | None, *, engine: bool, every: bool
) -> None:
    """Both widths, light and dark: nothing sticks out, axe finds nothing."""
    axe = axe_script()
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            screen = {"width": width, "height": height}
            tab = new_tab(browser, viewport=screen, color_scheme=scheme)
            tab.goto(address)
            wait(
                tab,
                f"{RESULT} !== null" if engine else "!document.getElementById('trouble').hidden",
            )
            if pictures is not None:
                tab.screenshot(path=pictures / f"playground-{size}-{scheme}.png", full_page=True)
            holds(tab.evaluate("document.documentElement.scrollWidth") <= width, f"{size} is wider")
            if every or is_sampled(size, scheme):
                equal([], violations(tab, axe))
            tab.context.close()
    say("it fits 1280 and 390 pixels, light and dark; axe finds nothing")


def say(words: str) -> None:
    """A line for a check."""
    sys.stdout.write(f"ok      {words}\n")
    sys.stdout.flush()


def checked(
    browser: Any, folder: Path, pictures: Path | None, sizes: tuple[int, int], part: Part
) -> None:
    """Everything, in one page where that can be; of a later part only its comparisons."""
    engine = built(folder)
    with served(folder) as address:
        if part.number > 1:
            holds(engine, "the engine is not in this build")
            tab = new_tab(browser)
            tab.goto(address)
            wait(tab)
            compared(tab, *sizes, part)
            return
        if engine:
            in_time(browser, address)
            tab = new_tab(browser)
            asked: list[str] = []
            tab.context.on("request", lambda request: asked.append(request.url))
            tab.on("pageerror", lambda error: asked.append(f"error: {error}"))
            tab.goto(address)
            recalled(tab)
            played(tab)
            stepped(tab)
            heard(tab)
            mistaken(tab)
            dragged(tab)
            linked(tab, address)
            opened(tab)
            compared(tab, *sizes, part)
            home = address.rpartition("playground")[0]
            equal([], [each for each in asked if not each.startswith((home, "blob:", "data:"))])
            say("nothing is fetched from elsewhere")
            tab.context.close()
            from_folder(new_tab(browser), folder)
        else:
            sys.stdout.write("SKIPPED the run in the browser: the engine is not in this build\n")
        looked_at(browser, address, pictures, engine=engine, every=sizes != FEW)
        manifest = folder / "playground" / "manifest.json"
        manifest.write_text(json.dumps({"why": "npm is not installed"}), encoding="utf-8")
        tab = new_tab(browser)
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
    parser = argparse.ArgumentParser(prog="python -m conformance.playground")
    parser.add_argument("folder", nargs="?", type=Path, help="where pictures are left")
    parser.add_argument("--every", action="store_true", help="compare 200 scenarios and 30 logs")
    parser.add_argument("--part", type=Part.named, default=Part(1, 1), help="such as 1/4")
    asked = parser.parse_args(arguments)
    pictures: Path | None = asked.folder
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=list(FLAGS))
        try:
            checked(browser, Path(folder), pictures, (200, 30) if asked.every else FEW, asked.part)
        except Exception as error:
            sys.stdout.write(f"FAILED  {str(error)[:600]}\n")
            return 1
        finally:
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
