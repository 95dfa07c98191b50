/**
 * Runs, as its program, in a worker that may serve one principal's runs, one after the other: each in a V8 context
 * that is made for it, or, where the host says so, a single one in the process's own realm.
 *
 * Contexts keep what one run leaves from the next. They are no wall: that is the process.
 *
 * @module
 */

import type { Inner, Outer } from "./context/outer.ts";
import { denoCore } from "./deno_core.ts";
import { removeUnwanted, trimLanguage } from "./globals/globals.ts";
import { deleteProperty } from "./primordials.ts";
import { hear, prepareProcess } from "./process.ts";
import { handled, rejected } from "./run.ts";
import type { Header } from "./wire/frames.ts";
import { makeReader, nextTurn, pipes, textOf } from "./wire/pipes.ts";
import { type FromWorker, PROTOCOL_VERSION } from "./wire/protocol.gen.ts";

const NAMED =
  /\b(?:URL|URLSearchParams|Text(?:En|De)coder|DOMException|Event(?:Target)?|Abort(?:Controller|Signal))\b/;
const WORLD = /\bglobalThis\b(?!\.__codemode_result__\b)/;
/** Finds an escape, by which any character of an identifier may be written. */
const ESCAPED = /\\u/;

/**
 * Says of a script's text whether the script may see that a context has not made the web's classes: where it names one,
 * or the global object for anything but its result.
 *
 * There is no other way to them. A module is strict code, so `this` is nowhere the global object; no code comes from
 * strings; what the sandbox throws itself makes them.
 *
 * @param text of the script's module, as it is compiled.
 */
function mayNameWeb(text: string): boolean {
  return NAMED.test(text) || WORLD.test(text) || ESCAPED.test(text);
}

/** Holds the source of `context/inner.ts`, bundled; the build puts it there, as it does the next. */
declare const CELLBLOCK_INNER: string;
/** Holds Node's module `vm`. */
declare const CELLBLOCK_VM: Vm;

interface Module {
  readonly status: string;
  readonly moduleRequests: readonly { specifier: string }[];
  readonly namespace: Record<string, unknown>;
  linkRequests(modules: Module[]): void;
  instantiate(): void;
  evaluate(): Promise<unknown>;
}

interface Vm {
  constants: { DONT_CONTEXTIFY: symbol };
  createContext(kind: symbol, options: object): object;
  Script: new (source: string, options: object) => { runInContext(world: object): unknown };
  SourceTextModule: new (source: string, options: object) => Module;
}

const vm = CELLBLOCK_VM;
const core = denoCore() as ReturnType<typeof denoCore> & {
  setUnhandledPromiseRejectionHandler(handler: (promise: Promise<unknown>, reason: unknown) => boolean): void;
  setHandledPromiseRejectionHandler(handler: (promise: Promise<unknown>) => void): void;
};
const sandbox = new vm.Script(CELLBLOCK_INNER, { filename: "cellblock:sandbox" });
const encoder = new TextEncoder();
const { randomUUID } = { randomUUID: crypto.randomUUID.bind(crypto) };
const fillRandom = crypto.getRandomValues.bind(crypto);
const now = performance.now.bind(performance);
const hangUp = Deno.stdin.close.bind(Deno.stdin);
const Decoder = TextDecoder;
const Address = URL;
const Query = URLSearchParams;
const { fromBase64 } = Uint8Array as unknown as { fromBase64(text: string): Uint8Array<ArrayBuffer> };
const toBase64 = (bytes: Uint8Array) => (bytes as unknown as { toBase64(): string }).toBase64();
const PARTS = [
  "href",
  "origin",
  "protocol",
  "username",
  "password",
  "host",
  "hostname",
  "port",
  "pathname",
  "search",
  "hash",
] as const;

/** Names what a context has of the engine and no script may have; it is the same in each context. */
let unwanted: string[] | undefined;

/** Holds one V8 context and what it has asked for. */
class Context {
  readonly world: object;
  readonly inner: Inner;
  readonly said: string[] = [];
  unheard = false;
  over = false;
  /** Counts the requests that have no answer. */
  asked = 0;
  /** Says whether the sandbox waits for a turn of the loop, as it does at the script's end. */
  #turns = false;
  #timers = new Map<number, object>();
  #decoders = new Map<number, TextDecoder>();
  #lastDecoder = 0;
  #modules = new Map<string, Module | undefined>();
  #main = "";
  #since = now();

