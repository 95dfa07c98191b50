// Runs one module in bare Deno and prints how it ended, as one line of JSON: the outcome that Cellblock's own worker
// would report, found with none of its code. The module comes on standard input, or as a file: URL argument.
//
// Everything is taken before the module is imported: it may change what it likes.

const { stdout, args } = Deno;
const write = stdout.writeSync.bind(stdout);
const encode = TextEncoder.prototype.encode.bind(new TextEncoder());
const stringify = JSON.stringify;
const bytes = Uint8Array;
const apply = Reflect.apply;
const toBase64 = bytes.prototype.toBase64;
const ErrorClass = Error;
const text = String;
const exit = Deno.exit.bind(Deno);
const PromiseClass = Promise;
// The core's, since touching setTimeout loads 15 ms of Node's code.
const { createTimer } = Deno[Deno.internal].core;

function report(kind, error) {
  const outcome = { __proto__: null, kind, name: null, message: "" };
  if (error instanceof ErrorClass) {
    outcome.name = text(error.name);
    outcome.message = text(error.message);
  } else if (kind !== "pass") {
    outcome.message = typeof error === "object" ? stringify(error) : text(error);
  }
  write(encode(stringify(outcome) + "\n"));
  exit(0);
}

const unhandled = [];
addEventListener("error", (event) => {
  event.preventDefault();
  report("exception", event.error);
});
addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  unhandled[unhandled.length] = { promise: event.promise, reason: event.reason };
});
addEventListener("rejectionhandled", (event) => {
  for (let index = 0; index < unhandled.length; index++) {
    if (unhandled[index].promise !== event.promise) continue;
    unhandled[index] = unhandled[unhandled.length - 1];
    unhandled.length--;
    return;
  }
});

const source = await new Response(Deno.stdin.readable).bytes();
const url = args[0] ?? "data:application/javascript;base64," + apply(toBase64, source, []);
try {
  await import(url);
  // A rejection is told in a later turn than the one that left it unhandled.
  await new PromiseClass((resolve) => createTimer(resolve, 0, undefined, false, true));
  if (unhandled.length > 0) report("rejection", unhandled[0].reason);
  else report("pass", undefined);
} catch (error) {
  report("module", error);
}
