"""Policy decides which tools a client may see and call, and which calls a person must approve.

In: settings, a client's name, a tool. Out: grants, verdicts, questions. Start at `policy`.
"""