  constructor() {
    this.world = vm.createContext(vm.constants.DONT_CONTEXTIFY, {
      codeGeneration: { strings: false, wasm: false },
    });
    trimLanguage(this.world as typeof globalThis);
    if (unwanted === undefined) unwanted = removeUnwanted(this.world);
    else for (const name of unwanted) deleteProperty(this.world, name);
    const world = this.world as { __cellblock_outer__?: object; __cellblock_inner__?: Inner };
    world.__cellblock_outer__ = this.#outer();
    sandbox.runInContext(this.world);
    this.inner = world.__cellblock_inner__!;
    delete world.__cellblock_inner__;
  }

  /** Says whether it waits for answers and nothing else; of its timers one is the sandbox's own, which looks for that. */
  get onlyAsks(): boolean {
    return this.asked > 0 && this.#timers.size === 1 && !this.#turns && !spent;
  }

  /** Takes back what the context still waits for: from here on nothing of it is called. */
  end(): void {
    this.over = true;
    for (const timer of this.#timers.values()) core.cancelTimer(timer);
    this.#timers.clear();
    this.#decoders.clear();
    this.#modules.clear();
  }

  #outer(): Outer & { __proto__: null } {
    return {
      __proto__: null,
      alive: () => !this.over,
      say: (body, ...header) => this.#say(body, header),
      size: (text) => encoder.encode(text).length,
      timer: (id, ms) => {
        if (this.over) return;
        const run = () => {
          if (this.over) return;
          this.#timers.delete(id);
          this.inner.fire(id);
        };
        this.#timers.set(id, core.createTimer(run, ms, undefined, false, true));
      },
      untimer: (id) => {
        const timer = this.#timers.get(id);
        if (timer !== undefined) core.cancelTimer(timer);
        this.#timers.delete(id);
      },
      turn: () => {
        this.#turns = true;
        void nextTurn().then(() => this.over || this.inner.turn());
      },
      now: () => now() - this.#since,
      allow: (url) => {
        if (this.#main === "") this.#main = url;
        if (!this.#modules.has(url)) this.#modules.set(url, undefined);
      },
      load: (url) => this.#load(url),
      encode: (text) => toBase64(encoder.encode(text)),
      decode: (decoder, base64, stream) => this.#decode(decoder, base64, stream),
      encoding: encodingOf,
      decoder: (encoding, fatal, ignoreBOM) => this.#decoder(encoding, fatal, ignoreBOM),
      random: (count) => toBase64(fillRandom(new Uint8Array(count))),
      uuid: () => randomUUID(),
      url: parseUrl,
      pairs: (query) => JSON.stringify([...new Query(query)]),
      query: (pairs) => new Query(JSON.parse(pairs)).toString(),
    };
  }

  #say(body: string, header: (string | number | boolean)[]): void {
    if (this.over) return;
    const message = { __proto__: null } as unknown as Header;
    for (let index = 0; index < header.length; index += 2) {
      message[header[index] as string] = header[index + 1];
    }
    const kind = message.t as FromWorker["t"];
    this.said.push(kind);
    const ends = kind === "done" || kind === "failed";
    if (ends && !this.unheard) this.over = true;
    if (this.unheard) return;
    pipes.send(message as unknown as FromWorker, body === "" ? undefined : pipes.utf8(body));
    if (ends) void renew(this);
    if (kind === "call" || kind === "query") {
      this.asked++;
      void listen();
    }
  }

  #load(url: string): void {
    try {
      const module = this.#module(url);
      this.#link(module);
      if (module.status === "linking" || module.status === "unlinked") module.instantiate();
      this.inner.loaded(module.evaluate(), module.namespace);
    } catch (error) {
      // What the engine throws for a module of the context is the context's own. What is of this realm stays here.
      if (error instanceof Error) return this.inner.broken(undefined, error.name, error.message);
      void whatIsWrong(url).then(([name, message]) => this.over || this.inner.broken(error, name, message));
    }
  }

  #link(module: Module): void {
    if (module.status !== "unlinked" || linked.has(module)) return;
    linked.add(module);
    const wanted = module.moduleRequests.map(({ specifier }) => this.#module(specifier));
    module.linkRequests(wanted);
    wanted.forEach((each) => this.#link(each));
  }

  #module(url: string): Module {
    const known = this.#modules.get(url);
    if (known !== undefined) return known;
    if (!this.#modules.has(url)) throw new Error(`Module not found "${url.slice(0, 200)}".`);
    const source = textOf(fromBase64(url.slice(url.indexOf(",") + 1)));
    if (url === this.#main && mayNameWeb(source)) this.inner.needWeb();
    const made = new vm.SourceTextModule(source, {
      context: this.world,
      identifier: url,
      initializeImportMeta: this.inner.meta(url),
    });
    this.#modules.set(url, made);
    return made;
  }

  #decoder(encoding: string, fatal: boolean, ignoreBOM: boolean): number {
    this.#decoders.set(++this.#lastDecoder, new Decoder(encoding, { fatal, ignoreBOM }));
    return this.#lastDecoder;
  }

  #decode(id: number, base64: string, stream: boolean): string {
    const decoder = this.#decoders.get(id)!;
    if (!stream) this.#decoders.delete(id);
    try {
      return `=${decoder.decode(fromBase64(base64), { stream })}`;
    } catch (error) {
      return `!${(error as Error).message}`;
    }
  }
}

