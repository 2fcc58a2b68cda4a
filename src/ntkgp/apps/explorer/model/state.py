"""The state of an explorer page, which determines all it shows: plain checked values, saved as JSON or as a link."""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch

from ntkgp.apps.explorer.model.csv_table import MAX_COLUMNS, MAX_NUMBER, MAX_ROWS, Table
from ntkgp.apps.figure1.toys import TOYS

LOW, HIGH = -4.0, 4.0  # range of x in the playground
MAX_POINTS = 200  # in the playground
PROBLEMS = (*TOYS, "empty")
NORMALISATIONS = {"circle": "on a circle, as in the paper", "scaled": "scaled to [−1, 1]", "raw": "unchanged"}
LAYERS = {
    "epistemic": "epistemic band, ±2 std",
    "total": "total band, with noise",
    "exact": "exact posterior, ±2 std",
    "bracket": "certified bracket",
    "paper": "the paper's bound",
    "samples": "sample functions",
    "trained": "trained networks",
}
TRAINERS = {"accelerated": "accelerated gradient descent", "adam": "Adam, as in the paper"}
SIGNALS = {"accelerated": 1e-4, "adam": 1.0}  # default signal scale of each trainer; the paper uses 1 with Adam
INFINITE = 2048  # the width that stands for infinite width: the last stop of the slider
# Allowed range of every number in the state; values outside raise StateError, whatever their source.
RANGES: dict[str, tuple[float, float]] = {
    "noise_var": (1e-6, 10.0),
    "rank": (1, 50),
    "tail": (0, 64),
    "width": (8, INFINITE),
    "depth": (1, 4),
    "sharpness": (0.5, 200.0),
    "seed": (0, 9999),
    "samples": (1, 10),
    "probe": (LOW, HIGH),
    "signal": (1e-6, 10.0),
    "x": (LOW, HIGH),
    "y": (-1000.0, 1000.0),
}
WHOLE = ("rank", "tail", "width", "depth", "seed", "samples")
CHOICES: dict[str, tuple[str, ...]] = {
    "problem": PROBLEMS,
    "normalisation": tuple(NORMALISATIONS),
    "trainer": tuple(TRAINERS),
}


class StateError(ValueError):
    """An invalid state; the message names the field, the expected and the received value."""


