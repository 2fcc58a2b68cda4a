"""Every public entry × every kind of bad input: an error that names the culprit, or the right answer. Nothing else.

The table is data: a kind of input, what the entry must do with it (`refused` with these words, `answered`, or `warned` with
these words and answered), and the entries it applies to. After every case the module, torch's random state and its global
settings are as before.
"""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from tests.reliability.bad_input import entries
from tests.reliability.bad_input.entries import ENTRIES
from tests.reliability.bad_input.table import CASES, TABLE, Row
from tests.support.long_form import recorded
from tests.support.unchanged import unchanged

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(autouse=True, scope="module")
def _recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    with recorded(
        "bad_input",
        request,
        lambda: {"entries": len(ENTRIES), "kinds": len({r.what for r in TABLE}), "entries_and_kinds": len(CASES)},
    ):
        yield


def test_the_table_is_large():
    assert len(CASES) >= 1000
    assert {entry for r in TABLE for entry in r.entries} == set(ENTRIES)


@pytest.mark.filterwarnings("always::ntkgp.NumericalWarning")
@pytest.mark.parametrize(("r", "entry"), CASES)
def test_bad_input(r: Row, entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if entry == "botorch":
        pytest.importorskip("botorch", reason="BoTorch needs Python 3.11")
    given = r.given()
    module = given.module()
    given = replace(given, module=lambda: module)
    modules = [m for m in [module] if isinstance(m, nn.Module) and next(m.parameters(), torch.empty(0)).device.type == "cpu"]
    before = [t.detach().clone() for t in (given.x, given.y, given.query, given.noise_var) if is_plain(t)]
    with warnings.catch_warnings(record=True) as caught, unchanged(*modules):
        warnings.simplefilter("error")
        warnings.filterwarnings(
            "ignore", message=".*not (standardized|scaled|contained to the unit cube)"
        )  # BoTorch, about units
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
        warnings.filterwarnings("always", category=ntkgp.NumericalWarning)
        if r.outcome.kind == "refused":
            with pytest.raises((ValueError, TypeError)) as error:
                ENTRIES[entry](given, tmp_path)
            assert [word for word in r.outcome.words if word not in str(error.value)] == [], str(error.value)
        else:
            monkeypatch.setattr(entries, "LENIENT", [True] if r.outcome.kind == "warned" else [])
            ENTRIES[entry](given, tmp_path)
    said = [str(warning.message) for warning in caught if issubclass(warning.category, ntkgp.NumericalWarning)]
    if r.outcome.kind == "answered":
        assert [text for text in said if "edge of its range" not in text] == []
    if r.outcome.kind == "warned":
        assert any(all(word in text for word in r.outcome.words) for text in said), said
    after = [t for t in (given.x, given.y, given.query, given.noise_var) if is_plain(t)]
    assert all(a.detach().numpy().tobytes() == b.numpy().tobytes() for a, b in zip(after, before, strict=True))


def is_plain(t: Any) -> bool:
    return isinstance(t, Tensor) and t.layout == torch.strided and t.device.type == "cpu"
