// The pipe that every peer in JavaScript is measured through: a line of JSON for each run and for each answer.
// Usage: node peer.mjs ROWS_FILE TIMEOUT_MS
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

export const TIMEOUT_MS = Number(process.argv[3]);
export const ROWS = JSON.parse(readFileSync(process.argv[2], "utf8"));
export const tools = {
  noop: async () => ({ ok: 1 }),
  nap: ({ ms }) => new Promise((resolve) => setTimeout(() => resolve({ ok: 1 }), ms)),
  rows: async () => ({ rows: ROWS }),
};

/** For what is awaited without an end of its own. */
export function deadline() {
  let timer;
  const over = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("the time is over")), TIMEOUT_MS);
  });
  over.catch(() => {});
  return { over, clear: () => clearTimeout(timer) };
}

const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");

/** Runs what comes on stdin, as many at a time as come, until stdin ends. */
export function serve(run) {
  createInterface({ input: process.stdin })
    .on("line", async (line) => {
      const { id, code } = JSON.parse(line);
      try {
        say({ id, result: await run(code) });
      } catch (error) {
        say({ id, error: String(error) });
      }
    })
    .on("close", () => process.exit(0));
  say({ id: 0 });
}