@dataclass(frozen=True)
class State:
    """The settings of a page. Invalid values raise :class:`StateError`.

    Example:
        >>> state = State(points=((-1.0, 0.5), (2.0, 1.0)), noise_var=0.1)
        >>> State.from_link(state.to_link()) == state
        True
        >>> State(noise_var=-1.0)
        Traceback (most recent call last):
        ntkgp.apps.explorer.model.state.StateError: noise_var must be between 1e-06 and 10, got -1.0
    """

    points: tuple[tuple[float, float], ...] = ()
    problem: str = "paper"
    noise_var: float = 0.01
    rank: int = 5
    tail: int = 0
    width: int = 512
    depth: int = 2
    sharpness: float = 87.09
    normalisation: str = "circle"
    seed: int = 0
    samples: int = 3
    shown: tuple[str, ...] = ("epistemic", "total", "exact", "bracket", "paper", "trained")
    probe: float = 0.0
    trainer: str = "accelerated"
    signal: float = 1e-4
    table: Table | None = None
    target: str = ""
    inputs: tuple[str, ...] = ()
    tuned: bool = True  # learn the noise and scales of the table by marginal likelihood

    @property
    def infinite(self) -> bool:
        """Whether the network has infinite width."""
        return self.width == INFINITE

    def __post_init__(self) -> None:
        check_fields(vars(self))
        if len(self.points) > MAX_POINTS:
            raise StateError(f"the page takes at most {MAX_POINTS} points, got {len(self.points)}")
        unknown = [layer for layer in self.shown if layer not in LAYERS]
        if unknown:
            raise StateError(f"shown must be a selection of {', '.join(LAYERS)}, got {unknown[0]!r}")
        self._check_table()

    def _check_table(self) -> None:
        if self.table is None:
            return
        wanted = (self.target, *self.inputs)
        missing = [name for name in wanted if name not in self.table.names]
        if missing:
            raise StateError(f"the table has no column {missing[0]!r}; its columns are {', '.join(self.table.names)}")
        if not 1 <= len(self.inputs) <= 2 or len(set(wanted)) != len(wanted):
            raise StateError(f"choose a target and one or two other columns as inputs, got {wanted}")

    def to_json(self) -> str:
        """The state as JSON text."""
        return json.dumps({"ntkgp-explorer": 1, **asdict(self)}, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> "State":
        """Read a state from JSON text, which is not trusted."""
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StateError(f"this is not a saved state: {error}") from error
        if not isinstance(record, dict) or record.pop("ntkgp-explorer", None) != 1:
            raise StateError("this is not a saved state of the explorer: the field 'ntkgp-explorer' is missing")
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(record) - known)
        if unknown:
            raise StateError(f"a saved state has no field {unknown[0]!r}; its fields are {', '.join(sorted(known))}")
        if "points" in record:
            record["points"] = _pairs(record["points"])
        for name in ("shown", "inputs"):
            if name in record:
                record[name] = _texts(name, record[name])
        if record.get("table") is not None:
            record["table"] = _table(record["table"])
        check_fields(record)
        return cls(**record)

    def to_link(self) -> str:
        """The state as text that is safe in a URL."""
        return base64.urlsafe_b64encode(self.to_json().encode()).decode().rstrip("=")

    @classmethod
    def from_link(cls, letters: str) -> "State":
        """Read a state from the text of a URL."""
        try:
            text = base64.b64decode(letters + "=" * (-len(letters) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise StateError(f"this link holds no saved state: {error}") from error
        return cls.from_json(text)

    def with_point(self, x: float, y: float) -> "State":
        """The state with one more point."""
        return replace(self, points=(*self.points, *rounded([x], [y])))

    def without_point(self, index: int) -> "State":
        """The state without the point at `index`."""
        return replace(self, points=self.points[:index] + self.points[index + 1 :])


def start(problem: str = "paper", seed: int = 0) -> State:
    """The initial state of a page: a toy problem of the paper's figure, or an empty plot.

    Example:
        >>> len(start("paper").points), start("cubic").noise_var, start("empty").points
        (20, 0.09, ())
    """
    if problem not in TOYS:
        return State(problem=problem, seed=seed)
    toy = TOYS[problem]
    x, y = toy.draw(torch.Generator().manual_seed(seed))
    points = rounded(x[:, 0].tolist(), y.tolist())
    return State(points=points, problem=problem, noise_var=round(toy.noise_std**2, 6), seed=seed)


def rounded(x: Iterable[float], y: Iterable[float]) -> tuple[tuple[float, float], ...]:
    """Points rounded to four decimals: invisible in the plot, and short in a link."""
    return tuple((round(float(a), 4), round(float(b), 4)) for a, b in zip(x, y, strict=True))


def check_fields(record: Mapping[str, Any]) -> None:
    """Check the plain fields in the record: numbers must be in range, choices must be valid."""
    for name in RANGES.keys() & record.keys():
        check_number(name, record[name])
    for name, choices in CHOICES.items():
        if record.get(name, choices[0]) not in choices:
            raise StateError(f"{name} must be one of {', '.join(choices)}, got {record[name]!r}")
    for name, kind, words in (("tuned", bool, "true or false"), ("target", str, "a text")):
        if not isinstance(record.get(name, kind()), kind):
            raise StateError(f"{name} must be {words}, got {record[name]!r}")
    for x, y in record.get("points", ()):
        check_number("x", x)
        check_number("y", y)


def check_number(name: str, value: Any) -> None:
    """Check that a value is a finite number in the range of its field, and whole if the field is a count."""
    low, high = RANGES[name]
    kind = int if name in WHOLE else int | float
    if isinstance(value, bool) or not isinstance(value, kind):
        raise StateError(f"{name} must be a {'whole ' if name in WHOLE else ''}number, got {value!r}")
    if not low <= value <= high:  # also true for NaN and infinity
        raise StateError(f"{name} must be between {low:g} and {high:g}, got {value!r}")


def _pairs(value: Any) -> tuple[tuple[float, float], ...]:
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise StateError("points must be a list of pairs of numbers")
    return tuple((x, y) for x, y in value)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise StateError(f"{name} must be a list of texts, got {value!r}")
    return tuple(value)


def _table(value: Any) -> Table:
    if not isinstance(value, dict) or set(value) != {"names", "columns"} or not isinstance(value["columns"], list):
        raise StateError("table must have the fields names and columns")
    names, columns = _texts("names", value["names"]), value["columns"]
    if not 2 <= len(names) <= MAX_COLUMNS or len(set(names) - {""}) != len(names) or len(columns) != len(names):
        raise StateError(f"table must have 2 to {MAX_COLUMNS} columns, each with a name of its own")
    if not all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns):
        raise StateError("the columns of table must be lists of the same length")
    if not 2 <= len(columns[0]) <= MAX_ROWS:
        raise StateError(f"table must have 2 to {MAX_ROWS} rows, got {len(columns[0])}")
    for column in columns:
        for number in column:
            if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= MAX_NUMBER:
                raise StateError(f"table must hold numbers up to {MAX_NUMBER:g}, got {number!r}")
    return Table(names, tuple(tuple(map(float, column)) for column in columns))
