// The Worker that owns the tools: each run in a Dynamic Worker of its own.
import { DynamicWorkerExecutor } from "@cloudflare/codemode";

export default {
  async fetch(request, env) {
    const fns = {
      noop: async () => ({ ok: 1 }),
      nap: ({ ms }) => new Promise((resolve) => setTimeout(() => resolve({ ok: 1 }), ms)),
      rows: async () => ({ rows: env.ROWS }),
    };
    const executor = new DynamicWorkerExecutor({ loader: env.LOADER, timeout: env.TIMEOUT_MS });
    const code = `async () => {\n${await request.text()}\n}`;
    return Response.json(await executor.execute(code, [{ name: "tools", fns }]));
  },
};
