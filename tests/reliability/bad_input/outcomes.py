"""What the library says to one entry per kind of bad input, as JSON; ``python -O`` must say the same."""

import json
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from tests.reliability.bad_input.entries import ENTRIES
from tests.reliability.bad_input.table import TABLE
from tests.reliability.bad_input.test_options import OPTIONS


def outcomes() -> dict[str, str]:
    """The exception and its message for the first and the last entry of each row that is refused, and for each option."""
    said: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for row in (row for row in TABLE if row.outcome.kind == "refused"):
            for entry in {row.entries[0]: 0, row.entries[-1]: 0}:
                call, given = ENTRIES[entry], row.given()
                if entry != "botorch":  # it is slow to import
                    said[f"{entry}: {row.what}"] = said_by(lambda call=call, given=given: call(given, Path(folder)))
        for what, (act, _) in OPTIONS.items():
            said[what] = said_by(act)
    return said


def said_by(act: Callable[[], object]) -> str:
    try:
        act()
    except Exception as error:
        return re.sub("0x[0-9a-f]+", "0x", f"{type(error).__name__}: {error}")
    return "nothing"


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"optimize": sys.flags.optimize, "said": outcomes()}))
