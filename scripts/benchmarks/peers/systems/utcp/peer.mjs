// UTCP's code mode: its client, with tools that a protocol of this process serves, so that no wire is measured.
import { CodeModeUtcpClient } from "@utcp/code-mode";
import { CallTemplateSerializer, CommunicationProtocol } from "@utcp/sdk";
import { serve, TIMEOUT_MS, tools } from "./serve.mjs";

const FAILED = "[ERROR] Code execution failed";
const HERE = { name: "tools", call_template_type: "here" };

class Here extends CommunicationProtocol {
  async registerManual(_, manualCallTemplate) {
    const named = Object.keys(tools).map((name) => ({
      name,
      description: name,
      inputs: { type: "object", properties: {} },
      outputs: { type: "object", properties: {} },
      tags: [],
      tool_call_template: HERE,
    }));
    const manual = { utcp_version: "1.1.0", manual_version: "1", tools: named };
    return { manualCallTemplate, manual, success: true, errors: [] };
  }
  async deregisterManual() {}
  async callTool(_, name, args) {
    return await tools[name.split(".").pop()](args);
  }
}

console.log = () => {}; // stdout is the pipe
CommunicationProtocol.communicationProtocols.here = new Here();
CallTemplateSerializer.registerCallTemplate("here", { toDict: (one) => one, validateDict: (one) => one });
const client = await CodeModeUtcpClient.create();
await client.registerManual(HERE);

serve(async (code) => {
  const { result, logs } = await client.callToolChain(code, TIMEOUT_MS);
  const failed = logs.find((line) => line.startsWith(FAILED));
  if (failed) throw new Error(failed.slice(FAILED.length));
  return result;
});
