"""Tables that scripts write into pages, between two marks."""

from __future__ import annotations


def written(page: str, tables: dict[str, str], script: str) -> str:
    """The page with these tables, by the names in their marks."""
    for name, text in tables.items():
        begin, end = f"<!-- {name}: begin (scripts/{script}) -->", f"<!-- {name}: end -->"
        before, found, rest = page.partition(begin)
        if not found or end not in rest:
            raise SystemExit(f"the page has no '{begin}' … '{end}'")
        page = f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"
    return page
