"""What a front-end needs of a broker that runs nothing, and servers that this one knows."""

from cellblock.base.callbacks import Listeners
from cellblock.base.settings.settings import Settings
from cellblock.run.policy.policy import Policy
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, ToolOutput


class StandingService:
    def __init__(self, made: Settings, *servers: ServerEntry) -> None:
        self.settings = made
        self.policy = Policy(made.cellblock.policy)
        self.listeners = Listeners()
        self.watch_catalog = self.listeners.add
        self.show(*servers)

    def show(self, *servers: ServerEntry) -> None:
        self.catalog = self.known_catalog = Catalog(1, {entry.server_id: entry for entry in servers})
        self.listeners.tell()

    def catalogs_of(self, principal: str) -> tuple[Catalog, Catalog]:
        return self.catalog, self.known_catalog

    async def about_to_answer(self, principal: str) -> None:
        """Nothing connects here."""

    def output_of(self, server: ServerEntry, tool: ToolEntry, principal: str) -> ToolOutput | None:
        """Nothing was seen yet of what a tool returns."""


def server(server_id: str, *names: str) -> ServerEntry:
    tools = tuple(ToolEntry(name, name, f"Does {name}.", None, {"type": "object"}) for name in names)
    return ServerEntry(server_id, server_id, server_id, tools=tools)
