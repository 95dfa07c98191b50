// A script's way through Deno and nothing else: read, imported, its result written. No sandbox of its own, no caps.
const buffer = new Uint8Array(64 * 1024);
const decoder = new TextDecoder();
const encoder = new TextEncoder();

async function line() {
  const count = await Deno.stdin.read(buffer);
  if (count === null) Deno.exit(0);
  return decoder.decode(buffer.subarray(0, count));
}

const say = (text) => Deno.stdout.writeSync(encoder.encode(`${text}\n`));

// Once before the script comes, as Cellblock's workers do.
await import("data:application/javascript,globalThis.__codemode_result__ = 0;");
say("ready");
const source = await line();
globalThis.call = async () => {
  say("call");
  return await line();
};
await import(`data:application/javascript,${encodeURIComponent(source)}`);
say(`=${JSON.stringify(globalThis.__codemode_result__)}`);
await line();
