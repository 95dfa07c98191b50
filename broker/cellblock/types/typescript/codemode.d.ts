// The fixed modules of the sandbox: Code Mode specification, sections 4 and 7.

declare module "@codemode/discovery" {
  /** Version of the Code Mode specification, as semver. */
  export const specVersion: string;

  /** `name`: names only. `description` (the default): description and annotations too. `full`: schemas too. */
  export type Detail = "name" | "description" | "full";

  export interface ServerInfo {
    /** The last part of the server's module path, `@codemode/servers/<serverId>`. */
    serverId: string;
    serverName: string;
    capabilities?: string[];
  }

  export interface ServerDescription extends ServerInfo {
    description?: string;
    version?: string;
  }

  export interface ToolSummary {
    /** The name in MCP. */
    toolName: string;
    /** The name of the function in the server's module. */
    exportName: string;
    description?: string;
    annotations?: { [key: string]: unknown };
  }

  export interface ToolDefinition extends ToolSummary {
    inputSchema?: { [key: string]: unknown };
    outputSchema?: { [key: string]: unknown };
  }

  export interface SearchResult extends ToolDefinition {
    serverId: string;
    /** The function in one line of TypeScript. */
    signature?: string;
  }

  export interface SearchResults {
    query: string;
    results: SearchResult[];
  }

  export interface ListToolsOptions {
    detail?: Detail;
  }

  export interface SearchToolsOptions {
    detail?: Detail;
    /** Search one server only. */
    serverId?: string;
    /** At most so many results. */
    limit?: number;
  }

  export function listServers(): Promise<ServerInfo[]>;
  export function describeServer(serverId: string): Promise<ServerDescription>;
  export function listTools(serverId: string, options?: ListToolsOptions): Promise<ToolDefinition[]>;
  export function getTool(serverId: string, toolName: string): Promise<ToolDefinition>;
  export function searchTools(query: string, options?: SearchToolsOptions): Promise<SearchResults>;
  /** TypeScript declarations of a server's functions: of all, or of those that are named. */
  export function describe(serverId: string, functions?: string | string[]): Promise<string>;

  /** What a resource consists of; `blob` is base64. */
  export interface ResourceContents {
    contents: { uri: string; mimeType?: string; text?: string; blob?: string; [key: string]: unknown }[];
    [key: string]: unknown;
  }

  /** Reads what a `resource_link` names: the string of a resource that is one text, else its contents. Counts as a
   * tool call. */
  export function readResource(serverId: string, uri: string): Promise<string | ResourceContents>;
}

declare module "@codemode/errors" {
  /** Base of all errors that calls of tools and of discovery throw. */
  export class CodemodeError extends Error {
    /** One corrective action. */
    readonly hint: string;
    readonly code?: string;
    readonly serverId?: string;
    /** The tool's name in MCP. */
    readonly toolName?: string;
  }

  /** The input does not fit the tool's schema. */
  export class SchemaValidationError extends CodemodeError {
    readonly exportName?: string;
    /** JSON Pointer to the failing property. */
    readonly path?: string;
    readonly expected?: string;
    readonly received?: string;
    /** A minimal payload that would pass. */
    readonly example?: unknown;
  }

  /** The server has no such tool. */
  export class ToolNotFoundError extends CodemodeError {}

  /** The server is not connected. */
  export class ServerNotFoundError extends CodemodeError {}

  /** The tool answered with an error, or the call could not be completed. */
  export class ToolCallError extends CodemodeError {
    /** What is known of the call, for example whether it may have run. */
    readonly certainty?: string;
    /** The full MCP result, where the server sent one. */
    readonly result?: unknown;
  }

  /** The server refused the call for lack of valid credentials. */
  export class AuthenticationError extends ToolCallError {}

  /** A limit of the run is used up. */
  export class SandboxLimitError extends CodemodeError {}
}
