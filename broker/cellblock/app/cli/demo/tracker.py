"""Tracker is a small MCP server over stdio: an issue tracker kept in memory, as the demo's upstream server.

Run as ``python -m cellblock.app.cli.demo.tracker``. Every process starts with the same 42 issues, so that a demo's
figures can be checked; what a client changes is gone when the process ends. It has one tool of each kind that
a Code Mode binding unwraps (specification section 5.3.2): ``list_issues``, ``get_issue`` and ``close_issue``
declare output schemas and return ``structuredContent``, ``add_comment`` returns one text block. A wrong id or
state is an ``isError`` result that says what to do.
"""

from __future__ import annotations

from typing import Annotated, Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

Status = Literal["open", "in_progress", "closed"]
Label = Literal["bug", "feature", "docs", "performance", "security", "ux", "infra"]


class Comment(BaseModel):
    """A comment stands in its issue's list, oldest first."""

    author: str
    text: str


class IssueSummary(BaseModel):
    """Shows of an issue what ``list_issues`` does."""

    id: int
    title: str
    labels: list[Label]
    assignee: str | None = Field(description="User name, or null when nobody is assigned")
    opened: str = Field(description="Date, YYYY-MM-DD")
    estimate_hours: float | None = Field(description="Estimated work in hours, or null when not estimated")
    status: Status


class Issue(IssueSummary):
    """Shows an issue with everything that was written about it."""

    close_reason: str | None = Field(default=None, description="Why it was closed, or null")
    comments: list[Comment] = Field(default_factory=list[Comment])


class IssueList(BaseModel):
    """Holds one page of issues, by ascending id."""

    issues: list[IssueSummary]
    total: int = Field(description="How many issues match, the ones beyond `limit` included")


# id, title, labels, assignee, opened, estimate in hours, status
_Row = tuple[int, str, str, str | None, str, float | None, Status]
_ROWS: tuple[_Row, ...] = (
    (1, "Login form loses the e-mail after a wrong password", "bug ux", "mira", "2025-01-09", 3, "closed"),
    (2, "Export invoices as CSV", "feature", "jonas", "2025-01-14", 12, "closed"),
    (3, "Nightly backup fails silently when the disk is full", "bug infra", "tove", "2025-01-20", 6, "open"),
    (4, "Document the webhook retry schedule", "docs", None, "2025-01-22", 2, "open"),
    (5, "Search takes 4 s with 10,000 invoices", "performance", "jonas", "2025-02-03", 16, "in_progress"),
    (6, "Session cookie is sent without SameSite", "security bug", "mira", "2025-02-05", 2, "closed"),
    (7, "Dark mode for the customer portal", "feature ux", None, "2025-02-11", 24, "open"),
    (8, "Rounding differs between invoice and receipt", "bug", "anders", "2025-02-17", 5, "open"),
    (9, "Move the staging database to its own host", "infra", "tove", "2025-02-24", 8, "closed"),
    (10, "Password reset link can be used twice", "security bug", "mira", "2025-03-03", 4, "open"),
    (11, "Allow several e-mail addresses per customer", "feature", "jonas", "2025-03-04", 10, "open"),
    (12, "API reference lacks the error codes", "docs", "lin", "2025-03-10", 3, "open"),
    (13, "PDF preview uses 900 MB for 200 pages", "performance bug", "anders", "2025-03-12", 14, "open"),
    (14, "Keyboard focus is lost after closing a dialog", "ux bug", "lin", "2025-03-18", 2.5, "in_progress"),
    (15, "Rotate the signing key without a restart", "security infra", "tove", "2025-03-24", 12, "open"),
    (16, "Bulk archive for old projects", "feature", None, "2025-03-31", 8, "open"),
    (17, "Umlauts are broken in mail subjects", "bug", "jonas", "2025-04-02", 1.5, "closed"),
    (18, "Cache exchange rates for an hour", "performance", "anders", "2025-04-07", 3, "closed"),
    (19, "Show time zones in the audit log", "ux", None, "2025-04-09", 2, "open"),
    (20, "Rate limit for the public API", "security feature", "mira", "2025-04-14", 10, "in_progress"),
    (21, "Import from the old tracker drops attachments", "bug", "lin", "2025-04-22", None, "open"),
    (22, "Container image runs as root", "security infra", "tove", "2025-04-28", 2, "open"),
    (23, "Guide: set up single sign-on", "docs", "lin", "2025-05-05", 5, "open"),
    (24, "Dashboard sends 60 requests on load", "performance", "jonas", "2025-05-07", 9, "open"),
    (25, "Undo for deleted comments", "feature ux", None, "2025-05-13", 6, "open"),
    (26, "Due dates shift by a day west of UTC", "bug", "anders", "2025-05-19", 4, "open"),
    (27, "Alert when the certificate is about to expire", "infra", "tove", "2025-05-21", 1, "closed"),
    (28, "Duplicate webhook deliveries after a failover", "bug infra", "tove", "2025-05-27", 11, "open"),
    (29, "Two-factor login with a security key", "security feature", "mira", "2025-06-02", 20, "open"),
    (30, "Translate the portal to Finnish", "feature docs", None, "2025-06-04", 30, "open"),
    (31, "Table columns cannot be resized", "ux", "lin", "2025-06-10", 4, "closed"),
    (32, "Search index is rebuilt on every deploy", "performance infra", "anders", "2025-06-16", 7, "open"),
    (33, "Audit log can be edited by project owners", "security bug", "mira", "2025-06-18", 3, "open"),
    (34, "Recurring invoices", "feature", "jonas", "2025-06-23", 40, "in_progress"),
    (35, "Error page shows a stack trace", "security bug", None, "2025-06-30", 1, "open"),
    (36, "Changelog is missing the last two releases", "docs", "lin", "2025-07-02", 1, "open"),
    (37, "Attachment upload stops at 2 GB", "bug", "anders", "2025-07-08", 6, "open"),
    (38, "Sort projects by last activity", "ux feature", None, "2025-07-14", 3, "open"),
    (39, "Mail worker's memory grows by 5 MB an hour", "performance bug", "tove", "2025-07-16", None, "open"),
    (40, "Shared links never expire", "security feature", "mira", "2025-07-22", 5, "open"),
    (41, "Mention users in comments", "feature ux", "jonas", "2025-07-28", 8, "open"),
    (42, "Health check is green before migrations ran", "bug infra", "tove", "2025-07-30", 2, "open"),
)

