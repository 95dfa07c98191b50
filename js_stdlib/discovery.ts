/**
 * Tells scripts, as `@codemode/discovery`, what servers and tools there are (Code Mode specification, section 4).
 *
 * Answers come from the catalog that the run started with; `readResource` alone asks a server.
 *
 * @module
 */

import { errorClasses } from "./errors.ts";
import type { CallTool } from "./servers.ts";

/** Names the version of the Code Mode specification that this module follows (section 12.1). */
export const SPEC_VERSION = "1.0.0";

/** Asks the broker's catalog. */
export type AskCatalog = (
  op: "listServers" | "describeServer" | "listTools" | "getTool" | "searchTools" | "describe",
  args: unknown[],
) => Promise<unknown>;

/** Names the request that the broker counts and grants as a call of a tool of this name. */
const READ = "resources/read";

// What is longer does not fit into a call.
const MAX_ID_CHARS = 512;

/** Makes the exports of the module `@codemode/discovery`. */
export function makeDiscovery(ask: AskCatalog, call: CallTool) {
  return {
    specVersion: SPEC_VERSION,
    async listServers(): Promise<unknown> {
      return await ask("listServers", []);
    },
    async describeServer(serverId: string): Promise<unknown> {
      return await ask("describeServer", [serverId]);
    },
    async listTools(serverId: string, options?: unknown): Promise<unknown> {
      return await ask("listTools", [serverId, options ?? {}]);
    },
    async getTool(serverId: string, toolName: string): Promise<unknown> {
      return await ask("getTool", [serverId, toolName]);
    },
    async searchTools(query: string, options?: unknown): Promise<unknown> {
      return await ask("searchTools", [query, options ?? {}]);
    },
    async describe(serverId: string, names?: unknown): Promise<unknown> {
      return await ask("describe", [serverId, names ?? null]);
    },
    async readResource(serverId: string, uri: string): Promise<unknown> {
      if (typeof serverId !== "string" || serverId === "" || serverId.length > MAX_ID_CHARS) {
        throw new (errorClasses().ServerNotFoundError)("serverId is no id of a server.", {
          hint: "Use a server id of listServers().",
        });
      }
      return await call(serverId, READ, "readResource", { uri });
    },
  };
}
