"""The columns of a table model, and their values as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

NUMBER, BOOLEAN, CATEGORY = "number", "boolean", "category"
MAX_CATEGORIES = 100  # per text column; a column with more distinct texts probably holds row names
MAX_LISTED = 5  # rows, categories or columns named in a message


class TableError(ValueError):
    """A table that cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Column:
    """An input column: its name, its kind (numbers, booleans or categories), and its categories.

    Example:
        >>> import polars as pl
        >>> Column.of(pl.Series("colour", ["red", "blue", "red"]))
        Column(name='colour', kind='category', categories=('blue', 'red'))
    """

    name: str
    kind: str
    categories: tuple[str, ...] = ()

    @classmethod
    def of(cls, series: pl.Series) -> "Column":
        """Describe a column of the training table."""
        kind = kind_of(series)
        if kind is None:
            raise TableError(
                f"column {series.name!r} has type {series.dtype}; expected numbers, booleans or texts: convert it, or leave "
                f"it out with --ignore {series.name}"
            )
        if kind == NUMBER:
            return cls(series.name, kind)
        if kind == BOOLEAN:
            return cls(series.name, kind, ("false", "true"))
        found = series.cast(pl.String).unique().drop_nulls().sort()
        if len(found) > MAX_CATEGORIES:
            raise TableError(
                f"column {series.name!r} holds {len(found)} different texts, such as {found[0]!r}; a column can have at most "
                f"{MAX_CATEGORIES} categories: leave it out with --ignore {series.name}, or convert it to numbers"
            )
        return cls(series.name, kind, tuple(found))

    @property
    def width(self) -> int:
        """Number of features: one for numbers, else one per category."""
        return 1 if self.kind == NUMBER else len(self.categories)

    def codes(self, series: pl.Series) -> pl.Series:
        """The index of each value in the categories; null for unknown values."""
        return series.cast(pl.String).cast(pl.Enum(self.categories), strict=False).to_physical()

    def unseen(self, series: pl.Series) -> list[str]:
        """Values that are not among the categories."""
        if self.kind == NUMBER:
            return []
        values = series.cast(pl.String).unique().drop_nulls().sort()
        return values.filter(~values.is_in(list(self.categories))).to_list()


def check_kinds(table: pl.DataFrame, columns: Sequence[Column], path: Path) -> None:
    """Check that every column has the same kind as in the training table."""
    for column in columns:
        got = kind_of(table[column.name])
        if got != column.kind:
            value = table[column.name].drop_nulls().head(1).to_list()
            raise TableError(
                f"{path}: column {column.name!r} held {plural(column.kind)} in the training table, but has type "
                f"{table.schema[column.name]} here{f', such as {value[0]!r}' if value else ''}; convert it"
            )


def encode(table: pl.DataFrame, columns: Sequence[Column]) -> Float[Tensor, "N D"]:
    """Features in float64: numbers unchanged, categories one-hot, with zeros only for an unknown category.

    Example:
        >>> import polars as pl
        >>> table = pl.DataFrame({"size": [1.5, 2.0], "colour": ["red", "green"]})
        >>> encode(table, [Column("size", "number"), Column("colour", "category", ("blue", "red"))])
        tensor([[1.5000, 0.0000, 1.0000],
                [2.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    features = torch.zeros(len(table), sum(column.width for column in columns), dtype=torch.float64)
    place = 0
    for column in columns:
        if column.kind == NUMBER:
            features[:, place] = torch.from_numpy(table[column.name].cast(pl.Float64).to_numpy(writable=True))
        else:
            codes = column.codes(table[column.name]).cast(pl.Int64).fill_null(-1).to_numpy(writable=True)
            known = torch.from_numpy(codes)
            rows = (known >= 0).nonzero().squeeze(1)
            features[rows, place + known[rows]] = 1.0
        place += column.width
    return features


def kind_of(series: pl.Series) -> str | None:
    """The kind of the values of a column; None if they cannot be used."""
    dtype = series.dtype
    if dtype == pl.Boolean:
        return BOOLEAN
    if dtype == pl.String or isinstance(dtype, pl.Categorical | pl.Enum):
        return CATEGORY
    return NUMBER if dtype.is_numeric() else None


def plural(kind: str | None) -> str:
    """The values of a kind, for messages."""
    return {NUMBER: "numbers", BOOLEAN: "booleans", CATEGORY: "texts", None: "other values"}[kind]


def listed(items: Sequence[object], most: int = MAX_LISTED) -> str:
    """The first items as text for a message, followed by dots if there are more."""
    return ", ".join(map(repr, items[:most])) + (", …" if len(items) > most else "")
