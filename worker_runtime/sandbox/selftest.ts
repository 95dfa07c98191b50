/**
 * Runs once for a host, at the host's start, in a process made exactly like a worker's: every way out is tried, and
 * the outcome of each is printed as one JSON object: name → "refused: …" or "ALLOWED". Nothing of the sandbox's
 * hygiene is in force here, so what is refused is refused by Deno and the kernel.
 *
 * @module
 */

type Attempt = () => unknown;

const load = (specifier: string) => import(specifier);

const attempts: Record<string, Attempt> = {
  "network: connect": () => Deno.connect({ hostname: "127.0.0.1", port: 9 }),
  "network: listen": () => Deno.listen({ hostname: "127.0.0.1", port: 0 }),
  "network: fetch": () => fetch("http://127.0.0.1:8/"),
  "network: name look-up": () => Deno.resolveDns("localhost", "A"),
  "network: WebSocket": () => new WebSocket("ws://127.0.0.1:9/"),
  "files: read": () => Deno.readTextFile("/etc/hosts"),
  "files: list": () => Array.fromAsync(Deno.readDir("/")),
  "files: write": () => Deno.writeTextFile("/tmp/cellblock-selftest", "x"),
  "files: temporary": () => Deno.makeTempFile(),
  "environment": () => Deno.env.toObject(),
  "system: hostname": () => Deno.hostname(),
  "subprocess": () => new Deno.Command("/bin/true").outputSync(),
  "foreign functions": () => Deno.dlopen("libc.so.6", {}),
  "import: npm": () => load("npm:left-pad"),
  "import: jsr": () => load("jsr:@std/path"),
  "import: https": () => load("https://127.0.0.1:9/x.js"),
  "import: file": () => load("file:///etc/hosts"),
  "import: node": () => load("node:fs"),
  "code from strings: eval": () => (0, eval)("1"),
  "code from strings: Function": () => new Function("return 1")(),
  "storage: localStorage": () => localStorage.setItem("cellblock", "1"),
  "storage: caches": () => caches.open("cellblock"),
  "files: read in a Worker": () =>
    new Promise((_, reject) => {
      const worker = new Worker("data:text/javascript,await Deno.readTextFile('/etc/hosts')", {
        type: "module",
      });
      worker.onerror = (event) => {
        event.preventDefault();
        reject(new Error(event.message));
      };
    }),
};

const BOUND_MS = 2_000;
const outcomes: Record<string, string> = {};
for (const [name, attempt] of Object.entries(attempts)) {
  let timer = 0;
  const bound = new Promise((_, reject) => {
    timer = setTimeout(
      () => reject(new Error(`no answer within ${BOUND_MS} ms`)),
      BOUND_MS,
    ) as unknown as number;
  });
  try {
    await Promise.race([Promise.resolve(attempt()), bound]);
    outcomes[name] = "ALLOWED";
  } catch (error) {
    outcomes[name] = `refused: ${String((error as Error)?.message ?? error).split("\n")[0].slice(0, 120)}`;
  }
  clearTimeout(timer);
}
Deno.stdout.writeSync(new TextEncoder().encode(JSON.stringify(outcomes)));
Deno.exit(0);
