"""Values that programs stumble over."""

from __future__ import annotations

DEEP = 10_000
LONG_NAME = "n" * 320
DIGITS = "7" * 5000

JSON_VALUES: dict[str, str] = {
    "null": "null", "true": "true", "minus one": "-1", "zero": "0", "a fraction": "1.5",
    "1e308": "1e308", "an overflow": "1e999", "NaN": "NaN", "Infinity": "Infinity",
    "minus Infinity": "-Infinity", "thousands of digits": DIGITS,
    "beyond int64": "9223372036854775808", "10**12": str(10**12), "1e20": "1e20", "1e-39": "1e-39",
    "no text": '""', "text": '"x"', "NUL": '"a\\u0000b"', "a lone surrogate": '"\\ud800"',
    "two lines": '"a\\nb"', "a path": '"../../precious"', "right to left": '"\\u202eabc"',
    "an empty list": "[]", "an empty object": "{}", "a list": "[1, 2]", "a list of lists": "[[]]",
    "an object": '{"a": 1}', "a deep list": "[" * DEEP + "]" * DEEP,
    "a deep object": '{"a":' * DEEP + "1" + "}" * DEEP, "a long text": f'"{LONG_NAME}"',
    "a huge text": '"' + "x" * 100_000 + '"', "markup": '"<script>alert(1)</script>"',
    "a format": '"{0.__class__}%s%n"',
}  # fmt: skip
"""By a word for each, as JSON text."""

NO_JSON: dict[str, str] = {
    "nothing": "", "garbage": "{not json", "half": '{"format": 1, "env"', "a list": "[]",
    "null": "null", "a number": "17", "deep": "[" * DEEP, "deep and closed":
    "[" * DEEP + "]" * DEEP, "a text": '"text"', "many digits": '{"format": ' + DIGITS + "}",
    "NUL": "\x00\x00\x00", "an empty object": "{}", "binary": "\x7fELF\x02\x01",
}  # fmt: skip
"""Whole documents."""

TEXTS: dict[str, str] = {
    "empty": "", "a blank": " ", "long": LONG_NAME, "very long": "n" * 5000, "NUL": "a\x00b",
    "two lines": "a\nb", "carriage return": "a\rb", "escape": "\x1b[31mred\x1b[0m",
    "a surrogate": "a\udc80b", "emoji": "\U0001f9ea\U0001f9ea", "right to left": "\u202eabc\u200f",
    "a line separator": "a\u2028b", "next line": "a\x85b", "a dash": "-", "dashes": "--",
    "an option": "--help-me", "percent": "%s%n%d", "braces": "{eps}{0}", "a star": "*",
    "brackets": "[", "markup": "[bold]x[/nothing]", "a quote": "'\"`", "dots": "..",
    "slashes": "///", "a tilde": "~", "backslash": "\\", "equals": "=", "a colon": ":",
    "a comma": ",",
}  # fmt: skip

NO_INTEGERS: dict[str, str] = {
    "text": "many", "nothing": "", "a fraction": "1.5", "1e3": "1e3", "NaN": "nan", "inf": "inf",
    "thousands of digits": DIGITS, "beyond int64": str(2**63), "far beyond int64": str(10**30),
    "NUL": "1\x00", "two lines": "1\n2", "a surrogate": "\udc80", "hexadecimal": "0x10",
    "minus": "-", "emoji": "\U0001f9ea", "minus one": "-1", "very negative": str(-(10**30)),
}  # fmt: skip
"""What is not a number of tasks, or rounds, or a seed."""

NO_FLOATS: dict[str, str] = {
    "text": "much", "nothing": "", "NaN": "nan", "inf": "inf", "minus inf": "-inf",
    "minus one": "-1", "1e999": "1e999", "NUL": "0.1\x00", "two lines": "0.1\n0.2",
    "a comma": "0,4", "thousands of digits": DIGITS, "a surrogate": "\udc80",
}  # fmt: skip
"""What is neither a share nor a budget."""

TRAVERSALS: dict[str, str] = {
    **{f"{n} up": "../" * n + "precious" for n in range(1, 8)},
    "absolute": "@ROOT@/precious", "absolute in the case": "@CASE@/precious", "dots": "..",
    "dot": ".", "empty": "", "two dots twice": "../..", "in and out": "x/../../../precious",
    "NUL": "a\x00b", "long": LONG_NAME, "slash": "/", "a folder": "inner/letter", "tilde": "~",
    "backslashes": "..\\..\\precious", "two lines": "a\nb", "a surrogate": "a\udc80",
    "a star": "*", "brackets": "[a-z]*", "trailing slash": "../../precious/",
    "a file": "../../keep.txt", "up to a file": "../../../keep.txt",
}  # fmt: skip
"""Names that are paths to somewhere else."""
