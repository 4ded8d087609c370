"""Texts that would run something on a page that is careless anywhere. They all set `window.hacked`."""

from __future__ import annotations

from itertools import product

_CALL = "window.hacked=1"
_TAGS = (
    "<script>{}</script>",
    "<img src=x onerror={}>",
    "<svg onload={}>",
    "<svg><script>{}</script></svg>",
    "<svg><animate onbegin={} attributeName=x>",
    "<iframe srcdoc='<script>parent.{}</script>'></iframe>",
    "<body onload={}>",
    "<details open ontoggle={}>",
    "<input autofocus onfocus={}>",
    "<video><source onerror={}></video>",
    "<math><mtext><style><img src=x onerror={}></style></mtext></math>",
    "<template><script>{}</script></template>",
    "<noscript><p title='</noscript><img src=x onerror={}>'>",
    "<a href='javascript:{}'>x</a>",
    "<form action='javascript:{}'><button>x</button></form>",
    "<object data='javascript:{}'></object>",
    "<embed src='javascript:{}'>",
    "<meta http-equiv=refresh content='0;url=javascript:{}'>",
    "<base href='javascript:{}//'>",
    "<link rel=stylesheet href='javascript:{}'>",
    "<style>@import 'javascript:{}'</style>",
    "<div style='background:url(javascript:{})'>",
    "<marquee onstart={}>x</marquee>",
    "<select autofocus onfocus={}>",
    "<textarea autofocus onfocus={}>",
)
_SHELLS = (
    "{}",
    "\"'>{}",
    "</textarea></title></script>{}",
    "`{}`",
    "```html\n{}\n```",
    "| a |\n|---|\n| {} |",
    "&lt;b&gt;{}",
)
_LINKS = (
    "[x](javascript:{})",
    "[x](JaVaScRiPt:{})",
    "[x](java\tscript:{})",
    "[x](&#106;avascript:{})",
    "[x](javascript&colon;{})",
    "[x](data:text/html,<script>{}</script>)",
    "[x](vbscript:{})",
    "[x](<javascript:{}>)",
    "[x]: javascript:{}\n\n[x]",
    "![x](javascript:{})",
    "![x](x onerror={})",
    "<javascript:{}>",
    '[x](http://a"onmouseover={} b)',
    "[x](http://a 'onmouseover={}')",
    "[<img src=x onerror={}>](http://a)",
    "[x](\\javascript:{})",
    "[x](//evil.example/{})",
    "[x](\x01javascript:{})",
)
_OTHERS = (
    "{{{{constructor.constructor('{}')()}}}}",
    "${{{}}}",
    "\u2028<script>{}</script>",
    "<scr\x00ipt>{}</scr\x00ipt>",
    "<<script>{}//<</script>",
    "<ſcript>{}</ſcript>",
    "]]><script>{}</script>",
    "--><script>{}</script>",
)
HOSTILE: tuple[str, ...] = tuple(
    dict.fromkeys(
        [shell.format(tag.format(_CALL)) for tag, shell in product(_TAGS, _SHELLS)]
        + [text.format(_CALL) for text in (*_LINKS, *_OTHERS)]
    )
)
