"""The faults: each a single thing that a server may do wrong, most of them seen in the wild."""

from __future__ import annotations

from tests.conformance.faults.caching import CACHE_FAULTS
from tests.conformance.faults.chat import CHAT_FAULTS
from tests.conformance.faults.messages import MESSAGES_FAULTS
from tests.conformance.faults.other_openai import OTHER_OPENAI_FAULTS
from tests.conformance.faults.responses import RESPONSES_FAULTS
from tests.conformance.faults.transport import TRANSPORT_FAULTS

FAULTS = [*CHAT_FAULTS, *OTHER_OPENAI_FAULTS, *RESPONSES_FAULTS, *MESSAGES_FAULTS, *CACHE_FAULTS, *TRANSPORT_FAULTS]
