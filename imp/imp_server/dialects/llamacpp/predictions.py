"""Prediction services of clouds: one POST with several requests, each of which says what it is by `@requestFormat`."""

from __future__ import annotations

from typing import Any

from imp_server.dialects.handler import Call, Reply, SubRequests, handler

FORMAT = "@requestFormat"


@handler
async def predict(call: Call) -> Reply:
    asked = []
    for instance in call.body["instances"]:
        body = {name: value for name, value in instance.items() if name != FORMAT}
        if "stream" in body:
            body["stream"] = False  # there is one reply
        asked.append((instance[FORMAT], body))
    return SubRequests(tuple(asked), _merged)


def _merged(replies: list[Any]) -> Any:
    return {"predictions": replies}
