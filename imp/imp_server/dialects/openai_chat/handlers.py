"""POST /v1/chat/completions."""

from __future__ import annotations

from imp_server.dialects.handler import Call, Generate, Reply, handler
from imp_server.dialects.llamacpp.fields import with_bias_by_id
from imp_server.dialects.llamacpp.verbose import note_verbose
from imp_server.dialects.openai_chat.reply import ChatFold, ChatStream
from imp_server.dialects.openai_chat.request import ChatHabits, chat_request


@handler
async def create_chat_completion(call: Call) -> Reply:
    request = await call.worked(chat_request, await with_bias_by_id(call), ChatHabits.of(call))
    context = call.reply_context("chatcmpl-", request.model, n=request.options.n)
    note_verbose(call, context)
    return Generate((request,), context, bool(call.body.get("stream")), ChatFold, ChatStream)
