"""Chat templates for `--chat-template NAME`, written in Jinja like the models' own."""

from __future__ import annotations

_CHATML = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
_NONE = """\
{%- for message in messages -%}
{{- message.content -}}{%- if not loop.last -%}{{- '\\n' -}}{%- endif -%}
{%- endfor -%}
"""

BUILTIN_TEMPLATES: dict[str, str] = {"chatml": _CHATML, "none": _NONE}
