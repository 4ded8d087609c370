"""lm-eval's own command line, with one kind of model more: `python -m imp_server.cli._lm_eval`.

To score a text lm-eval asks for one token behind it and drops the last logprob, believing that to be this token's.
Where the model would end there, that would be the text's own last token: imp-completions lets it go on instead.
"""

from __future__ import annotations

from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.openai_completions import LocalCompletionsAPI


@register_model("imp-completions")
class ImpCompletions(LocalCompletionsAPI):  # type: ignore[misc]
    def _create_payload(self, messages: Any, generate: bool = False, **options: Any) -> dict[str, Any]:
        payload: dict[str, Any] = super()._create_payload(messages, generate=generate, **options)
        return payload if generate else {**payload, "ignore_eos": True}


if __name__ == "__main__":
    cli_evaluate()
