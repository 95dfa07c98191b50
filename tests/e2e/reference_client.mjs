// A TypeScript reference client, driven line by line: commands as JSON on stdin, one answer as JSON for each on stdout.
//
//   node reference_client.mjs MODULES PACKAGE COMMAND [ARGUMENT...]
//
// MODULES is a folder with node_modules, PACKAGE one of the two generations of the client, COMMAND the MCP server.
// Commands: {do: "server"}, {do: "tools"}, {do: "run", id, request}, {do: "abort", id}. A run answers when it is over,
// so other commands may be answered before it; the end of stdin closes the connection.

import { createRequire } from "node:module";
import process from "node:process";
import { createInterface } from "node:readline";

const [modules, name, command, ...args] = process.argv.slice(2);
const load = createRequire(`${modules}/`);
const PACKAGES = {
  "@modelcontextprotocol/sdk": ["/client/index.js", "/client/stdio.js"],
  "@modelcontextprotocol/client": ["", "/stdio"],
};
const [clientPath, stdioPath] = PACKAGES[name];
const { Client } = load(name + clientPath);
const { StdioClientTransport } = load(name + stdioPath);

const answer = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const client = new Client({ name: "reference-client", version: "1.0.0" });
await client.connect(new StdioClientTransport({ command, args }));

const runs = new Map();

async function run(id, request) {
  const controller = new AbortController();
  runs.set(id, controller);
  const params = { name: "codemode.run", arguments: request };
  const options = { signal: controller.signal };
  try {
    const called = name.endsWith("/sdk")
      ? client.callTool(params, undefined, options)
      : client.callTool(params, options);
    answer({ id, result: await called });
  } catch (error) {
    answer({ id, error: String(error) });
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const { do: what, id, request } = JSON.parse(line);
  if (what === "server") {
    answer({ id, info: client.getServerVersion(), instructions: client.getInstructions() });
  } else if (what === "tools") answer({ id, ...(await client.listTools()) });
  else if (what === "run") run(id, request);
  else if (what === "abort") runs.get(id).abort();
}
await client.close();
