"""The content blocks that a client makes of a stream of Messages events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def accumulate(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"] | {"json": ""})
        elif event["type"] == "content_block_delta":
            kind, block = event["delta"]["type"], blocks[event["index"]]
            if kind == "input_json_delta":
                block["json"] += event["delta"]["partial_json"]
            else:
                name = kind.removesuffix("_delta")
                block[name] = block.get(name, "") + event["delta"][name]
    for block in blocks:
        if text := block.pop("json"):
            block["input"] = json.loads(text)
    return blocks