function encodingOf(label: string): string {
  try {
    return new Decoder(label).encoding;
  } catch {
    return "";
  }
}

const linked = new WeakSet<Module>();

/**
 * Returns what Deno says of a module that cannot be compiled or linked, with the place, which the engine does not tell
 * here. Nothing of the module runs: what it is given to import last throws.
 */
async function whatIsWrong(url: string): Promise<[name: string, message: string]> {
  spent = true; // Deno forgets no source that it was given.
  const head = url.slice(0, url.indexOf(",") + 1);
  const source = `${textOf(fromBase64(url.slice(head.length)))}\nimport "data:text/javascript,throw null";\n`;
  const changed = `${head}${toBase64(encoder.encode(source))}`;
  try {
    await import(changed);
  } catch (error) {
    if (error instanceof Error) return [error.name, error.message.replaceAll(changed, url)];
  }
  return ["", ""];
}

function parseUrl(text: string, base: string, set: string, value: string): string {
  const made = Address.parse(text, base === "" ? undefined : base.slice(1));
  if (made === null) return "";
  if (set === "href" && !Address.canParse(value)) return "";
  if (set !== "") (made as unknown as Record<string, string>)[set] = value;
  const parts: Record<string, string> = {};
  for (const name of PARTS) parts[name] = made[name];
  return JSON.stringify(parts);
}

let next: Context | undefined;
let current: Context | undefined;
let plain = false;
/** Says whether Deno has kept something of a run for good: then this process has no other one. */
let spent = false;

/** Ends what is left of a run, makes the next context ahead, and tells the host. */
async function renew(after: Context): Promise<void> {
  after.end();
  if (current === after) current = undefined;
  // Twice: a reaction of the last turn may have left others.
  await nextTurn();
  await nextTurn();
  if (spent) return hangUp();
  getReady();
}

/** Makes the next context, says so, and waits for its run. */
function getReady(): void {
  next = new Context();
  pipes.send({ t: "ready", protocol: PROTOCOL_VERSION });
  // Nothing is left that the loop could turn for, unless it still waits for answers that nobody awaits.
  while (!listens && next !== undefined && !plain && reader.readSync());
}

/** Says whether a message is waited for while the loop turns. */
let listens = false;

/** Takes messages while a run waits for answers, or is one of the process's own realm. */
async function listen(): Promise<void> {
  if (listens) return;
  listens = true;
  // It may be a frame that has led here: the reader is at it.
  await undefined;
  let goesOn = true;
  while (goesOn && (plain || current === undefined || current.asked > 0)) {
    // What the script can do without an answer is done in the next turn.
    if (current?.onlyAsks) await nextTurn();
    goesOn = current?.onlyAsks ? reader.readSync() : await reader.read();
  }
  listens = false;
}

/** Says `ready`, with a context made ahead; after a rehearsal in another one, if the host has sent its script. */
async function warmUp(body: Uint8Array): Promise<void> {
  if (body.length > 0) {
    const rehearsal = current = new Context();
    rehearsal.unheard = true;
    await rehearsal.inner.rehearse(textOf(body));
    const [first, second] = rehearsal.said;
    rehearsal.end();
    current = undefined;
    if (first !== "log" || second !== "done") throw new Error("the rehearsal failed");
  }
  await undefined;
  getReady();
}

prepareProcess();
core.setUnhandledPromiseRejectionHandler((promise, reason) => {
  if (current !== undefined) current.inner.rejected(promise, reason);
  else if (plain) rejected(promise, reason);
  return true;
});
core.setHandledPromiseRejectionHandler((promise) => {
  if (current !== undefined) current.inner.handled(promise);
  else if (plain) handled(promise);
});
const reader = makeReader((message, body) => {
  if (message.t === "start" && message.context) {
    current = next;
    next = undefined;
    current!.inner.start(message.log_bytes, message.message_bytes, textOf(body));
  } else if (message.t === "reply" && current !== undefined) {
    current.asked--;
    current.inner.reply(message.id, message.ok, textOf(body), body.length);
  } else if (message.t === "start") {
    plain = hear(message, body);
    void listen();
  } else if ((message.t as string) === "warm") {
    void warmUp(body);
  } else if (plain) {
    hear(message, body);
  }
});
reader.readSync();
