// A TypeScript reference client, driven line by line: commands as JSON on stdin, answers as JSON on stdout.
//
//   node reference_client.mjs MODULES PACKAGE ERA
//
// MODULES is a folder with node_modules, PACKAGE one of the two generations of the client, ERA "legacy" or "auto" (what
// `@modelcontextprotocol/client` negotiates; the other one has no choice). The first line says where the server is:
// {command: [...]} or {url, headers}. Then {do: "server"}, {do: "tools"}, {do: "run", id, request}, {do: "abort", id}. A
// run answers when it is over, so other commands may be answered before it; every progress notification for it is told
// as {id, progress}. The end of stdin closes the connection.

import { createRequire } from "node:module";
import process from "node:process";
import { createInterface } from "node:readline";

const [modules, name, era] = process.argv.slice(2);
const load = createRequire(`${modules}/`);
const PACKAGES = {
  "@modelcontextprotocol/sdk": ["/client/index.js", "/client/stdio.js", "/client/streamableHttp.js"],
  "@modelcontextprotocol/client": ["", "/stdio", ""],
};
const [clientPath, stdioPath, httpPath] = PACKAGES[name];
const { Client } = load(name + clientPath);
const { StdioClientTransport } = load(name + stdioPath);
const { StreamableHTTPClientTransport } = load(name + httpPath);

const answer = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const client = new Client({ name: "reference-client", version: "1.0.0" }, { versionNegotiation: { mode: era } });

function transport({ command, url, headers }) {
  if (url !== undefined) return new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
  return new StdioClientTransport({ command: command[0], args: command.slice(1) });
}

const runs = new Map();

async function run(id, request) {
  const controller = new AbortController();
  runs.set(id, controller);
  const params = { name: "codemode.run", arguments: request };
  const options = { signal: controller.signal, onprogress: (progress) => answer({ id, progress }) };
  try {
    const called = name.endsWith("/sdk")
      ? client.callTool(params, undefined, options)
      : client.callTool(params, options);
    answer({ id, result: await called });
  } catch (error) {
    answer({ id, error: String(error) });
  }
}

let connected = false;
for await (const line of createInterface({ input: process.stdin })) {
  const read = JSON.parse(line);
  const { do: what, id, request } = read;
  if (!connected) {
    await client.connect(transport(read));
    connected = true;
  } else if (what === "server") {
    answer({ id, info: client.getServerVersion(), instructions: client.getInstructions() });
  } else if (what === "tools") answer({ id, ...(await client.listTools()) });
  else if (what === "run") run(id, request);
  else if (what === "abort") runs.get(id).abort();
}
await client.close();
