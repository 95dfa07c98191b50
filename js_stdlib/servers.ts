/**
 * Binds the modules `@codemode/servers/*`: one async function a tool (Code Mode specification, section 5).
 *
 * The module of a server is generated text that calls `bindServer` and exports what it returns.
 *
 * @module
 */

/** Sends one call to the broker. */
export type CallTool = (
  server: string,
  tool: string,
  exportName: string,
  input: unknown,
  exact?: boolean,
) => Promise<unknown>;

/** Holds what the generated module of one server works with. */
export interface ServerBinder {
  /**
   * Makes the function of one tool; `arity` is its `length`: 1 with an input schema, 0 without. With `exact`, integers of
   * its results that numbers cannot have are bigints.
   */
  tool(
    toolName: string,
    exportName: string,
    arity: number,
    exact?: boolean,
  ): (input?: unknown) => Promise<unknown>;
  /** Makes `__meta__` from its JSON text, frozen all the way down. */
  meta(json: string): unknown;
}

const freeze = Object.freeze;
const define = Object.defineProperty;
const keysOf = Object.keys;
const parse = JSON.parse;

/** Makes the binder of one server. */
export function bindServer(serverId: string, callTool: CallTool): ServerBinder {
  return {
    tool(toolName, exportName, arity, exact) {
      const holder = {
        async [exportName](input?: unknown): Promise<unknown> {
          return await callTool(serverId, toolName, exportName, input, exact);
        },
      };
      const binding = holder[exportName];
      define(binding, "length", { __proto__: null, value: arity } as never);
      return freeze(binding);
    },
    meta(json) {
      return deepFreeze(parse(json));
    },
  };
}

function deepFreeze<T>(value: T): T {
  if (typeof value === "object" && value !== null) {
    const keys = keysOf(value);
    for (let index = 0; index < keys.length; index++) {
      deepFreeze((value as Record<string, unknown>)[keys[index]]);
    }
    freeze(value);
  }
  return value;
}
