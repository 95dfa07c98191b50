/**
 * Makes `URL` and `URLSearchParams`: the realm around parses, in strings.
 *
 * @module
 */

import * as p from "../primordials.ts";
import type { Outer } from "./outer.ts";

const { parse, stringify } = JSON;
const SafeTypeError = TypeError;
const iterator: typeof Symbol.iterator = Symbol.iterator;

type Pair = [name: string, value: string];
type Parts = Record<string, string>;
type Callback = (value: string, name: string, params: object) => void;

/** Makes this realm's `URL` and `URLSearchParams`. */
export function defineUrls(outer: Outer) {
  class URLSearchParams {
    #pairs: Pair[] = [];
    #changed: ((query: string) => void) | undefined;
    constructor(init: unknown = "") {
      if (typeof init !== "object" && typeof init !== "function" || init === null) {
        const text = p.toText(init);
        this.#pairs = parse(outer.pairs(text[0] === "?" ? p.slice(text, 1) : text));
        return;
      }
      if ((init as Partial<Iterable<unknown>>)[iterator] === undefined) {
        const names = p.ownKeys(init);
        for (let i = 0; i < names.length; i++) {
          if (!p.getOwnPropertyDescriptor(init, names[i])?.enumerable) continue;
          this.#append(p.toText(names[i]), p.toText((init as Record<PropertyKey, unknown>)[names[i]]));
        }
        return;
      }
      for (const pair of init as Iterable<Iterable<unknown>>) {
        const two = [...pair];
        if (two.length !== 2) {
          throw new SafeTypeError("URLSearchParams: each pair must be of a name and a value");
        }
        this.#append(p.toText(two[0]), p.toText(two[1]));
      }
    }
    /** Makes the live parameters of a URL: `changed` hears each new query; the function that it gives takes one. */
    static of(query: string, changed: (query: string) => void): [URLSearchParams, (query: string) => void] {
      const made = new URLSearchParams(query);
      made.#changed = changed;
      return [made, (text) => made.#pairs = parse(outer.pairs(text))];
    }
    #append(name: string, value: string): void {
      p.append(this.#pairs, [p.toWellFormed(name), p.toWellFormed(value)]);
    }
    #keep(wanted: (pair: Pair) => boolean): void {
      const kept: Pair[] = [];
      for (let i = 0; i < this.#pairs.length; i++) if (wanted(this.#pairs[i])) p.append(kept, this.#pairs[i]);
      this.#pairs = kept;
    }
    #update(): void {
      this.#changed?.(outer.query(stringify(this.#pairs)));
    }
    #of(name: unknown): string[] {
      const wanted = p.toWellFormed(p.toText(name));
      const found: string[] = [];
      for (let i = 0; i < this.#pairs.length; i++) {
        if (this.#pairs[i][0] === wanted) p.append(found, this.#pairs[i][1]);
      }
      return found;
    }
    append(name: unknown, value: unknown): void {
      this.#append(p.toText(name), p.toText(value));
      this.#update();
    }
    delete(name: unknown, value: unknown = undefined): void {
      const [key, one] = [p.toText(name), value === undefined ? undefined : p.toText(value)];
      this.#keep((pair) => pair[0] !== key || one !== undefined && pair[1] !== one);
      this.#update();
    }
    getAll(name: unknown): string[] {
      return this.#of(name);
    }
    get(name: unknown): string | null {
      return this.#of(name)[0] ?? null;
    }
    has(name: unknown, value: unknown = undefined): boolean {
      const found = this.#of(name);
      if (value === undefined) return found.length > 0;
      const wanted = p.toText(value);
      for (let i = 0; i < found.length; i++) if (found[i] === wanted) return true;
      return false;
    }
    set(name: unknown, value: unknown): void {
      const [key, text] = [p.toWellFormed(p.toText(name)), p.toWellFormed(p.toText(value))];
      let placed = false;
      this.#keep((pair) => {
        if (pair[0] !== key) return true;
        const first = !placed;
        placed = true;
        if (first) pair[1] = text;
        return first;
      });
      if (!placed) this.#append(key, text);
      this.#update();
    }
    sort(): void {
      p.sort(this.#pairs, (a: Pair, b: Pair) => a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0);
      this.#update();
    }
    forEach(callback: Callback, thisArg: unknown = undefined): void {
      for (let i = 0; i < this.#pairs.length; i++) {
        p.apply(callback, thisArg, [this.#pairs[i][1], this.#pairs[i][0], this]);
      }
    }
    *#each<T>(of: (pair: Pair) => T): Generator<T> {
      for (let i = 0; i < this.#pairs.length; i++) yield of(this.#pairs[i]);
    }
    // No generators themselves: built-ins have no `prototype`.
    entries(): Generator<Pair> {
      return this.#each<Pair>((pair) => [pair[0], pair[1]]);
    }
    keys(): Generator<string> {
      return this.#each((pair) => pair[0]);
    }
    values(): Generator<string> {
      return this.#each((pair) => pair[1]);
    }
    get size(): number {
      return this.#pairs.length;
    }
    toString(): string {
      return outer.query(stringify(this.#pairs));
    }
  }
  const liveParams = URLSearchParams.of;
  p.deleteProperty(URLSearchParams, "of");
  p.defineProperty(URLSearchParams.prototype, iterator, {
    __proto__: null,
    value: URLSearchParams.prototype.entries,
    writable: true,
    configurable: true,
  } as PropertyDescriptor);

  class URL {
    #parts: Parts;
    #params: URLSearchParams | undefined;
    #retake: ((query: string) => void) | undefined;
    constructor(url: unknown, base: unknown = undefined) {
      const parts = URL.#parse(url, base);
      if (parts === undefined) {
        throw new SafeTypeError(`Invalid URL: '${url}'${base === undefined ? "" : ` with base '${base}'`}`);
      }
      this.#parts = parts;
    }
    static #parse(url: unknown, base: unknown): Parts | undefined {
      const said = outer.url(p.toText(url), base === undefined ? "" : `=${p.toText(base)}`, "", "");
      return said === "" ? undefined : parse(said);
    }
    static canParse(url: unknown, base: unknown = undefined): boolean {
      return URL.#parse(url, base) !== undefined;
    }
    static parse(url: unknown, base: unknown = undefined): URL | null {
      return URL.#parse(url, base) === undefined ? null : new URL(url, base);
    }
    static part(url: URL, name: string, value?: unknown): string {
      if (value === undefined) return url.#parts[name];
      const said = outer.url(url.#parts.href, "", name, p.toText(value));
      if (said === "") throw new SafeTypeError(`Invalid URL: '${value}'`);
      url.#parts = parse(said);
      if (name === "href" || name === "search") url.#retake?.(p.slice(url.#parts.search, 1));
      return "";
    }
    get origin(): string {
      return this.#parts.origin;
    }
    get searchParams(): URLSearchParams {
      if (this.#params === undefined) {
        [this.#params, this.#retake] = liveParams(p.slice(this.#parts.search, 1), (query) => {
          this.#parts = parse(outer.url(this.#parts.href, "", "search", query));
        });
      }
      return this.#params!;
    }
    toString(): string {
      return this.#parts.href;
    }
    toJSON(): string {
      return this.#parts.href;
    }
  }
  const partOf = URL.part;
  p.deleteProperty(URL, "part");
  const names = [
    "href",
    "protocol",
    "username",
    "password",
    "host",
    "hostname",
    "port",
    "pathname",
    "search",
    "hash",
  ];
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    const accessor = {
      get [name](): string {
        return partOf(this as unknown as URL, name);
      },
      set [name](value: unknown) {
        partOf(this as unknown as URL, name, p.toText(value));
      },
    };
    p.defineProperty(URL.prototype, name, {
      __proto__: null,
      ...p.getOwnPropertyDescriptor(accessor, name),
    } as PropertyDescriptor);
  }

  return { URL, URLSearchParams };
}
