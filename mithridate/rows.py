"""Results as rows, and as data frames of pandas or polars, which nothing else here needs."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mithridate.errors import UserError

Row = Mapping[str, Any]


class Rows(Sequence[Row]):
    """Rows with the same columns. What a row does not have is None."""

    columns: Mapping[str, type] = {}
    """Name and type, in their order."""

    def __init__(self, rows: Sequence[Row], columns: Mapping[str, type] | None = None) -> None:
        self.columns = columns or self.columns
        self._rows = [self._complete(row) for row in rows]

    def _complete(self, row: Row) -> Row:
        return {name: _as(kind, row.get(name)) for name, kind in self.columns.items()}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def values(self, name: str) -> list[Any]:
        return [row[name] for row in self._rows]

    def to_pandas(self) -> Any:
        """A pandas DataFrame. There, a number that is missing is NaN."""
        pandas = _library("pandas", "to_pandas")
        return pandas.DataFrame(
            {
                name: pandas.Series(
                    self.values(name), dtype={float: "float64", int: "int64"}.get(kind, "object")
                )
                for name, kind in self.columns.items()
            }
        )

    def to_polars(self) -> Any:
        """A polars DataFrame. There, what is missing is null."""
        polars = _library("polars", "to_polars")
        types = {float: polars.Float64, int: polars.Int64, str: polars.String}
        schema = {name: types[kind] for name, kind in self.columns.items()}
        return polars.DataFrame({name: self.values(name) for name in schema}, schema=schema)


def _as(kind: type, value: Any) -> Any:
    """Of the column's type; a number that is none is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return kind(value)


def _library(name: str, method: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{method}() needs {name}: pip install 'mithridate[{name}]'") from None
