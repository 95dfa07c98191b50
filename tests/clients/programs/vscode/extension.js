// An extension of VS Code in place of its model: waits for Cellblock's tool among those that VS Code gives to agents, calls
// it with a script, and writes down what comes back.
const fs = require("node:fs");
const process = require("node:process");
const vscode = require("vscode");

exports.activate = async () => {
  const { SCRIPT: script, TOLD: file } = process.env;
  const told = { version: vscode.version };
  for (;;) {
    const tool = fs.existsSync(file.replace(".json", ".go")) &&
      vscode.lm.tools.find(({ name }) => name.includes("codemode"));
    if (tool) {
      told.tool = tool.name;
      break;
    }
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  try {
    const result = await vscode.lm.invokeTool(told.tool, { input: { code: script }, toolInvocationToken: undefined });
    told.text = result.content.map((part) => part.value ?? "").join("");
  } catch (error) {
    told.text = String(error);
  }
  fs.writeFileSync(`${file}.part`, JSON.stringify(told));
  fs.renameSync(`${file}.part`, file);
};
