"""What attackers do: scripts that send or fetch too much, and what a native worker writes to its host."""

from __future__ import annotations

from typing import Final

from cellblock_worker.wire.frames import encode_frame

MIB: Final = 1 << 20
IDLE: Final = 256
"""Connections that say nothing."""

LARGE_INPUTS: Final = """
import { take } from "@codemode/servers/evil";
const values = new Array(4_000_000).fill(0);
for (let i = 0; i < 5; i++) await take({ values }).catch(() => {});
globalThis.__codemode_result__ = 1;
"""

LARGE_RESULTS: Final = """
import { results } from "@codemode/servers/evil";
let said = "nothing";
for (let i = 0; i < 5; i++) {
  try { said = "rows: " + (await results({})).rows.length; } catch (error) { said = error.name; }
}
globalThis.__codemode_result__ = said;
"""

JOURNALED: Final = """
import * as evil from "@codemode/servers/evil";
const text = "x".repeat(6_000_000);
for (let i = 0; i < 5; i++) await evil.take({ values: [], text }).catch(() => {});
globalThis.__codemode_result__ = 1;
"""
"""Holds as much as a journal may."""

SLEEPS: Final = "await new Promise((go) => setTimeout(go, 5_000)); globalThis.__codemode_result__ = 1;"

LISTS: Final = """
import { listTools } from "@codemode/discovery";
const count = async () => (await listTools("evil", { detail: "full" })).length;
const all = await Promise.all(Array.from({ length: 300 }, count));
globalThis.__codemode_result__ = all.filter((found) => found > 1).length;
"""

LOG_FRAME: Final = encode_frame(b"\x83\xa2ms\x00\xa5level\xa3log\xa1t\xa3log", b"x" * 16)
"""A log entry whose header is right, but for the order of its keys."""

LOG_BLOCK: Final = 100
HALF: Final = encode_frame(b"\x82\xa1t\xa4done\xa2ms\x00", b"x" * 1000)[:500]
