"""Looking after a store: finding damage, and taking away what nobody asks for.

Nothing is removed at once. What is taken away goes to trash/<when>/, where it has the place that it
had in the store, so that it can be moved back; emptying the trash is another step.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from pathlib import Path

from mithridate.errors import UserError
from mithridate.experiments import formats
from mithridate.experiments.formats import strangers
from mithridate.experiments.store import Store
from mithridate.files import inside, make_directory, reason, shown

TRASH = "trash"
HALF_MARKER = r"\.store\.json\.\w{8}"
HALF_GRAPH = rf"\.{formats.PLAN}(\.json)?\.\w{{8}}"
SET_ASIDE = rf"{formats.STAGE}-[0-9a-f]{{8}}"


def verify(store: Store) -> dict[str, str]:
    """What is wrong with which artifact (by its name), graph or claim (by its file). Nothing is
    changed."""
    fresh = Store(store.root)  # one that has verified nothing yet
    problems = {n: fresh.problems[n] for n in fresh.names() if fresh.get(n) is None}
    for name in strangers(fresh.listed("artifacts"), formats.STAGE):
        problems[f"artifacts/{shown(name)}"] = "not the name of an artifact"
    for name in fresh.graph_files():
        try:
            fresh.graph(name)
        except UserError as error:
            problems[f"graphs/{shown(name)}"] = str(error)
    for name, problem in fresh.claims.problems().items():
        problems[f"claims/{shown(name)}"] = problem
    return problems


def garbage(store: Store, *, look_on: bool = True) -> list[Path]:
    """What no graph asks for, and what dead workers left behind. A UserError if a graph or a claim
    cannot be read: then nobody knows. `look_on`: see `Claims.age`."""
    wanted = {stage.name for graph in store.graphs().values() for stage in graph.stages}
    for name, problem in store.claims.problems().items():
        raise UserError(f"claims/{shown(name)}: {problem}; move it out of the store")

    def busy(name: str) -> bool:
        return store.claims.alive(name, look_on=look_on)

    found = [
        store.entry("artifacts", name)
        for name in store.names()
        if name not in wanted and not busy(name)
    ]
    found += [
        store.entry("work", name)
        for name in store.listed("work")
        if re.fullmatch(formats.STAGE, name)
        and not busy(name)
        and (name not in wanted or store.get(name) is not None)
    ]
    aside = store.folder("damaged")
    found += [aside / n for n in store.listed("damaged") if re.fullmatch(SET_ASIDE, n)]
    found += [p for p in _half_written(store) if _is_old(store, p, look_on)]
    return found + store.claims.dead(look_on=look_on)


def _half_written(store: Store) -> list[Path]:
    """What killed processes left of the marker and of graphs (see `write_atomic`)."""
    found = [store.root / n for n in os.listdir(store.root) if re.fullmatch(HALF_MARKER, n)]
    graphs = store.folder("graphs")
    return found + [graphs / n for n in store.listed("graphs") if re.fullmatch(HALF_GRAPH, n)]


def _is_old(store: Store, path: Path, look_on: bool) -> bool:
    """Whether nobody can still be writing it."""
    return store.claims.age(path, look_on=look_on) >= store.claims.seconds


def collect(store: Store) -> list[Path]:
    """Move the garbage to the trash; where it was."""
    found = garbage(store, look_on=False)
    if not found:
        return []
    when = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
    store.folder(TRASH)
    for path in found:
        place = inside(store.root, TRASH, when, path.parent.name)
        make_directory(place)
        try:
            os.rename(path, place / path.name)  # a link goes as it is
        except FileNotFoundError:  # somebody else was quicker
            continue
        except OSError as error:
            raise UserError(f"cannot move {shown(path)}: {reason(error)}") from None
    return found


def trash(store: Store) -> list[Path]:
    """What is in the trash."""
    return [
        entry
        for when in sorted(_children(store.folder(TRASH)))
        for entry in ([e for f in _children(when) for e in _children(f) or [f]] or [when])
    ]


def empty_trash(store: Store) -> list[Path]:
    """Remove for good what is in the trash; links in it are removed, not followed."""
    found = trash(store)
    for when in _children(store.folder(TRASH)):
        try:
            if when.is_symlink() or not when.is_dir():
                when.unlink()
            else:
                shutil.rmtree(when)
        except (OSError, RecursionError) as error:
            raise UserError(f"cannot remove {shown(when)}: {reason(error)}") from None
    return found


def _children(folder: Path) -> list[Path]:
    """What is in a folder, nothing if it is a link or a file."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"cannot read {shown(folder)}: {reason(error)}") from None
