// The simulator's worker: files fetched once, one question at a time, runs coalesced, a cancel that restarts it.
"use strict";

const LATE = 400; // milliseconds after which a run shows that it is busy

class Simulator {
  constructor({ progress, ready, trouble, busy }) {
    Object.assign(this, { progress, onReady: ready, trouble, onBusy: busy });
    this.files = null;
    this.worker = null;
    this.ready = false;
    this.current = null;
    this.queue = [];
    this.number = 0;
  }

  async load(manifest) {
    let come = 0;
    const whole = manifest.files.reduce((sum, each) => sum + each.bytes, 0);
    const told = (bytes) => { come += bytes; this.progress(Math.min(1, come / whole), "Loading the simulator"); };
    this.address = OFFLINE ? URL.createObjectURL(await (await file("worker.js")).blob()) : "worker.js";
    this.files = await Promise.all(manifest.files.map(async (each) => ({ ...each, data: await fetched(each.name, told) })));
    this.start();
  }

  start() {
    this.ready = false;
    this.worker = new Worker(this.address);
    this.worker.onerror = (event) => this.trouble(`The simulator could not be started: ${event.message || "the worker failed"}`);
    this.worker.onmessage = ({ data }) => {
      if (data.state) this.progress(1, data.state);
      if (data.ready) { this.ready = true; this.onReady(); this.pump(); }
      if (data.trouble) this.trouble(data.trouble);
      if (this.current && data.number === this.current.number) {
        const { resolve } = this.current;
        this.settle();
        resolve(data.told ? JSON.parse(data.told) : { problems: [`the simulator stopped: ${data.trouble}`] });
        this.pump();
      }
    };
    this.worker.postMessage({ files: this.files });
  }

  /** An answer to come; a run or a log that waits gives way to a later one, and gets null. */
  ask(question, log = null) {
    return new Promise((resolve) => {
      const gives = (one) => one.do === "run" || one.do === "log";
      if (gives(question)) {
        for (const each of this.queue.filter((one) => gives(one.question))) each.resolve(null);
        this.queue = this.queue.filter((one) => !gives(one.question));
      }
      this.queue.push({ question, log, resolve });
      this.pump();
    });
  }

  pump() {
    if (!this.ready || this.current || !this.queue.length) return;
    this.current = this.queue.shift();
    this.current.number = this.number += 1;
    const { number, question, log } = this.current;
    this.since = performance.now();
    this.clock = window.setInterval(() => {
      const passed = performance.now() - this.since;
      if (passed > LATE) this.onBusy(Math.round(passed / 1000));
    }, 200);
    this.worker.postMessage({ number, asked: JSON.stringify(question), log });
  }

  settle() {
    window.clearInterval(this.clock);
    this.current = null;
    this.onBusy(null);
  }

  cancel() {
    if (!this.current) return;
    this.worker.terminate();
    const left = [this.current, ...this.queue];
    this.settle();
    this.queue = [];
    for (const each of left) each.resolve({ cancelled: true });
    this.start();
  }
}

const OFFLINE = window.location.protocol === "file:"; // browsers do not let one file fetch another
let carried = null; // of offline.js: each file in base64

/** A file of the page: fetched, or from offline.js. */
async function file(name) {
  if (!OFFLINE) return fetch(name);
  carried ||= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.addEventListener("load", () => resolve(window.FILES));
    script.addEventListener("error", () => reject(new Error("offline.js is missing")));
    script.src = "offline.js";
    document.head.append(script);
  });
  const found = (await carried)[name];
  if (found === undefined) throw new Error(`${name} is not in offline.js`);
  return new Response(Uint8Array.from(atob(found), (each) => each.charCodeAt(0)), { headers: { "Content-Type": name.endsWith(".js") ? "text/javascript" : "" } });
}

/** A file's bytes; what has come so far is told. */
async function fetched(name, told) {
  const reply = await file(name);
  if (!reply.ok) throw new Error(`${name}: ${reply.status}`);
  const reader = reply.body.getReader();
  const parts = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    told(value.length);
  }
  return new Blob(parts).arrayBuffer();
}
