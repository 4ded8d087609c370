"""imp with a scripted model that thinks before each answer, unless its prompt has closed the thinking."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from imp_server.conformance.capabilities import Capabilities, probe
from imp_server.conformance.exchange import Target
from imp_server.core import GenerateRequest
from imp_server.engine.client.scripted import Action, text_ids

from tests.live.toy_server import TOOLS_CHATML, toy_server


def thinks(request: GenerateRequest, _choice: int) -> tuple[Action, ...]:
    prompt = bytes(i for i in memoryview(request.ids).cast("i") if i < 256)
    thought = "" if prompt.endswith(b"</think>\n\n") else "<think>17 and 3 make 20.</think>"
    return (text_ids(thought + "It is 20."),)


@contextmanager
def thinking_server(*, check_replies: bool = True) -> Iterator[tuple[Target, Capabilities]]:
    with toy_server(TOOLS_CHATML, check_replies=check_replies) as live:
        live.engine.answer_with(thinks)
        target = Target(live.url)
        yield target, probe(target)
