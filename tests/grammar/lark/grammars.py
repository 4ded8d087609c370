"""Grammars of clients and of lark's own documentation, with texts they accept and texts they don't."""

from __future__ import annotations

APPLY_PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""Of Codex: how it lets models edit files."""

PATCH = """*** Begin Patch
*** Add File: src/é.py
+def f(x):\r
+
+    return "</parameter>" + '\\n'
*** Update File: b.py
*** Move to: c.py
@@ class A:
-    old = 1
+    new = {"a": [1, 2]}
\x20
@@
+last
*** End of File
*** Delete File: d.py
*** End Patch
"""

CALCULATOR = """
?start: sum
?sum: product
    | sum "+" product   -> add
    // a comment between alternatives
    | sum "-" product   -> sub
?product.2: atom
    | product "*" atom  -> mul
    | product "/" atom  -> div
?atom: NUMBER           -> number   # a comment of the other kind
     | "-" atom         -> neg
     | NAME
     | "(" sum ")"
NAME.1: CNAME
%import common (CNAME, NUMBER)
%import common.WS_INLINE -> BLANKS
%ignore BLANKS
"""

JSON = r"""
?start: value
?value: object | array | string
      | SIGNED_NUMBER      -> number
      | "true"             -> true
      | "false"            -> false
      | "null"             -> null
array  : "[" [value ("," value)*] "]"
object : "{" [pair ("," pair)*] "}"
pair   : string ":" value
string : ESCAPED_STRING
%import common.ESCAPED_STRING
%import common.SIGNED_NUMBER
%import common.WS
%ignore WS
"""

SQL = r"""
start: "SELECT"i columns "FROM"i NAME ["WHERE"i condition] ";"
columns: "*" | NAME ("," NAME)*
condition: NAME OPERATOR value
OPERATOR: "=" | "<" | ">" | "<="
value: NUMBER | /'[^'\n]{0,20}'/
NAME: ("a".."z" | "A".."Z" | "_")~1..12
%import common.NUMBER
%ignore /\s+/
"""

EXAMPLES: list[tuple[str, list[str], list[str]]] = [
    (
        APPLY_PATCH,
        [PATCH, PATCH[:-1], "*** Begin Patch\n*** Delete File:  \n*** End Patch"],
        [PATCH + "\n", PATCH[1:], PATCH.replace("@@ c", "@@c"), "*** Begin Patch\n*** End Patch", PATCH[:60], ""],
    ),
    (
        CALCULATOR,
        ["1", "1+2*3", "-(a - 1.5e3)/ -b", "  1 +\t2 ", "1-1-1-1"],
        ["", "1+", "1 2", "(1", "1\n+1", "a b"],
    ),
    (
        JSON,
        ["{}", ' { "a" : [ 1 , -2.5e3 , true , {"b\\"c": null} ] }\n', '"x"', "[]", "[[[]]]"],
        ["{,}", "[1,]", '"a"b"', "[1 2]", "tru e", "'x'", ""],
    ),
    (
        SQL,
        ["select * from t;", "SELECT a, b FROM t WHERE x <= 3 ;", "SeLeCt a FROM b where c = 'it is';"],
        ["select from t;", "select * from t", "select a from b where c = 'x\ny';", "select a from abcdefghijklm;"],
    ),
]
