"""Cli turns `argv` into an exit code: `parser` names the commands, and each has a module that does its work.

In: arguments, standard input, a configuration file. Out: data on standard output, words on standard error. Start at
`main`, then `parser`; the module of a command is imported when the command runs.
"""

from cellblock.base.platforms import refuse_others

refuse_others()
