"""lm-eval's own command line, with one kind of model more: `python -m imp_server.cli._lm_eval`.

To score a text lm-eval asks for one token behind it and drops the last logprob, believing that to be this token's.
Where it is a control token, which no reply shows, that would be the text's own last one: imp-completions counts.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.openai_completions import LocalCompletionsAPI


@register_model("imp-completions")
class ImpCompletions(LocalCompletionsAPI):  # type: ignore[misc]
    @staticmethod
    def parse_logprobs(
        outputs: Any, tokens: list[list[int]] | None = None, ctxlens: list[int] | None = None, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        listed = outputs if isinstance(outputs, list) else [outputs]
        choices = [choice for out in listed for choice in sorted(out["choices"], key=itemgetter("index"))]
        for choice, ids in zip(choices, tokens or ()):
            told = choice["logprobs"]
            for name in ("token_logprobs", "top_logprobs"):
                told[name] = [*told[name][: len(ids)], None]  # the last is dropped
        found: list[tuple[float, bool]] = LocalCompletionsAPI.parse_logprobs(
            outputs=listed, tokens=tokens, ctxlens=ctxlens, **kwargs
        )
        return found


if __name__ == "__main__":
    cli_evaluate()
