"""What a model's worker processes run: its chat templates, and the tokenizer of a file whose steps nobody knows.

Questions come pickled, from our own other side. Answers are msgpack: whatever runs here is a stranger's.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from imp_server.core import InvalidModel, TemplateRefused, TemplateTooCostly
from imp_server.text.template import ChatTemplate
from imp_server.vocab.encoder import LibraryEncoder


class Rendered(msgspec.Struct, frozen=True):
    """`text` is UTF-8, lone surrogates passed; of a refusal it is the message."""

    text: bytes
    outcome: Literal["rendered", "refused", "too_costly"] = "rendered"


class Opened(msgspec.Struct, frozen=True):
    """What the other side keeps of a tokenizer."""

    vocabulary: dict[str, int]
    unknown_id: int | None


def open_templates(opening: bytes) -> Callable[[bytes], bytes]:
    """`opening`: (sources by name, variables). Raises InvalidModel."""
    sources, variables = pickle.loads(opening)
    templates = {name: ChatTemplate(source, variables, now=datetime.now) for name, source in sources.items()}

    def render(question: bytes) -> bytes:
        name, messages, options, most = pickle.loads(question)
        return msgspec.msgpack.encode(_rendered(templates[name], messages, options, most))

    return render


def _rendered(
    template: ChatTemplate, messages: list[Mapping[str, Any]], options: dict[str, Any], most: int
) -> Rendered:
    """`most`: bytes that it may write."""
    try:
        text = template.render(messages, **options).encode("utf-8", "surrogatepass")
    except TemplateTooCostly as error:
        return Rendered(error.message.encode(errors="replace"), "too_costly")
    except TemplateRefused as error:
        return Rendered(error.message.encode(errors="replace"), "refused")
    if len(text) > most:
        return Rendered(f"the model's chat template writes more than {most} bytes".encode(), "too_costly")
    return Rendered(text)


def open_tokenizer(opening: bytes) -> Callable[[bytes], bytes]:
    """`opening`: the text of a tokenizer.json."""
    try:
        encoder = LibraryEncoder.of_json(opening.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise InvalidModel(str(error)) from None

    def answer(question: bytes) -> bytes:
        what, *given = pickle.loads(question)
        if what == "open":
            return msgspec.msgpack.encode(Opened(encoder.vocabulary(), encoder.unknown_id))
        if what == "encode":
            return msgspec.msgpack.encode([ids.tobytes() for ids in encoder.encode(*given)])
        found: Any = encoder.offsets(*given) if what == "offsets" else encoder.n_ids_before(*given)
        return msgspec.msgpack.encode(found)

    return answer


def warm_up() -> None:
    """Have Jinja in memory."""
    ChatTemplate("{% for m in messages %}{{ m.role ~ m['content'] | trim }}{% endfor %}").render([{"role": "user"}])
