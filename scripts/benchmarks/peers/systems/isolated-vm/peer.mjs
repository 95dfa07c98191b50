// isolated-vm by itself: an isolate of 128 MB for each run, tools through a reference, as its README shows.
import ivm from "isolated-vm";
import { deadline, serve, TIMEOUT_MS, tools } from "./serve.mjs";

const PRELUDE = `
const call = (name) => async (args) =>
  JSON.parse(await host.apply(undefined, [name, JSON.stringify(args)], { result: { promise: true } }));
const tools = { noop: call("noop"), nap: call("nap"), rows: call("rows") };
`;

serve(async (code) => {
  const isolate = new ivm.Isolate({ memoryLimit: 128 });
  const { over, clear } = deadline();
  try {
    const context = await isolate.createContext();
    const host = async (name, json) => JSON.stringify(await tools[name](JSON.parse(json)));
    await context.global.set("host", new ivm.Reference(host));
    const script = await isolate.compileScript(`${PRELUDE}(async () => {\n${code}\n})().then(JSON.stringify)`);
    return JSON.parse(await Promise.race([script.run(context, { timeout: TIMEOUT_MS, promise: true }), over]));
  } finally {
    clear();
    if (!isolate.isDisposed) isolate.dispose();
  }
});
