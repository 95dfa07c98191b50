"""Cli turns `argv` into an exit code: one file for each command, with its help and its output.

In: arguments, standard input, a configuration file. Out: data on standard output, words on standard error.
It may import every other room, and none imports it. Start at `main`, then `parser`.
"""
