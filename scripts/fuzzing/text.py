"""Driver `text`: what people write in one line. Hypothesis finds the text; only a UserError may
leave."""

from __future__ import annotations

from hypothesis import strategies as st

from fuzzing.plans import Plan
from fuzzing.values import TEXTS

PIECES = ("ts", "ucb1", "(", ")", "=", ",", ".", ":", "*", "[", "]", "{", "}", '"', "'", "\\", "1",
          "-", "1e999", "NaN", "null", "constant", "env", "arms", "seed", "pretrain", "bandit_main",
          "all", "learned", "none", "swap", "X=", "dpt-bandit-s0", "\n", "\x00",
          "\udc80")  # fmt: skip
TARGETS = ("parse_call", "split_names", "assignment", "stage set", "recipe", "agent", "attacker",
           "victims", "environment", "column")  # fmt: skip


def lines() -> st.SearchStrategy[str]:
    return st.one_of(
        st.text(),
        st.text(st.characters(codec=None)),
        st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
        st.sampled_from(sorted(TEXTS.values())),
        st.integers(1, 3000).map(lambda n: "(" * n),
        st.integers(1, 6000).map(lambda n: "x=" + "[" * n),
    )


def plans() -> st.SearchStrategy[Plan]:
    return st.builds(
        lambda target, line: Plan("text", target, call={"do": "text", "target": target,
                                                        "line": line}),
        st.sampled_from(TARGETS), lines(),
    )  # fmt: skip
