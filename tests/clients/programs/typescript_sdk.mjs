// What a program made with the TypeScript SDK is given; prints one line of JSON.
import { createRequire } from "node:module";
import { join } from "node:path";
import process from "node:process";

const asked = JSON.parse(process.argv[2]);
const require = createRequire(join(process.env.CLIENTS_NODE, "package.json"));
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");

const client = new Client({ name: "my-agent", version: "1" });
await client.connect(new StdioClientTransport({ command: asked.command, args: asked.args }));
const [tool] = (await client.listTools()).tools;
const results = [];
for (const code of asked.scripts) {
  const result = await client.callTool({ name: tool.name, arguments: { code } });
  results.push({
    text: result.content[0].text,
    structured: result.structuredContent ?? null,
    error: result.isError ?? false,
  });
}
console.log(JSON.stringify({
  name: tool.name,
  description: tool.description,
  schema: tool.inputSchema,
  instructions: client.getInstructions() ?? null,
  results,
}));
await client.close();
