// The simulator, off the page's own thread: Pyodide, NumPy, and cachesim as Python.
"use strict";

let python = null;
let answer = null;
let explained = null;
let later = [];

const say = (message) => self.postMessage(message);

const unzipped = (data) => new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();

const PACKAGES = "/lib/python3.11/site-packages";

/** Files into Python's packages: a line of names and sizes, then their bytes. Python's own unpacking takes ten times as long. */
function unpack(files) {
  const folders = new Set();
  for (const each of files) {
    const bytes = new Uint8Array(each.data);
    let at = bytes.indexOf(10) + 1;
    for (const [name, size] of JSON.parse(new TextDecoder().decode(bytes.subarray(0, at)))) {
      const path = `${PACKAGES}/${name}`;
      const folder = path.slice(0, path.lastIndexOf("/"));
      if (!folders.has(folder)) python.FS.mkdirTree(folder);
      folders.add(folder);
      python.FS.writeFile(path, bytes.subarray(at, at + size), { canOwn: true });
      at += size;
    }
  }
}

/** Files of the page, each gzipped, under the names that Pyodide asks for. */
async function load(files) {
  say({ state: "Starting Python" });
  const parts = await Promise.all(files.map(async (each) => ({ ...each, data: each.name.endsWith(".gz") ? await unzipped(each.data) : each.data })));
  const named = Object.fromEntries(parts.map((each) => [each.name.replace(/\.gz$/, ""), each.data]));
  const types = { wasm: "application/wasm", js: "text/javascript", json: "application/json" };
  const fetchElsewhere = self.fetch;
  self.fetch = (what, ...more) => {
    const name = String(what.url || what).split("/").pop();
    if (!(name in named)) return fetchElsewhere(what, ...more);
    return Promise.resolve(new Response(named[name], { headers: { "Content-Type": types[name.split(".").pop()] || "application/zip" } }));
  };
  const text = (name) => new TextDecoder().decode(named[name]);
  (0, eval)(text("pyodide.js"));
  (0, eval)(text("pyodide.asm.js"));
  python = await loadPyodide({ indexURL: self.location.protocol === "blob:" ? "https://offline.invalid/" : "./", lockFileURL: "pyodide-lock.json" });
  unpack(parts.filter((each) => each.unpack === "now"));
  later = parts.filter((each) => each.unpack === "later");
  say({ state: "Loading cachesim" });
  python.runPython("import gc; gc.disable(); from cachesim.report.playground import answer; gc.freeze(); gc.enable()");
  answer = python.globals.get("answer");
  self.fetch = fetchElsewhere;
  say({ ready: true });
}

/** The report on a log; what only logs need is unpacked for the first of them. */
function read({ name, data, given }) {
  if (explained === null) {
    unpack(later);
    later = [];
    python.runPython("import importlib; importlib.invalidate_caches(); from cachesim.playground import explained");
    explained = python.globals.get("explained");
  }
  const bytes = python.toPy(new Uint8Array(data));
  try {
    return explained(name, bytes, given || "{}");
  } finally {
    bytes.destroy();
  }
}

self.onmessage = async ({ data }) => {
  try {
    if (data.files) await load(data.files);
    else say({ number: data.number, told: data.log ? read(data.log) : answer(data.asked) });
  } catch (error) {
    say({ number: data.number, trouble: String(error.message || error).trim().split("\n").pop() });
  }
};
