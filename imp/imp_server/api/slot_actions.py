"""Saving, restoring and erasing what an engine's rows held: files of their owner, in a folder of the operator's."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from imp_server.api.model_host import ModelHost
from imp_server.core import InvalidRequest, NotSupported, PayloadTooLarge, Unavailable
from imp_server.core.errand import NotWanted, current_errand
from imp_server.core.owner import NOBODY, Owner
from imp_server.dialects.handler import SlotOutcome, SlotVerb
from imp_server.engine.messages import SlotAction, SlotDone

_LONGEST_NAME = 200
_LOOK_S = 0.1
_BUSY = "busy"
_EVERYBODY = "everybody"
"""Folder of those who have no key."""


async def act(
    host: ModelHost, owner: Owner, verb: SlotVerb, slot: int, filename: str, *, is_admin: bool = False
) -> SlotOutcome:
    """Waits while the slot is busy, for at most server.request_timeout_s. An admin may save what is anybody's.

    Raises NotSupported, InvalidRequest, PayloadTooLarge, Unavailable, NotWanted.
    """
    knobs = host.config.prefix_cache
    if not knobs.slots_path:
        raise NotSupported("this server keeps no slots in files (prefix_cache.slots_path, --slot-save-path)")
    if not 0 <= slot < host.client.info.n_rows:
        message = f"there is no slot {slot}: this model has 0 to {host.client.info.n_rows - 1}"
        raise InvalidRequest(message, param="id_slot", code="unknown_slot")
    path = "" if verb == "erase" else str(file_of(knobs.slots_path, owner, filename))
    errand, limit_s = current_errand(), host.config.server.request_timeout_s or None
    question = SlotAction(0, verb, slot, path, "" if is_admin else owner, knobs.path_mib << 20)
    try:
        async with asyncio.timeout(limit_s):
            while (done := await host.client.slot_action(question)).problem == _BUSY:
                if errand.is_over:
                    raise NotWanted
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise Unavailable(f"slot {slot} was busy all the time", retry_after_s=5.0) from None
    _check(done, verb, slot)
    return SlotOutcome(done.n_tokens, done.n_bytes, done.took_ms)


def file_of(folder: str, owner: Owner, filename: str) -> Path:
    """Below the folder of the owner. Raises InvalidRequest for what is no plain name."""
    is_plain = filename.isprintable() and not set(filename) & set("/\\:") and filename[:1] != "."
    if not filename or not is_plain or len(filename.encode()) > _LONGEST_NAME:
        message = f'"filename" must be a plain name of at most {_LONGEST_NAME} bytes that begins with no dot'
        raise InvalidRequest(message, param="filename")
    whose = hashlib.blake2b(owner.encode(), digest_size=16).hexdigest() if owner != NOBODY else _EVERYBODY
    return Path(folder).expanduser().absolute() / whose / filename


def _check(done: SlotDone, verb: SlotVerb, slot: int) -> None:
    if done.problem == "nothing" and verb == "erase":
        return
    if done.problem == "nothing":
        raise InvalidRequest(f"slot {slot} holds nothing of yours", param="id_slot", code="unknown_slot")
    if done.problem == "full":
        raise PayloadTooLarge("the slot and what is saved beside it are more than prefix_cache.path_mib")
    if done.problem == "unusable":
        message = "there is no such file of yours, or it was made by another model, layout or kernel"
        raise InvalidRequest(message, param="filename")
    if done.problem:
        raise Unavailable("the file can't be written; the log says why", retry_after_s=5.0)
