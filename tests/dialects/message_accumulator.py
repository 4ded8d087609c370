"""The content blocks that a client makes of a stream of Messages events. A call that was cut is none."""

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
    return [block for block in blocks if _is_whole(block)]


def _is_whole(block: dict[str, Any]) -> bool:
    text = block.pop("json")
    if block["type"] == "tool_use":
        try:
            block["input"] = json.loads(text)
        except ValueError:
            return False
        return isinstance(block["input"], dict)
    return True
