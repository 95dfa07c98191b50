/**
 * Makes events and what cancels with them, as the DOM standard has it, for targets that stand in no tree.
 *
 * @module
 */

import * as p from "../primordials.ts";

const SafeTypeError = TypeError;
const SafeError = Error;

interface EventInit {
  bubbles?: unknown;
  cancelable?: unknown;
  composed?: unknown;
}

interface Listener {
  type: string;
  callback: unknown;
  capture: boolean;
  once: boolean;
  passive: boolean;
  gone: boolean;
}

interface ListenerOptions {
  capture?: unknown;
  once?: unknown;
  passive?: unknown;
  signal?: unknown;
}

function defineConstants(on: object, table: Record<string, number>): void {
  const names = p.objectKeys(table);
  for (let i = 0; i < names.length; i++) {
    p.defineProperty(on, names[i], { __proto__: null, value: table[names[i]], enumerable: true } as never);
  }
}

/** Hears the errors that listeners and microtasks throw; set by the sandbox. */
export const uncaught: { hear(error: unknown): void } = { hear() {} };

/** Sets a timer of the sandbox's, in milliseconds. */
export type SetTimer = (callback: unknown, delay?: unknown) => number;

/**
 * Makes this realm's classes of events: members as Deno's classes have them, and `initialized` and `getParent`, which
 * are Deno's own. `now` gives milliseconds.
 */
