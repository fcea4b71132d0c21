// Python of a lesson, in the worker of the playground: blocks run in order, and a changed one again.
"use strict";

importScripts("../playground/worker.js");

const simulator = self.onmessage;
let ran = null;

async function prepared() {
  if (ran) return;
  ran = [];
  if (typeof later !== "undefined" && later.length) { unpack(later); later = []; }
  const reply = await fetch("../lessons.zip");
  if (!reply.ok) throw new Error("lessons.zip is not in this build of the site");
  python.unpackArchive(await reply.arrayBuffer(), "zip", { extractDir: PACKAGES });
  python.runPython(`
import contextlib, importlib, io, traceback
importlib.invalidate_caches()
names = {}

def fresh():
    names.clear()
    names["__name__"] = "lesson"

def printed(code):
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(code, "this block", "exec"), names)
    except BaseException as error:
        last = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == "this block"]
        where = f" (line {last[-1].lineno})" if last else ""
        said.write(f"{type(error).__name__}: {error}{where}")
    return said.getvalue()

def picture(code):
    names.pop("picture", None)
    said = printed(code)
    return names["picture"].svg("again") if "picture" in names else said
`);
}

/** Runs the blocks up to the last one; what was run unchanged is kept. */
async function played({ blocks, pictures }) {
  await prepared();
  let same = 0;
  while (same < ran.length && same < blocks.length - 1 && ran[same] === blocks[same]) same += 1;
  if (same < ran.length || same === 0) { python.runPython("fresh()"); ran = []; same = 0; }
  let output = "";
  const run = python.globals.get("printed");
  for (const block of blocks.slice(same)) { output = run(block); ran.push(block); }
  const draw = python.globals.get("picture");
  return { output, drawings: pictures.map((each) => draw(each)) };
}

self.onmessage = async (event) => {
  if (!event.data.blocks) { await simulator(event); return; }
  try {
    self.postMessage({ played: await played(event.data) });
  } catch (error) {
    self.postMessage({ trouble: String(error.message || error).trim().split("\n").pop() });
  }
};
