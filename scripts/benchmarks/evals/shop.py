"""Shop is the world's own server over stdio: customers and orders, kept in the JSON file that is its argument."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

PAGE: Final = 20
STATES: Final = ("paid", "shipped", "returned", "open")

Rows = list[dict[str, Any]]


def first_state() -> dict[str, Rows]:
    """What each attempt begins with."""
    return {
        "customers": [
            {"id": f"C{n:03}", "name": f"Customer {n}", "country": ("SE", "DE", "FI")[n % 3], "notes": []}
            for n in range(1, 61)
        ],
        "orders": [
            {
                "id": n,
                "customer": f"C{n * 7 % 60 + 1:03}",
                "status": STATES[n % 4],
                "total": f"{n * 13 % 90 + 10}.50",
            }
            for n in range(1, 151)
        ],
        "refunds": [],
    }


def make(file: Path) -> MCPServer:
    """The server, over this file."""
    server = MCPServer("shop", log_level="WARNING")

    def kept() -> dict[str, Rows]:
        return json.loads(file.read_text("utf-8"))

    def one(rows: Rows, id: str | int) -> dict[str, Any]:
        for row in rows:
            if row["id"] == id:
                return row
        raise ToolError(f"not found: {id}")

    def page(rows: Rows, cursor: str | None) -> dict[str, Any]:
        start = int(cursor or 0)
        more = {"next_cursor": str(start + PAGE)} if start + PAGE < len(rows) else {}
        return {"data": rows[start : start + PAGE], **more}

    @server.tool()
    def list_customers(cursor: str | None = None) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """List customers, 20 a page; next_cursor is there while there are more."""
        return page(kept()["customers"], cursor)

    @server.tool()
    def list_orders(  # pyright: ignore[reportUnusedFunction]
        status: str | None = None, customer: str | None = None, cursor: str | None = None
    ) -> dict[str, Any]:
        """List orders, 20 a page. Totals are decimal strings in EUR."""
        orders = kept()["orders"]
        found = [
            row for row in orders if status in (None, row["status"]) and customer in (None, row["customer"])
        ]
        return page(found, cursor)

    @server.tool(structured_output=False)
    def refund_order(id: int, amount: float) -> str:  # pyright: ignore[reportUnusedFunction]
        """Refund an order, once, at most its total."""
        state = kept()
        if amount > float(one(state["orders"], id)["total"]):
            raise ToolError("amount is over the total; nothing was refunded")
        if any(row["id"] == id for row in state["refunds"]):
            raise ToolError("refunded already; nothing was changed")
        state["refunds"].append({"id": id, "amount": amount})
        file.write_text(json.dumps(state), "utf-8")
        return "ok"

    @server.tool(structured_output=False)
    def add_note(customer: str, text: str) -> str:  # pyright: ignore[reportUnusedFunction]
        """Add a note to a customer."""
        state = kept()
        one(state["customers"], customer)["notes"].append(text)
        file.write_text(json.dumps(state), "utf-8")
        return "ok"

    return server


if __name__ == "__main__":
    make(Path(sys.argv[1])).run("stdio")
