/**
 * Holds, as `@codemode/errors`, what a tool call can throw (Code Mode specification, section 7).
 *
 * @example
 * ```ts ignore
 * import { ToolCallError } from "@codemode/errors";
 * try { await files.read_file({ path: "missing" }); }
 * catch (error) { if (error instanceof ToolCallError) console.log(error.message, error.hint); }
 * ```
 *
 * @module
 */

/** Holds what every error carries beside its message. `hint` is one corrective action (section 7.3). */
export interface ErrorDetails {
  hint: string;
  code?: string;
  serverId?: string;
  toolName?: string;
  exportName?: string;
  path?: string;
  expected?: string;
  received?: string;
  example?: unknown;
  certainty?: string;
  fault?: string;
  result?: unknown;
}

const define = Object.defineProperty;
const keysOf = Object.keys;
const PlainError = Error;

/** Stands for any error of `@codemode/*`: the base of all of them. */
export interface CodemodeError extends Error, Partial<ErrorDetails> {}

type ErrorClass = new (message?: string, details?: Partial<ErrorDetails>) => CodemodeError;

/** Lists the classes. */
export interface ErrorClasses {
  CodemodeError: ErrorClass;
  /**
   * Tells that the input does not fit the tool's schema (section 7.2): `path` points to the failing property, as a JSON
   * Pointer; `example` is a minimal payload that would pass.
   */
  SchemaValidationError: ErrorClass;
  /** Tells that the server has no such tool. */
  ToolNotFoundError: ErrorClass;
  /** Tells that the server is not connected. */
  ServerNotFoundError: ErrorClass;
  /**
   * Tells that the tool answered with an error, or that the call could not be completed; `certainty` says what is known,
   * `result` is the full MCP result, where the server sent one.
   */
  ToolCallError: ErrorClass;
  /** Tells that the server refused the call for lack of valid credentials. */
  AuthenticationError: ErrorClass;
  /** Tells that a limit of the run is used up. */
  SandboxLimitError: ErrorClass;
}

let classes: ErrorClasses | undefined;

/** Returns the exports of the module `@codemode/errors`; they are made at the first use, as most runs have none. */
export function errorClasses(): ErrorClasses {
  return classes ??= makeClasses();
}

function makeClasses(): ErrorClasses {
  class CodemodeError extends PlainError {
    /**
     * Makes an error: without details, as a script may make it, it has no hint; the sandbox and the broker always give
     * one.
     */
    constructor(message?: string, details: Partial<ErrorDetails> = {}) {
      super(message);
      const keys = keysOf(details) as (keyof ErrorDetails)[];
      for (let index = 0; index < keys.length; index++) {
        const value = details[keys[index]];
        if (value !== undefined && value !== null) {
          // Defined, not assigned: a setter planted on a prototype must not see it.
          define(
            this,
            keys[index],
            { __proto__: null, value, enumerable: true, configurable: true } as never,
          );
        }
      }
    }
  }
  class ToolCallError extends CodemodeError {}
  const made = {
    __proto__: null as never,
    CodemodeError,
    SchemaValidationError: class extends CodemodeError {},
    ToolNotFoundError: class extends CodemodeError {},
    ServerNotFoundError: class extends CodemodeError {},
    ToolCallError,
    AuthenticationError: class extends ToolCallError {},
    SandboxLimitError: class extends CodemodeError {},
  };
  const names = keysOf(made) as (keyof ErrorClasses)[];
  for (let index = 0; index < names.length; index++) {
    const name = { __proto__: null, value: names[index], configurable: true } as never;
    const one = made[names[index]];
    // The worker's bundle has shorter ones.
    define(one, "name", name);
    define(one.prototype, "name", name);
    define(one.prototype, "name", { __proto__: null, writable: true } as never);
  }
  return made as unknown as ErrorClasses;
}

/** Makes the error that a reply of the broker describes. */
export function errorFromBroker(value: unknown): CodemodeError {
  const { errorClass, message, ...details } = value as ErrorDetails & { errorClass: string; message: string };
  const known = errorClasses();
  const chosen = known[errorClass as keyof ErrorClasses] ?? known.ToolCallError;
  return new chosen(message, details);
}
