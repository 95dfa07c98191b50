"""Attacks on flows of data, and honest tasks, by somebody who has not seen how flows are judged (issue 40)."""
