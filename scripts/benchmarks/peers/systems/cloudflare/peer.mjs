// @cloudflare/codemode in a local workerd, which Miniflare starts; a run is a request to it.
import { build } from "esbuild";
import { Miniflare } from "miniflare";
import { fileURLToPath } from "node:url";
import { ROWS, serve, TIMEOUT_MS } from "./serve.mjs";

const bundle = await build({
  entryPoints: [fileURLToPath(new URL("./worker.mjs", import.meta.url))],
  bundle: true,
  format: "esm",
  write: false,
  external: ["cloudflare:*", "node:*"],
});
const miniflare = new Miniflare({
  modules: true,
  script: bundle.outputFiles[0].text,
  compatibilityDate: "2026-06-01",
  compatibilityFlags: ["nodejs_compat"],
  workerLoaders: { LOADER: {} },
  bindings: { ROWS, TIMEOUT_MS },
});
await miniflare.ready;

serve(async (code) => {
  const answer = await miniflare.dispatchFetch("http://run/", { method: "POST", body: code });
  const text = await answer.text();
  if (!answer.ok) throw new Error(text.slice(0, 200));
  const { result, error } = JSON.parse(text);
  if (error) throw new Error(error);
  return result;
});
