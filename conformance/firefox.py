"""`python -m conformance.firefox [SITE]`: the built site in Firefox, over WebDriver BiDi.

Where Firefox, the Python package websockets or the site (`make docs`) is missing, it says so.
"""

import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from conformance.browser import equal, holds
from conformance.playground import DROP, RESULT, ROOT, explained_by_the_program, say, served

LOG: Final = ROOT / "docs" / "examples" / "few-checkpoints.log"
SECONDS: Final = 180


class Tab:
    """A tab, driven by commands over a socket; `trouble` has what its pages complain of."""

    def __init__(self, socket: Any) -> None:
        self.socket, self.number, self.trouble = socket, 0, list[str]()
        self.send("session.new", capabilities={})
        self.send("session.subscribe", events=["log.entryAdded"])
        self.context = self.send("browsingContext.getTree")["contexts"][0]["context"]

    def send(self, method: str, **params: object) -> Any:
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while (told := json.loads(self.socket.recv(SECONDS))).get("id") != self.number:
            if told["method"] == "log.entryAdded" and told["params"]["level"] == "error":
                self.trouble.append(str(told["params"]["text"]))
        holds(told["type"] == "success", f"{method}: {told}")
        return told["result"]

    def goto(self, url: str) -> None:
        self.send("browsingContext.navigate", context=self.context, url=url, wait="complete")

    def do(self, script: str) -> Any:
        code, where = f"JSON.stringify(({script}) ?? null)", {"context": self.context}
        told = self.send("script.evaluate", target=where, expression=code, awaitPromise=False)
        holds(told["type"] == "success", f"{script}: {told}")
        return json.loads(told["result"]["value"])

    def until(self, condition: str) -> None:
        end = time.monotonic() + SECONDS
        while not self.do(condition):
            holds(time.monotonic() < end, f"never: {condition}")
            time.sleep(0.3)


def checked(tab: Tab, home: str, folder: str) -> None:
    tab.goto(f"{home}index.html")
    holds(tab.do("document.querySelector('.first svg') !== null"), "no picture")
    tab.goto(f"{home}_generated/lessons/1-cells.html")
    tab.do("document.querySelector('p.run button').click()")
    tab.until("/Done|Could/.test(document.querySelector('p.run span').textContent)")
    equal("Done", tab.do("document.querySelector('p.run span').textContent"))
    say("home shows its picture, and the code of a lesson runs")
    for address in (f"{home}playground/index.html", f"{folder}playground/index.html"):
        tab.goto(f"{address}#scenario=llama.cpp-three-requests")
        tab.until(f"window.playground && window.playground.ready() && {RESULT} !== null")
        equal("wrong", tab.do(f"{RESULT}.fate"))
        tab.do(f"({DROP})({json.dumps([LOG.name, LOG.read_text(encoding='utf-8')])})")
        tab.until("Boolean((window.playground.report() || {}).json)")
        equal(explained_by_the_program(LOG), tab.do("window.playground.report().json"))
        equal("b9538", tab.do("document.getElementById('release').value"))
        say(f"the playground runs a scenario and explains a log: {address.partition(':')[0]}")
    equal([], tab.trouble)


def main(site: Path) -> None:
    firefox = shutil.which("firefox-esr") or shutil.which("firefox")
    there = importlib.util.find_spec("websockets") and (site / "playground/manifest.json").is_file()
    if firefox is None or not there:
        sys.stdout.write(f"SKIPPED Firefox: it, websockets, or a site in {site} is missing\n")
        return
    connect = importlib.import_module("websockets.sync.client").connect
    with tempfile.TemporaryDirectory() as profile, served(site) as address:
        flags = ("--headless", "--no-remote", "--remote-debugging-port=0", "--profile", profile)
        program = subprocess.Popen(
            [firefox, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        lines = iter(program.stderr or ())
        try:
            ports = (re.search(r"BiDi listening on (ws://\S+)", line) for line in lines)
            with connect(f"{next(filter(None, ports))[1]}/session", max_size=None) as socket:
                home = address.rpartition("playground")[0]
                checked(Tab(socket), home, f"{site.resolve().as_uri()}/")
        finally:
            program.terminate()
            program.communicate()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "_build")
