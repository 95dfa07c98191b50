// quickjs-emscripten by itself: a runtime and a context for each run, with a memory limit and an interrupt handler.
import { getQuickJS, shouldInterruptAfterDeadline } from "quickjs-emscripten";
import { deadline, serve, TIMEOUT_MS, tools } from "./serve.mjs";

const PRELUDE = `
const call = (name) => async (args) => JSON.parse(await host(name, JSON.stringify(args)));
const tools = { noop: call("noop"), nap: call("nap"), rows: call("rows") };
`;
const JOBS = 1000; // between two looks at the clock

const quickjs = await getQuickJS();

serve(async (code) => {
  const until = Date.now() + TIMEOUT_MS;
  const runtime = quickjs.newRuntime();
  runtime.setMemoryLimit(128 << 20);
  runtime.setMaxStackSize(512 << 10);
  runtime.setInterruptHandler(shouldInterruptAfterDeadline(until));
  const vm = runtime.newContext();
  const { over, clear } = deadline();

  const drain = () => {
    while (vm.alive && runtime.hasPendingJob()) {
      if (Date.now() > until) throw new Error("the time is over");
      vm.unwrapResult(runtime.executePendingJobs(JOBS));
    }
  };
  const host = vm.newFunction("host", (name, json) => {
    const promise = vm.newPromise();
    tools[vm.getString(name)](JSON.parse(vm.getString(json))).then((value) => {
      if (!vm.alive) return;
      vm.newString(JSON.stringify(value)).consume((text) => promise.resolve(text));
      drain();
    });
    return promise.handle;
  });
  vm.setProp(vm.global, "host", host);
  host.dispose();
  try {
    const main = vm.unwrapResult(vm.evalCode(`${PRELUDE}(async () => {\n${code}\n})().then(JSON.stringify)`));
    const settled = vm.resolvePromise(main);
    main.dispose();
    drain();
    const text = vm.unwrapResult(await Promise.race([settled, over]));
    return JSON.parse(text.consume((handle) => vm.getString(handle)));
  } finally {
    clear();
    vm.dispose();
    runtime.dispose();
  }
});
