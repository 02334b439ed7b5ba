"""The benchmark's document as tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def bench_tables(document: dict[str, Any]) -> list[Table]:
    title = (
        f"Speed with {document['threads']} threads, kernels: {document['kernels']}, "
        f"measured multiply-add peak {document['peak_gflops']:.0f} GFLOP/s"
    )
    speed = Table(title=title, title_justify="left")
    for name in ("work", "peer"):
        speed.add_column(name)
    for name in ("ours (s)", "peer (s)", "ratio", "GFLOP/s", "of peak"):
        speed.add_column(name, justify="right")
    for r in document["results"]:
        speed.add_row(
            r["name"], r["peer"], f"{r['ours_s']:.3f}", f"{r['peer_s']:.3f}", f"{r['ratio']:.1f}x",
            f"{r['gflops']:.0f}", f"{r['share_of_peak']:.0%}",
        )  # fmt: skip
    notes = {f"{r['name']}, {r['peer']}: {r['note']}" for r in document["results"]}
    speed.caption = "\n".join(sorted(notes))
    speed.caption_justify = "left"
    growth = Table(title="Growth", title_justify="left")
    for name in ("work", "against"):
        growth.add_column(name)
    growth.add_column("seconds by size")
    growth.add_column("last exponent", justify="right")
    for g in document["growth"]:
        pairs = zip(g["sizes"], g["seconds"], strict=True)
        cells = "  ".join(f"{size}: {seconds:.3f}" for size, seconds in pairs)
        growth.add_row(g["name"], g["axis"], cells, f"{g['exponent']:.2f}")
    tables = (
        speed, growth, _episodes(document), _two_at_once(document), _rounds(document),
        _startup(document),
    )  # fmt: skip
    return [table for table in tables if table.row_count]


def _episodes(document: dict[str, Any]) -> Table:
    table = Table(title="Episodes of a search", title_justify="left")
    table.add_column("agent")
    for name in ("episodes", "seconds", "a second", "outside the kernels"):
        table.add_column(name, justify="right")
    for e in document["episodes"]:
        outside = "" if e["outside"] is None else f"{e['outside']:.0%}"
        table.add_row(
            e["agent"], str(e["episodes"]), f"{e['seconds']:.3f}", f"{e['per_second']:.0f}", outside
        )
    if each := document["per_episode"]:
        pairs = zip(each["tasks"], each["seconds"], strict=True)
        table.caption = "in_context, ms of an episode by tasks: " + ", ".join(
            f"{tasks}: {1000 * seconds:.2f}" for tasks, seconds in pairs
        )
        table.caption_justify = "left"
    return table


def _two_at_once(document: dict[str, Any]) -> Table:
    table = Table(title="Two processes at once", title_justify="left")
    table.add_column("work")
    for name in ("alone (s)", "each of two (s)", "ratio"):
        table.add_column(name, justify="right")
    for s in document["two_at_once"]:
        table.add_row(
            s["name"], f"{s['alone_s']:.3f}", f"{s['together_s']:.3f}", f"{s['ratio']:.2f}x"
        )
    return table


def _rounds(document: dict[str, Any]) -> Table:
    table = Table(title="Training", title_justify="left")
    table.add_column("work")
    for name in ("seconds", "outside the kernels"):
        table.add_column(name, justify="right")
    for r in document["rounds"]:
        outside = "" if r["outside"] is None else f"{r['outside']:.0%}"
        table.add_row(r["name"], f"{r['seconds']:.3f}", outside)
    return table


def _startup(document: dict[str, Any]) -> Table:
    table = Table(title="Start-up", title_justify="left")
    for name in ("mithridate --help (s)", "python -c pass (s)", "more (s)"):
        table.add_column(name, justify="right")
    if found := document["startup"]:
        ours, python = found["help_s"], found["python_s"]
        table.add_row(f"{ours:.3f}", f"{python:.3f}", f"{ours - python:.3f}")
    return table