export function defineEvents(now: () => number, setTimeout: SetTimer) {
  /**
   * Maps the names of exceptions, and below those of constants, to the numbers of old; of those that are there alone
   * only the number is left. Written out: what is computed here is computed for each context that needs it.
   */
  const CODES: Record<string, number> = {
    __proto__: null as never,
    IndexSizeError: 1,
    HierarchyRequestError: 3,
    WrongDocumentError: 4,
    InvalidCharacterError: 5,
    NoModificationAllowedError: 7,
    NotFoundError: 8,
    NotSupportedError: 9,
    InUseAttributeError: 10,
    InvalidStateError: 11,
    SyntaxError: 12,
    InvalidModificationError: 13,
    NamespaceError: 14,
    InvalidAccessError: 15,
    TypeMismatchError: 17,
    SecurityError: 18,
    NetworkError: 19,
    AbortError: 20,
    URLMismatchError: 21,
    QuotaExceededError: 22,
    TimeoutError: 23,
    InvalidNodeTypeError: 24,
    DataCloneError: 25,
  };
  const CONSTANTS: Record<string, number> = {
    __proto__: null as never,
    INDEX_SIZE_ERR: 1,
    DOMSTRING_SIZE_ERR: 2,
    HIERARCHY_REQUEST_ERR: 3,
    WRONG_DOCUMENT_ERR: 4,
    INVALID_CHARACTER_ERR: 5,
    NO_DATA_ALLOWED_ERR: 6,
    NO_MODIFICATION_ALLOWED_ERR: 7,
    NOT_FOUND_ERR: 8,
    NOT_SUPPORTED_ERR: 9,
    INUSE_ATTRIBUTE_ERR: 10,
    INVALID_STATE_ERR: 11,
    SYNTAX_ERR: 12,
    INVALID_MODIFICATION_ERR: 13,
    NAMESPACE_ERR: 14,
    INVALID_ACCESS_ERR: 15,
    VALIDATION_ERR: 16,
    TYPE_MISMATCH_ERR: 17,
    SECURITY_ERR: 18,
    NETWORK_ERR: 19,
    ABORT_ERR: 20,
    URL_MISMATCH_ERR: 21,
    QUOTA_EXCEEDED_ERR: 22,
    TIMEOUT_ERR: 23,
    INVALID_NODE_TYPE_ERR: 24,
    DATA_CLONE_ERR: 25,
  };
  const PHASES: Record<string, number> = {
    __proto__: null as never,
    NONE: 0,
    CAPTURING_PHASE: 1,
    AT_TARGET: 2,
    BUBBLING_PHASE: 3,
  };

  class DOMException extends SafeError {
    #name: string;
    #message: string;
    constructor(message: unknown = "", options: unknown = "Error") {
      super();
      this.#message = p.toText(message);
      const given = typeof options === "object" && options !== null
        ? options as { name?: unknown; cause?: unknown }
        : null;
      this.#name = p.toText(given === null ? options : given.name ?? "Error");
      if (given !== null && p.hasOwn(given, "cause")) {
        p.defineProperty(this, "cause", { value: given.cause, writable: true, configurable: true });
      }
    }
    // @ts-ignore: an accessor here, where the base has a property
    override get name(): string {
      return this.#name;
    }
    // @ts-ignore: likewise
    override get message(): string {
      return this.#message;
    }
    get code(): number {
      return CODES[this.#name] ?? 0;
    }
  }
  defineConstants(DOMException, CONSTANTS);
  defineConstants(DOMException.prototype, CONSTANTS);

  let setTarget: (event: Event, target: EventTarget | null, phase: number) => void;
  let isBusy: (event: Event) => boolean;
  let isStopped: (event: Event) => boolean;
  let setPassive: (event: Event, passive: boolean) => void;
  let trust: (event: Event) => void;

  class Event {
    #type: string;
    #bubbles: boolean;
    #cancelable: boolean;
    #composed: boolean;
    #target: EventTarget | null = null;
    #current: EventTarget | null = null;
    #phase = 0;
    #stopped = false;
    #stoppedNow = false;
    #prevented = false;
    #passive = false;
    #trusted = false;
    #time = now();
    constructor(type: unknown, init: EventInit = {}) {
      if (arguments.length === 0) throw new SafeTypeError("Event: 1 argument required, but only 0 present");
      this.#type = p.toText(type);
      this.#bubbles = !!init?.bubbles;
      this.#cancelable = !!init?.cancelable;
      this.#composed = !!init?.composed;
    }
    static {
      setTarget = (event, target, phase) => {
        if (target !== null) event.#target = target;
        event.#current = target;
        event.#phase = phase;
        if (target === null) event.#stopped = event.#stoppedNow = false;
      };
      isBusy = (event) => event.#phase !== 0;
      isStopped = (event) => event.#stoppedNow;
      setPassive = (event, passive) => void (event.#passive = passive);
      trust = (event) => void (event.#trusted = true);
    }
    get type(): string {
      return this.#type;
    }
    get target(): EventTarget | null {
      return this.#target;
    }
    get srcElement(): EventTarget | null {
      return this.#target;
    }
    set srcElement(_value: unknown) {}
    get currentTarget(): EventTarget | null {
      return this.#current;
    }
    composedPath(): EventTarget[] {
      return this.#current === null ? [] : [this.#current];
    }
    get eventPhase(): number {
      return this.#phase;
    }
    stopPropagation(): void {
      this.#stopped = true;
    }
    get cancelBubble(): boolean {
      return this.#stopped;
    }
    set cancelBubble(value: unknown) {
      if (value) this.#stopped = true;
    }
    stopImmediatePropagation(): void {
      this.#stopped = this.#stoppedNow = true;
    }
    get bubbles(): boolean {
      return this.#bubbles;
    }
    get cancelable(): boolean {
      return this.#cancelable;
    }
    get returnValue(): boolean {
      return !this.#prevented;
    }
    set returnValue(value: unknown) {
      if (!value) this.preventDefault();
    }
    preventDefault(): void {
      if (this.#cancelable && !this.#passive) this.#prevented = true;
    }
    get defaultPrevented(): boolean {
      return this.#prevented;
    }
    get composed(): boolean {
      return this.#composed;
    }
    get timeStamp(): number {
      return this.#time;
    }
    get isTrusted(): boolean {
      return this.#trusted;
    }
    get initialized(): boolean {
      return true;
    }
    get NONE(): number {
      return 0;
    }
    get CAPTURING_PHASE(): number {
      return 1;
    }
    get AT_TARGET(): number {
      return 2;
    }
    get BUBBLING_PHASE(): number {
      return 3;
    }
  }
  defineConstants(Event, PHASES);

  let dispatch: (target: EventTarget, event: Event) => boolean;

  class EventTarget {
    #listeners: Listener[] = [];
    static {
      dispatch = (target, event) => {
        setTarget(event, target, 2);
        const listeners = p.toSpliced(target.#listeners, 0, 0) as Listener[];
        for (let pass = 0; pass < 2; pass++) {
          for (let i = 0; i < listeners.length && !isStopped(event); i++) {
            const listener = listeners[i];
            if (listener.gone || listener.type !== event.type || listener.capture !== (pass === 0)) continue;
            if (listener.once) target.#drop(listener);
            setPassive(event, listener.passive);
            EventTarget.#call(listener.callback, target, event);
            setPassive(event, false);
          }
        }
        setTarget(event, null, 0);
        return !event.defaultPrevented;
      };
    }
    static #call(callback: unknown, target: EventTarget, event: Event): void {
      try {
        if (typeof callback === "function") {
          p.apply(callback as () => void, target, [event]);
          return;
        }
        const { handleEvent } = callback as { handleEvent: unknown };
        if (typeof handleEvent !== "function") throw new SafeTypeError("handleEvent is no function");
        p.apply(handleEvent as () => void, callback, [event]);
      } catch (error) {
        uncaught.hear(error);
      }
    }
    #drop(listener: Listener): void {
      listener.gone = true;
      const kept: Listener[] = [];
      for (let i = 0; i < this.#listeners.length; i++) {
        if (this.#listeners[i] !== listener) p.append(kept, this.#listeners[i]);
      }
      this.#listeners = kept;
    }
    #find(type: string, callback: unknown, capture: boolean): Listener | undefined {
      for (let i = 0; i < this.#listeners.length; i++) {
        const one = this.#listeners[i];
        if (one.type === type && one.callback === callback && one.capture === capture) return one;
      }
      return undefined;
    }
    getParent(_event: unknown): null {
      return null;
    }
    addEventListener(type: unknown, callback: unknown, options: ListenerOptions | boolean | undefined): void {
      const given = typeof options === "object" && options !== null ? options : { capture: options };
      const { signal } = given as { signal?: AbortSignal };
      if (signal !== undefined && !isSignal(signal)) {
        throw new SafeTypeError("addEventListener: signal is no AbortSignal");
      }
      if (
        callback !== null && callback !== undefined && typeof callback !== "function" &&
        typeof callback !== "object"
      ) {
        throw new SafeTypeError("addEventListener: the callback is no function and no object");
      }
      if (signal?.aborted || callback === null || callback === undefined) return;
      const name = p.toText(type);
      const capture = !!given.capture;
      if (this.#find(name, callback, capture) !== undefined) return;
      const { once, passive } = given as ListenerOptions;
      const listener = { type: name, callback, capture, once: !!once, passive: !!passive, gone: false };
      p.append(this.#listeners, listener);
      if (signal !== undefined) onAbort(signal, () => this.#drop(listener));
    }
    removeEventListener(
      type: unknown,
      callback: unknown,
      options: ListenerOptions | boolean | undefined,
    ): void {
      const capture = typeof options === "object" && options !== null ? options.capture : options;
      const listener = this.#find(p.toText(type), callback, !!capture);
      if (listener !== undefined) this.#drop(listener);
    }
    dispatchEvent(event: Event): boolean {
      if (isBusy(event)) throw new DOMException("The event is being dispatched already", "InvalidStateError");
      return dispatch(this, event);
    }
  }

  const key = {};
  let isSignal: (value: unknown) => boolean;
  let onAbort: (signal: AbortSignal, run: () => void) => void;
  let abort: (signal: AbortSignal, reason: unknown) => void;
  const { addEventListener: add, removeEventListener: remove } = EventTarget.prototype;

  class AbortSignal extends EventTarget {
    #aborted = false;
    #reason: unknown = undefined;
    #onabort: unknown = null;
    #after: (() => void)[] = [];
    constructor(...given: unknown[]) {
      if (given[0] !== key) throw new SafeTypeError("Illegal constructor");
      super();
    }
    static {
      p.defineProperty(this.prototype, "onabort", {
        __proto__: null,
        get(this: AbortSignal): unknown {
          return this.#onabort;
        },
        set(this: AbortSignal, handler: unknown) {
          if (this.#onabort !== null) this.removeEventListener("abort", this.#onabort);
          this.#onabort = typeof handler === "function" || typeof handler === "object" ? handler : null;
          if (this.#onabort !== null) this.addEventListener("abort", this.#onabort);
        },
        configurable: true,
      } as PropertyDescriptor);
      isSignal = (value) => typeof value === "object" && value !== null && #aborted in value;
      onAbort = (signal, run) => p.append(signal.#after, run);
      abort = (signal, reason) => {
        if (signal.#aborted) return;
        signal.#aborted = true;
        signal.#reason = reason === undefined
          ? new DOMException("The signal has been aborted", "AbortError")
          : reason;
        const after = signal.#after;
        signal.#after = [];
        for (let i = 0; i < after.length; i++) after[i]();
        const event = new Event("abort");
        trust(event);
        dispatch(signal, event);
      };
    }
    get aborted(): boolean {
      return this.#aborted;
    }
    get reason(): unknown {
      return this.#reason;
    }
    throwIfAborted(): void {
      if (this.#aborted) throw this.#reason;
    }
    override addEventListener(...given: unknown[]): void {
      p.apply(add, this, given);
    }
    override removeEventListener(...given: unknown[]): void {
      p.apply(remove, this, given);
    }
    static abort(reason: unknown = undefined): AbortSignal {
      const made = new AbortSignal(key);
      abort(made, reason);
      return made;
    }
    static any(signals: Iterable<AbortSignal>): AbortSignal {
      const made = new AbortSignal(key);
      const all = [...signals];
      for (let i = 0; i < all.length; i++) {
        if (!isSignal(all[i])) throw new SafeTypeError("AbortSignal.any: not all are signals");
      }
      for (let i = 0; i < all.length; i++) {
        if (all[i].#aborted) abort(made, all[i].#reason);
        else onAbort(all[i], () => abort(made, all[i].#reason));
      }
      return made;
    }
    static timeout(milliseconds: unknown): AbortSignal {
      const made = new AbortSignal(key);
      setTimeout(() => abort(made, new DOMException("Signal timed out.", "TimeoutError")), milliseconds);
      return made;
    }
  }

  class AbortController {
    #signal = new AbortSignal(key);
    get signal(): AbortSignal {
      return this.#signal;
    }
    abort(reason?: unknown): void {
      abort(this.#signal, reason);
    }
  }

  return { DOMException, Event, EventTarget, AbortSignal, AbortController };
}
