"""Check checks scripts against what is known of tools, with the native TypeScript compiler as a language server.

In: a script, the catalog, and what is known of outputs. Out: a `faults.Checked`. Start at `checker.TypeChecker`; it
owns one `session.CompilerSession`, which owns the compiler's process.
"""
