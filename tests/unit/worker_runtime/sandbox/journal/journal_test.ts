import { deepStrictEqual as same } from "node:assert/strict";
import { Past } from "../../../../../worker_runtime/sandbox/journal/past.ts";
import { keyStream } from "../../../../../worker_runtime/sandbox/journal/journal_globals.ts";

const ZERO = "00".repeat(32);
const drawn = (seed: string, from: number, count: number) => {
  const next = keyStream(seed);
  for (let index = 0; index < from; index++) next();
  return Array.from({ length: count }, () => next().toString(16).padStart(2, "0")).join("");
};

Deno.test("the key stream is ChaCha20's", () => {
  // RFC 8439, appendix A.1: test vectors 1 and 2, and test vector 3 without its counter.
  same(drawn(ZERO, 0, 16), "76b8e0ada0f13d90405d6ae55386bd28");
  same(drawn(ZERO, 64, 16), "9f07e7be5551387a98ba977c732d080d");
  same(drawn(`${"00".repeat(31)}01`, 64, 16), "3aeb5224ecf849929b9d828db1ced4dd");
});

Deno.test("a recording is read in its order, the clock apart", () => {
  const past = new Past("c1000*2a3c5t12i0c0*3e1c7");
  const seen: string[] = [];
  while (!past.over) {
    seen.push(`${past.kind}${past.id}`);
    past.take();
  }
  same(seen, ["a3", "t12", "i0", "e1"]);
  const times: (number | undefined)[] = [];
  for (let index = 0; index < 8; index++) times.push(past.reading());
  same(times, [1000, 1000, 1005, 1005, 1005, 1005, 1012, undefined]);
});

Deno.test("no events are no events", () => {
  const past = new Past("");
  same([past.over, past.reading()], [true, undefined]);
});
