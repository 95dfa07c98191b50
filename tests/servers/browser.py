"""A browser that logs in by itself: follows redirects and links, and writes what it saw as lines of JSON.

Run as ``python browser.py FILE HABIT URL``; HABIT is `allow`, `deny`, `wrong-state` (comes back with another state
first, then allows), `forged` (comes back with another state only) or `nothing`.
"""

import html
import json
import re
import sys
from pathlib import Path
from urllib.parse import parse_qs, unquote, urljoin, urlsplit

import httpx2


def visit(file: Path, habit: str, url: str) -> None:
    """Opens one URL."""

    def note(**what: object) -> None:
        with file.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(what) + "\n")

    told = url
    if url.startswith("file:"):
        page = Path(unquote(urlsplit(url).path))
        assert page.stat().st_mode & 0o777 == 0o600
        found = re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', page.read_text(encoding="utf-8"))
        assert found is not None
        url = html.unescape(found[1])
    note(opened=url, told=told)
    asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    if habit == "nothing":
        return
    with httpx2.Client(trust_env=False, verify=False, timeout=20) as http:
        if habit in ("wrong-state", "forged"):
            forged = http.get(asked["redirect_uri"], params={"code": "stolen", "state": "x" * 43})
            note(status=forged.status_code, page=forged.text)
            rebound = http.get(
                asked["redirect_uri"],
                params={"code": "stolen", "state": asked["state"]},
                headers={"Host": "evil.example"},
            )
            note(status=rebound.status_code, page=rebound.text)
        if habit == "forged":
            return
        page = http.get(url, follow_redirects=True)
        link = re.search(rf'id="{"deny" if habit == "deny" else "allow"}" href="([^"]+)"', page.text)
        if link is None:
            note(status=page.status_code, page=page.text)
            return
        last = http.get(urljoin(str(page.url), link[1].replace("&amp;", "&")), follow_redirects=True)
        note(status=last.status_code, page=last.text, at=str(last.url.copy_with(query=None)))


if __name__ == "__main__":
    visit(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
