// Links: a run in the address, read with a reason for everything that is not one.
"use strict";

const MOST = { link: 200000, spans: 40, steps: 40, length: 2000, predict: 64, text: 4000, name: 100, file: 200000 };

const PACKED = "~"; // before a link that is deflated; older links are not

const letters = (bytes) => btoa(Array.from(bytes, (each) => String.fromCharCode(each)).join("")).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

async function coded(value) {
  const stream = new Blob([JSON.stringify(value)]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  return PACKED + letters(new Uint8Array(await new Response(stream).arrayBuffer()));
}

/** The bytes of a deflated link, as many as a link may have: a short one could hold gigabytes. */
async function inflated(bytes) {
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const parts = [];
  for (let size = 0, next = await reader.read(); !next.done; next = await reader.read()) {
    size += next.value.length;
    if (size > MOST.link) { reader.cancel().catch(() => {}); throw new LinkError(`it is longer than ${MOST.link} letters`); }
    parts.push(next.value);
  }
  return new Blob(parts).arrayBuffer();
}

class LinkError extends Error {}

async function decoded(text) {
  if (text.length > MOST.link) throw new LinkError(`it is longer than ${MOST.link} letters`);
  let value;
  try {
    const packed = text.startsWith(PACKED);
    const bytes = Uint8Array.from(atob(text.slice(packed ? 1 : 0).replaceAll("-", "+").replaceAll("_", "/")), (each) => each.charCodeAt(0));
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(packed ? await inflated(bytes) : bytes));
  } catch (error) {
    if (error instanceof LinkError) throw error;
    throw new LinkError("its text is damaged, or cut off");
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new LinkError(`it holds ${value === null ? "nothing" : Array.isArray(value) ? "a list" : `a ${typeof value}`}, and no run`);
  return value;
}

/** Only what a form may hold; a link comes from anywhere. */
function wellFormed(value) {
  const table = (each, what) => {
    if (each === null || typeof each !== "object" || Array.isArray(each)) throw new LinkError(`${what} is not a table`);
    return each;
  };
  const text = (each, what, most, other) => {
    if (each === undefined || each === null) return other;
    if (typeof each !== "string") throw new LinkError(`${what} is not a text`);
    if (each.length > most) throw new LinkError(`${what} is longer than ${most} letters`);
    return each;
  };
  const number = (each, what, least, most, other) => {
    if (each === undefined || each === null) return other;
    if (!Number.isInteger(each) || each < least || each > most) throw new LinkError(`${what} is not a number from ${least} to ${most}`);
    return each;
  };
  const list = (each, what, most) => {
    if (each === undefined) return [];
    if (!Array.isArray(each)) throw new LinkError(`${what} are not a list`);
    if (each.length > most) throw new LinkError(`${what} are more than ${most}`);
    return each;
  };
  const one = (each, what, known, other) => {
    const name = text(each, what, MOST.name, other);
    if (!Object.hasOwn(known, name)) throw new LinkError(`there is no ${what} “${name}”`);
    return name;
  };
  const release = text(value.release, "release", MOST.name, "");
  const common = {
    name: text(value.name, "name", MOST.name, "playground"),
    engine: one(value.engine, "engine", choices.engines, "llama.cpp"),
    release,
    patches: list(value.patches, "patches", MOST.spans).map((each) => text(each, "a patch", MOST.name, "")),
    arithmetic: one(value.arithmetic, "arithmetic", { float: 1, ring: 1 }, "float"),
  };
  if (release && !choices.engines[common.engine].releases.some((each) => each.name === release)) throw new LinkError(`${common.engine} has no release “${release}” here`);
  if (value.toml !== undefined && value.toml !== null) return { ...common, toml: text(value.toml, "scenario file", MOST.file, "") };
  return {
    ...common,
    toml: null,
    model: one(value.model, "model", choices.models, "hybrid"),
    seed: number(value.seed, "seed", 0, Number.MAX_SAFE_INTEGER, 0),
    window: number(value.window, "window", 1, 2000, null),
    flags: text(value.flags, "flags", MOST.text, ""),
    spans: list(value.spans, "texts", MOST.spans).map((each, i) => {
      const what = `text ${i + 1}`;
      return { name: text(table(each, what).name, `the name of ${what}`, MOST.name, ""), length: typeof each.length === "string" ? text(each.length, what, MOST.text, "") : number(each.length, `the length of ${what}`, 1, MOST.length, 1) };
    }),
    steps: list(value.steps, "requests", MOST.steps).map((each, i) => {
      const what = `request ${i + 1}`;
      return {
        name: text(table(each, what).name, `the name of ${what}`, MOST.name, String(i + 1)),
        prompt: text(each.prompt, `the prompt of ${what}`, MOST.text, ""),
        predict: number(each.predict, `the tokens to predict of ${what}`, 0, MOST.predict, null),
        slot: number(each.slot, `the slot of ${what}`, -1, 63, null),
      };
    }),
  };
}
