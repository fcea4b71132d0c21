// The simulator, off the page's own thread: Pyodide, NumPy, and cachesim as Python.
"use strict";

let answer = null;

const say = (message) => self.postMessage(message);

/** A file's bytes; what has come so far is told. */
async function fetched(name, told) {
  const reply = await fetch(name);
  if (!reply.ok) throw new Error(`${name}: ${reply.status}`);
  const reader = reply.body.getReader();
  const parts = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    told(value.length);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

async function load(manifest) {
  let come = 0;
  const whole = manifest.files.reduce((sum, each) => sum + each.bytes, 0);
  const told = (bytes) => { come += bytes; say({ loaded: Math.min(1, come / whole) }); };
  const files = await Promise.all(manifest.files.map(async (each) => ({ ...each, data: await fetched(each.name, told) })));
  say({ state: "Starting Python" });
  importScripts("pyodide.js");
  const python = await loadPyodide({ indexURL: "./" });
  for (const each of files.filter((file) => file.unpack)) python.unpackArchive(each.data, "zip", { extractDir: "/lib/python3.11/site-packages" });
  python.runPython("from cachesim.report.playground import answer");
  answer = python.globals.get("answer");
  say({ ready: true });
}

self.onmessage = async ({ data }) => {
  try {
    if (data.manifest) await load(data.manifest);
    else say({ number: data.number, told: answer(data.asked) });
  } catch (error) {
    say({ number: data.number, trouble: String(error.message || error) });
  }
};
