"""Directives whose content comes from the package, so that no page can fall behind it:

{zoo}                   the shipped models, from their cards, with the hashes of their weights
{leaderboard}           the entries of results/leaderboard, ranked
{settings} KIND NAME …  the settings of registered classes, e.g. `{settings} attacker
                        ace jun_ucb`; those with the same settings share a table

A line `The text of this page: [NAME](../NAME.md)` becomes the text of that file, and links to files
outside of docs/ that are pages of the site lead to these pages.
"""

from __future__ import annotations

import hashlib
import json
import os.path
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from mithridate.model.weights import ZOO, load_model, zoo_names
from mithridate.registry import AGENTS, ATTACKERS, ENVS
from mithridate.stress.leaderboard import boards, read_entries
from mithridate.tensor_files import tensors_sha256

DOCS = Path(__file__).parent.parent
ENTRIES = DOCS.parent / "results" / "leaderboard"
PAGES = {
    "README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md", "results/README.md": "results.md",
}  # fmt: skip
"""Files of the repository that are pages of the site."""
REGISTRIES = {"agent": AGENTS, "attacker": ATTACKERS, "environment": ENVS}
KINDS = {"dpt": "DPT", "at-dpt": "AT-DPT", "ad": "Algorithm Distillation"}


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """In Markdown."""

    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |"

    return [line(heads), line(["---"] * len(heads)), *map(unbroken, map(line, rows)), ""]


def unbroken(line: str) -> str:
    """A line of a table, its intervals on one line each."""
    return line.replace(" ± ", "\u00a0±\u00a0")


# The shipped models -------------------------------------------------------------------------------


def zoo_text() -> str:
    """One table for each environment, and one of all hashes."""
    cards: dict[str, dict[str, Any]] = {}
    by_tensors: dict[str, str] = {}
    hashes = []
    for name in zoo_names():
        weights = (ZOO / f"{name}.safetensors").read_bytes()
        card = json.loads((ZOO / f"{name}.json").read_text())
        found = hashlib.sha256(weights).hexdigest()
        if found != card["sha256"]:
            raise ExtensionError(f"the card of {name} belongs to other weights")
        cards[name] = card
        by_tensors[tensors_sha256(load_model(name)[0].state_dict())] = name
        hashes.append((f"`{name}`", f"`{found}`"))
    text = []
    for env in dict.fromkeys(card["env"]["name"] for card in cards.values()):
        here = {name: card for name, card in cards.items() if card["env"]["name"] == env}
        rows = [_model(name, card, by_tensors) for name, card in here.items()]
        heads = ["name", "kind", "trained", "temperature", "weights", "without an attack"]
        text += [f"## `{env}`", "", *table(heads, rows)]
    return "\n".join([*text, "## Hashes", "", *table(["name", "sha256 of the weights"], hashes)])


def _model(name: str, card: dict[str, Any], by_tensors: dict[str, str]) -> tuple[str, ...]:
    training = dict(card["training"])
    if "start" in training:  # some were trained before their start was named
        training["start"] = by_tensors.get(training["start_sha256"], training["start"])
    metrics = card["metrics"]
    clean = "–"
    if metrics.get("clean_mean") is not None:
        clean = f"{metrics['clean_mean']:.1f} ± {metrics['clean_ci95']:.1f}"
    return (
        f"`{name}`", KINDS.get(card["kind"], card["kind"]), trained(training),
        f"{card.get('temperature', 1.0):g}", f"{card['parameters']:,}", clean,
    )  # fmt: skip


def trained(training: dict[str, Any]) -> str:
    """How, in a few words."""
    words = []
    if source := training.get("source"):
        words.append(f"imitates `{source}`")
        if training.get("attacker", "none") != "none":
            words.append(f"under `{training['attacker']}`")
    if start := training.get("start"):
        words.append(f"from `{start}`")
        threats = training.get("threats", [])
        names = dict.fromkeys(t["attacker"].partition("(")[0] for t in threats)
        against = ", ".join(f"`{name}`" for name in names if name != "none")
        words.append(f"against {against}" if against else "without attackers")
    if "eps" in training and (start or training.get("attacker", "none") != "none"):
        words.append(f"eps {_levels(training, 'eps')}, budget {_levels(training, 'budget')}")
    if training.get("suboptimal"):
        words.append(f"{100 * training['suboptimal']:.0f} % suboptimal labels")
    return ", ".join(words or ["on clean contexts"]) + f"; seed {training.get('seed', '–')}"


def _levels(training: dict[str, Any], name: str) -> str:
    """Those of all threats."""
    said = (threat.get(name) for threat in training.get("threats", []))
    levels = {training[name], *(level for level in said if level is not None)}
    return " and ".join(f"{level:g}" for level in sorted(levels))


