"""The page of a stress test: one HTML file that needs nothing else, made from its entry alone."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from html import escape
from typing import Any

from markupsafe import Markup

from mithridate.evaluation.kinds import trained_kinds
from mithridate.registry import AGENTS
from mithridate.report.html import page_templates
from mithridate.report.svg import BOTTOM, HEIGHT, LEFT, TOP, WIDTH, ticks
from mithridate.report.views import CurveView
from mithridate.stress.entry import AttackEntry, Entry
from mithridate.stress.flags import WHY
from mithridate.stress.measure import points
from mithridate.stress.suites import CLEAN, Suite, left_out, suite_env
from mithridate.stress.worst import average

MARGIN = 16


@dataclass(frozen=True)
class _Cell:
    mean: float
    ci95: float
    share: float
    """How good it is, from 0, as bad as the worst of its level, to 1."""
    worst: bool


@dataclass(frozen=True)
class _Row:
    name: str
    kind: str
    trained: bool
    cells: list[_Cell]
    norm: float
    chosen: float
    """Share of the tasks that it is worst for at the hardest level."""


def render_entry(entry: Entry) -> str:
    suite = entry.known_suite()
    hardest = max(entry.figures, key=lambda figure: figure.eps)
    horizon = suite_env(suite).spec.horizon
    return page_templates().get_template("stress.html.j2").render(
        entry=entry, suite=suite, hardest=hardest, horizon=horizon, left_out=left_out(suite),
        flags=_flags(entry), rows=_rows(entry, suite),
        offsets=[_offsets(entry, figure.eps, figure.worst_attack) for figure in entry.figures],
        curves=[_curves(entry, suite, eps, horizon) for eps in suite.eps],
        command=_command(entry),
    )  # fmt: skip


def _flags(entry: Entry) -> list[tuple[str, list[str], str]]:
    """Code, what was found, and why it matters."""
    by_code: dict[str, list[str]] = {}
    for flag in entry.flags:
        by_code.setdefault(flag.code, []).append(flag.text)
    return [(code, texts, WHY.get(code, "")) for code, texts in by_code.items()]


def _rows(entry: Entry, suite: Suite) -> list[_Row]:
    _, _, shares, _ = entry.worst(suite.hardest)

    def cell(attack: AttackEntry, eps: float) -> _Cell:
        figure = average(attack.scores)
        means = [average(scores).mean for scores in entry.scores(eps).values()]
        low, high = min(means), max(means)
        share = (figure.mean - low) / (high - low) if high > low else 0.0
        worst = next(f.worst_attack for f in entry.figures if f.eps == eps)
        good = 1 - share if entry.better == "lower" else share
        return _Cell(figure.mean, figure.ci95, good, attack.name == worst)

    rows = []
    for attack in (CLEAN, *suite.attacks):
        by_level = [entry.under(attack.name, eps) for eps in suite.eps]
        rows.append(
            _Row(
                attack.name, attack.kind, attack.kind in trained_kinds(),
                [cell(found, eps) for found, eps in zip(by_level, suite.eps, strict=True)],
                entry.under(attack.name, suite.hardest).norm_mean, shares.get(attack.name, 0.0),
            )
        )  # fmt: skip
    return rows


def _curves(entry: Entry, suite: Suite, eps: float, horizon: int) -> CurveView:
    attacks = [entry.under(attack.name, eps) for attack in (CLEAN, *suite.attacks)]
    lines = {
        attack.name: list(zip(map(float, points(horizon)), attack.curve, strict=True))
        for attack in attacks
    }
    return CurveView(f"{entry.metric} over time, eps {eps:g}", "step", entry.metric, lines)


def _command(entry: Entry) -> str:
    """What computes it again."""
    name = entry.made_of
    if entry.sha256 is None and name.isidentifier() and AGENTS.known(name) is None:  # an object
        return f'mithridate.stress_test({name}, "{entry.environment}", "{entry.suite}")'
    words = ["mithridate", "stress", entry.environment, "--agent", entry.made_of]
    return shlex.join([*words, "--suite", entry.suite])


def _offsets(entry: Entry, eps: float, name: str) -> dict[str, Any]:
    attack = entry.under(name, eps)
    title = f"{name}, eps {eps:g}: norm {attack.norm_mean:.2f} on average"
    return {"title": title, "svg": Markup(bars(attack.offsets, attack.spreads, title))}


def bars(means: list[float], spreads: list[float], title: str) -> str:
    """Bars up and down, with whiskers."""
    reach = [m + s * w for m, s in zip(means, spreads, strict=True) for w in (-1, 1)]
    marks = ticks(min(0.0, *reach), max(0.0, *reach))
    y0, y1 = marks[0], marks[-1]
    width = (WIDTH - LEFT - MARGIN) / len(means)

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)

    said = "; ".join(f"rank {i + 1}: {mean:+.2f}" for i, mean in enumerate(means))
    parts = [
        f'<svg class="bars" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}: {escape(said)}</title>",
    ]
    for y in marks:
        style = "axis" if y == 0 else "grid"
        parts.append(_line(style, LEFT, py(y), WIDTH - MARGIN, py(y)))
        parts.append(_text(LEFT - 6, py(y) + 4, f"{y:g}", "end"))
    for i, (mean, spread) in enumerate(zip(means, spreads, strict=True)):
        x, middle = LEFT + width * (i + 0.2), LEFT + width * (i + 0.5)
        style = "bar" if mean >= 0 else "bar down"
        parts.append(
            f'<rect class="{style}" x="{x:.1f}" y="{min(py(mean), py(0)):.1f}" '
            f'width="{0.6 * width:.1f}" height="{abs(py(mean) - py(0)):.1f}"/>'
        )
        parts.append(_line("whisker", middle, py(mean - spread), middle, py(mean + spread)))
        parts.append(_text(middle, HEIGHT - BOTTOM + 16, str(i + 1)))
    parts.append(_text((LEFT + WIDTH - MARGIN) / 2, HEIGHT - 6, "rank of the action"))
    return "\n".join([*parts, "</svg>"])


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
