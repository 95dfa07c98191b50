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

/** Stands for any error of `@codemode/*`: the base of all of them. */
export class CodemodeError extends Error {
  declare hint: string;
  declare code?: string;
  declare serverId?: string;
  declare toolName?: string;

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
        define(this, keys[index], { __proto__: null, value, enumerable: true, configurable: true } as never);
      }
    }
  }
}

/** Tells that the input does not fit the tool's schema (section 7.2). */
export class SchemaValidationError extends CodemodeError {
  declare exportName?: string;
  /** Points to the failing property, as a JSON Pointer. */
  declare path?: string;
  declare expected?: string;
  declare received?: string;
  /** Holds a minimal payload that would pass. */
  declare example?: unknown;
}

/** Tells that the server has no such tool. */
export class ToolNotFoundError extends CodemodeError {}

/** Tells that the server is not connected. */
export class ServerNotFoundError extends CodemodeError {}

/**
 * Tells that the tool answered with an error, or that the call could not be completed; `certainty` says what is known.
 */
export class ToolCallError extends CodemodeError {
  declare certainty?: string;
  /** Holds the full MCP result, where the server sent one. */
  declare result?: unknown;
}

/** Tells that the server refused the call for lack of valid credentials. */
export class AuthenticationError extends ToolCallError {}

/** Tells that a limit of the run is used up. */
export class SandboxLimitError extends CodemodeError {}

const classes = {
  __proto__: null,
  CodemodeError,
  SchemaValidationError,
  ToolNotFoundError,
  ServerNotFoundError,
  ToolCallError,
  AuthenticationError,
  SandboxLimitError,
} as unknown as Record<string, typeof CodemodeError | undefined>;

const names = keysOf(classes);
for (let index = 0; index < names.length; index++) {
  const made = classes[names[index]]!;
  define(made.prototype, "name", { value: names[index], configurable: true, writable: true });
  // The worker's bundle has shorter ones.
  define(made, "name", { value: names[index], configurable: true });
}

/** Holds the exports of the module `@codemode/errors`. */
export const errorClasses: Record<string, typeof CodemodeError | undefined> = classes;

/** Makes the error that a reply of the broker describes. */
export function errorFromBroker(value: unknown): CodemodeError {
  const { errorClass, message, ...details } = value as ErrorDetails & { errorClass: string; message: string };
  const chosen = classes[errorClass] ?? ToolCallError;
  return new chosen(message, details);
}