_READ = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADD = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
_CLOSE = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)


def _initial_issues() -> dict[int, Issue]:
    fields = ("id", "title", "labels", "assignee", "opened", "estimate_hours", "status")
    rows = (dict(zip(fields, row, strict=True)) | {"labels": row[2].split()} for row in _ROWS)
    return {issue.id: issue for issue in map(Issue.model_validate, rows)}


def create_server() -> MCPServer:
    """Returns a tracker server with its own copy of the initial issues; no I/O is done."""
    issues = _initial_issues()
    server = MCPServer(
        "issue-tracker",
        title="Issue tracker",
        instructions="A project's issues. Ids are integers. Closing an issue cannot be undone.",
        log_level="WARNING",
    )

    def issue(id: int) -> Issue:
        found = issues.get(id)
        if found is None:
            raise ToolError(f"There is no issue {id}; ids run from {min(issues)} to {max(issues)}.")
        return found

    @server.tool(annotations=_READ)
    def list_issues(  # pyright: ignore[reportUnusedFunction]
        status: Annotated[Status | None, Field(description="Only issues in this state")] = None,
        label: Annotated[Label | None, Field(description="Only issues with this label")] = None,
        assignee: Annotated[
            str | None, Field(description="Only this user's issues; '' for unassigned")
        ] = None,
        limit: Annotated[int, Field(ge=1, le=100, description="At most so many issues")] = 50,
    ) -> IssueList:
        """List issues by ascending id. Filters that are given must all match."""
        found = [
            each
            for each in issues.values()
            if (status is None or each.status == status)
            and (label is None or label in each.labels)
            and (assignee is None or (each.assignee or "") == assignee)
        ]
        page = [IssueSummary.model_validate(each.model_dump()) for each in found[:limit]]
        return IssueList(issues=page, total=len(found))

    @server.tool(annotations=_READ)
    def get_issue(id: int) -> Issue:  # pyright: ignore[reportUnusedFunction]
        """Return one issue with its comments."""
        return issue(id)

    @server.tool(annotations=_ADD, structured_output=False)
    def add_comment(  # pyright: ignore[reportUnusedFunction]
        id: int, text: Annotated[str, Field(min_length=1, max_length=10_000)]
    ) -> str:
        """Add a comment to an issue, open or closed."""
        comments = issue(id).comments
        comments.append(Comment(author="agent", text=text))
        return f"Added comment {len(comments)} to issue {id}."

    @server.tool(annotations=_CLOSE)
    def close_issue(  # pyright: ignore[reportUnusedFunction]
        id: int, reason: Annotated[str, Field(min_length=1, max_length=1_000)]
    ) -> Issue:
        """Close an issue for good and return it."""
        found = issue(id)
        if found.status == "closed":
            raise ToolError(f"Issue {id} is closed already ({found.close_reason or 'no reason given'}).")
        found.status = "closed"
        found.close_reason = reason
        return found

    return server


if __name__ == "__main__":
    create_server().run("stdio")