# The leaderboard ----------------------------------------------------------------------------------


def leaderboard_text(folder: Path = ENTRIES) -> str:
    """One table for each environment and suite, the best agents first."""
    text = []
    for board in boards(read_entries(folder)):
        suite = board.suite
        text += [f"## `{suite.env}`, {suite.name}", ""]
        text += [
            f"{board.metric.capitalize()}, {board.better} is better; {suite.tasks} tasks, budget "
            f"{suite.budget:g}. The rank is by the worst case at eps {suite.hardest:g}.",
            "",
        ]
        worst = [f"worst case, eps {eps:g}" for eps in suite.eps]
        single = f"worst single attack, eps {suite.hardest:g}"
        heads = ["", "agent", "clean", *worst, single, "from the best", "flags", "sha256"]
        rows = [_standing(standing) for standing in board.standings]
        text += table(heads, rows)
    return "\n".join(text)


def _standing(standing: Any) -> tuple[Any, ...]:
    entry, hardest = standing.entry, standing.hardest
    behind = standing.behind
    return (
        standing.rank,
        f"`{entry.agent}`",
        f"{entry.clean:.1f} ± {entry.clean_ci95:.1f}",
        *(f"{f.case:.1f} ± {f.case_ci95:.1f}" for f in entry.figures),
        f"{hardest.single:.1f} ± {hardest.single_ci95:.1f} (`{hardest.worst_attack}`)",
        f"{behind[0]:+.1f} ± {behind[1]:.1f}" if behind else "–",
        ", ".join(dict.fromkeys(f"`{flag.code}`" for flag in entry.flags)) or "–",
        f"`{entry.sha256[:12]}`" if entry.sha256 else "–",
    )  # fmt: skip


# Settings -----------------------------------------------------------------------------------------


def settings_text(kind: str, names: Sequence[str]) -> str:
    """Tables of the fields that registered classes can be given."""
    tables: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name in names:
        tables.setdefault(tuple(_fields(kind, name)), []).append(f"`{name}`")
    text = []
    for rows, some in tables.items():
        text += table([f"setting of {', '.join(some)}", "default", "what it is"], rows)
    return "\n".join(text)


def _fields(kind: str, name: str) -> Iterable[tuple[str, ...]]:
    for field, info in REGISTRIES[kind].get(name).Config.model_fields.items():
        if kind != "environment" or field != "name":
            default = "–" if info.is_required() else f"`{_plain(info.get_default())}`"
            yield f"`{field}`", default, " ".join((info.description or "").split())


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# Pages from elsewhere -----------------------------------------------------------------------------


def read_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Called when Sphinx has read a page."""

    def text_of(match: re.Match[str]) -> str:
        path = (DOCS / docname).parent / match[1]
        app.env.note_dependency(path, docname=docname)
        text = path.read_text()
        if re.search("^# ", source[0], re.M):  # the page has a title of its own
            text = text.partition("\n")[2]
        return relinked(text, path.parent, page.parent)

    page = DOCS / f"{docname}.md"
    filled = re.sub(r"^The text of this page: \[.*?\]\((.*?)\)$", text_of, source[0], flags=re.M)
    text = relinked(filled, page.parent, page.parent)
    source[0] = re.sub(r"^\|.*", lambda line: unbroken(line[0]), text, flags=re.M)


def relinked(text: str, here: Path, there: Path) -> str:
    """Relative links of a text that stood in the folder `here`, for one that stands in `there`."""

    def link(match: re.Match[str]) -> str:
        path, hash_, anchor = match[1].partition("#")
        place = os.path.normpath(here / path)
        known = PAGES.get(os.path.relpath(place, DOCS.parent))
        target = DOCS / known if known else Path(place)
        return f"]({os.path.relpath(target, there)}{hash_}{anchor})"

    return re.sub(r"\]\((?![a-z]+:|#)([^()\s]+)\)", link, text)


# Sphinx -------------------------------------------------------------------------------------------


def widen(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Pages that say `wide: true` have room for wide tables."""
    if (context.get("meta") or {}).get("wide"):
        app.add_css_file("wide.css")


class Zoo(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(ZOO))
        return self.parse_text_to_nodes(zoo_text(), allow_section_headings=True)


class Leaderboard(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(ENTRIES))
        return self.parse_text_to_nodes(leaderboard_text(), allow_section_headings=True)


class Settings(SphinxDirective):
    required_arguments = 2
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        kind, names = self.arguments
        return self.parse_text_to_nodes(settings_text(kind, names.split()))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", read_page)
    app.connect("html-page-context", widen)
    app.add_directive("zoo", Zoo)
    app.add_directive("leaderboard", Leaderboard)
    app.add_directive("settings", Settings)
    return {"version": "1", "parallel_read_safe": True}
