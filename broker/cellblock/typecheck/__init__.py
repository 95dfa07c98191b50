"""Type-checks scripts against what is known of tools, with the native TypeScript compiler as a language server.

`checker.TypeChecker` is the way in; it owns one `session.CompilerSession`, which owns the compiler's process.
"""
