"""Typecheck checks scripts against what is known of tools, with the native TypeScript compiler as a language server.

In: a script, the catalog, and what is known of outputs. Out: a `faults.Checked`. It may import `script`, `catalog`,
`config`, `apart`, `base`, and how the worker host starts and confines a Deno process: `cellblock_worker.worker`,
`cellblock_worker.confinement`, `cellblock_worker.launch` and `cellblock_worker.base`. Start at `checker.TypeChecker`;
it owns one `session.CompilerSession`, which owns the compiler's process.
"""
