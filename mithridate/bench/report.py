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
    return [table for table in (speed, growth) if table.row_count]
