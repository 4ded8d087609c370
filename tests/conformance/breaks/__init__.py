"""The ways in which a running imp is broken, one at a time: in what each dialect writes, and around it."""

from tests.conformance.breaks.chat import CHAT_BREAKS
from tests.conformance.breaks.found import FOUND_BREAKS
from tests.conformance.breaks.messages import MESSAGES_BREAKS
from tests.conformance.breaks.others import OTHER_BREAKS
from tests.conformance.breaks.responses import RESPONSES_BREAKS
from tests.conformance.breaks.thinking import THINKING_BREAKS
from tests.conformance.breaks.transport import TRANSPORT_BREAKS

BREAKS = (*CHAT_BREAKS, *RESPONSES_BREAKS, *MESSAGES_BREAKS, *OTHER_BREAKS, *TRANSPORT_BREAKS, *FOUND_BREAKS)

__all__ = ["BREAKS", "THINKING_BREAKS"]
