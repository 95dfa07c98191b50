/**
 * Runs in a worker, as its program, before agent code: says `ready`, waits for its one `start`, runs it, sends the
 * outcome.
 *
 * @module
 */

import { hear, prepareProcess, warmUp } from "./process.ts";
import { receive } from "./wire/pipes.ts";

prepareProcess();
receive((message, body) => {
  if (!hear(message, body)) void warmUp(body);
});
