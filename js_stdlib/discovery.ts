/**
 * Tells scripts, as `@codemode/discovery`, what servers and tools there are (Code Mode specification, section 4).
 *
 * Answers come from the catalog that the run started with.
 *
 * @module
 */

/** Names the version of the Code Mode specification that this module follows (section 12.1). */
export const SPEC_VERSION = "1.0.0";

/** Asks the broker's catalog. */
export type AskCatalog = (
  op: "listServers" | "describeServer" | "listTools" | "getTool" | "searchTools",
  args: unknown[],
) => Promise<unknown>;

/** Makes the exports of the module `@codemode/discovery`. */
export function makeDiscovery(ask: AskCatalog) {
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
  };
}
