// deno-lint-ignore-file no-explicit-any no-var
// Each part is one global; those of the table without a part here are declared as `any`.

//= console
interface Console {
  debug(...data: any[]): void;
  log(...data: any[]): void;
  warn(...data: any[]): void;
  error(...data: any[]): void;
  [method: string]: (...data: any[]) => any;
}
declare var console: Console;
//= __codemode_result__
declare var __codemode_result__: any;
//= setTimeout
declare function setTimeout(handler: (...args: any[]) => any, delay?: any, ...args: any[]): number;
//= clearTimeout
declare function clearTimeout(id?: any): void;
//= structuredClone
declare function structuredClone<T>(value: T, options?: any): T;
//= queueMicrotask
declare function queueMicrotask(callback: () => any): void;
//= atob
declare function atob(data: any): string;
//= btoa
declare function btoa(data: any): string;
