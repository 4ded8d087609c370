"""Grammars that travelled once: the client sends a digest, the engine asks for the plan if it no longer has it."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from imp_server.core import GenerateRequest, GrammarPlan
from imp_server.engine.messages import Submit

MOST_BYTES = 16 << 20
MOST_SENT = 4096


class KnownPlans:
    """Owner of the engine's plans, by digest, the least recently used given up first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._plans: OrderedDict[str, GrammarPlan] = OrderedDict()
        self.n_bytes = 0

    def whole(self, plan: GrammarPlan, *, has_payload: bool) -> GrammarPlan | None:
        """The plan with its payload; None if it came without one and isn't here."""
        known = self._plans.get(plan.digest)
        if known is not None:
            self._plans.move_to_end(plan.digest)
            return known
        if not has_payload:
            return None
        self._plans[plan.digest] = plan
        self.n_bytes += len(plan.payload)
        while self.n_bytes > self._most_bytes and len(self._plans) > 1:
            _, oldest = self._plans.popitem(last=False)
            self.n_bytes -= len(oldest.payload)
        return plan


class SentPlans:
    """Owner of the digests that a client has sent with their plans. The engine may have forgotten some of them."""

    def __init__(self) -> None:
        self._digests: OrderedDict[str, None] = OrderedDict()

    def submit(self, request: GenerateRequest) -> Submit:
        """Without a payload that was sent before."""
        plan = request.plan.grammar
        if plan is None:
            return Submit(request)
        if plan.digest in self._digests:
            self._digests.move_to_end(plan.digest)
            light = msgspec.structs.replace(plan, payload=b"")
            plan_of_output = msgspec.structs.replace(request.plan, grammar=light)
            return Submit(msgspec.structs.replace(request, plan=plan_of_output), has_grammar=False)
        self._digests[plan.digest] = None
        if len(self._digests) > MOST_SENT:
            self._digests.popitem(last=False)
        return Submit(request)
