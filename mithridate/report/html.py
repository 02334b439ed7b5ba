"""The report: one HTML file that needs nothing else, made from a store and nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mithridate.capabilities import Picture
from mithridate.errors import UserError
from mithridate.experiments.estimate import readable
from mithridate.experiments.store import Store
from mithridate.files import make_directory, shown, write_atomic
from mithridate.report.picture import room_svg
from mithridate.report.svg import line_chart
from mithridate.report.views import omissions, summarise


def render(store: Store, *, live: bool = False) -> str:
    """The page. `live`: it asks now and then whether it has changed, and reloads itself."""
    seen = fingerprint(store)  # before anything is read: what comes after is then noticed
    sections = summarise(store)
    return page_templates().get_template("report.html.j2").render(
        sections=sections, omissions=omissions(store), live=live, fingerprint=seen,
        version=version("mithridate"),
    )  # fmt: skip


def render_problem(problem: str, seen: str) -> str:
    """A live page that says why there is no other, until that has changed."""
    return (
        page_templates().get_template("problem.html.j2").render(problem=problem, fingerprint=seen)
    )


def page_templates() -> Environment:
    """Everything that is put into a page is escaped."""
    environment = Environment(
        loader=PackageLoader("mithridate.report", "templates"), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["number"] = lambda x: "–" if x is None else f"{x:.1f}"
    environment.filters["signed"] = lambda x: "–" if x is None else f"{x:+.1f}"
    environment.filters["readable"] = readable
    environment.filters["pretty_json"] = lambda x: json.dumps(x, indent=1)
    environment.globals["chart"] = lambda view, name: Markup(line_chart(view, name))
    environment.globals["picture"] = picture
    environment.globals["cell_style"] = cell_style
    return environment


def fingerprint(store: Store) -> str:
    """Changes whenever the page would, but for damage to an artifact that was there before."""
    graphs = [(name, _touched(store.root / "graphs" / name)) for name in store.graph_files()]
    text = json.dumps([store.names(), graphs])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _touched(path: Path) -> list[int]:
    try:
        status = path.lstat()
    except OSError:
        return []
    return [status.st_mtime_ns, status.st_size, status.st_ino]


def picture(room: Picture) -> str:
    """An image that is part of the page."""
    return "data:image/svg+xml;base64," + base64.b64encode(room_svg(room).encode()).decode()


def cell_style(cell: Any) -> str:
    """Of anything with a share, from 0 to 1."""
    return f"--share:{100 * cell.share:.0f}%"


def write_report(store: Store, path: Path) -> list[Path]:
    """The page, and beside it a folder with the tables (CSV, LaTeX) and figures (PDF, PNG)."""
    from mithridate.report.exports import export

    if not path.name:
        raise UserError(f"--out {shown(path)}: the name of a file is needed")
    page = render(store)
    make_directory(path.parent)
    write_atomic(path, page)
    return [path, *export(store, path.with_name(f"{path.stem}_files"))]
