"""docs/coming-from.md and the table of other servers' flags agree."""

from __future__ import annotations

import re
from pathlib import Path

from imp_server.config.names import FOREIGN_FLAGS

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
OURS_TOO = {"--model", "--api-key", "--chat-template", "--kv-cache-dtype", "--temperature", "--top-k", "--log-level"}


def test_each_flag_of_theirs_is_told_of() -> None:
    rows = [row.split("|") for row in PAGE.splitlines() if row.startswith("| ") and row.count("|") == 5]
    theirs = {flag for row in rows for cell in row[1:4] for flag in re.findall(r"`(-[\w-]+)", cell)}
    assert len(theirs) > 30
    assert theirs - OURS_TOO - set(FOREIGN_FLAGS) == set()
