"""The exported script and pictures show the same numbers."""

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("bokeh", reason="Bokeh is not installed")


from ntkgp.apps.explorer.model import export
from ntkgp.apps.explorer.model.compute import GRID, answer
from ntkgp.apps.explorer.model.state import LAYERS
from tests.support import oracle
from tests.support.explorer_states import SMALL, STATES


@pytest.mark.parametrize("name", ["usual", "deep, smooth, scaled", "one layer, raw", "more than every direction"])
def test_the_exported_script_gives_the_same_numbers(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    state, session = STATES[name], dict[str, Any]()
    text = export.script(state)
    assert len(text.splitlines()) == 10
    exec(compile(text, "script", "exec"), session)
    got, p, exact = answer(state), session["p"], session["exact"]
    assert (tmp_path / "posterior.png").stat().st_size > 1000
    assert oracle.error(exact.mean, got.mean[:GRID]) < 1e-9
    assert oracle.error(exact.variance, got.exact[:GRID]) < 1e-9
    assert oracle.error(p.mean, got.mean[:GRID]) < 1e-4
    assert oracle.error(p.upper, got.upper[:GRID]) < 1e-9
    assert oracle.error(p.total_std, (got.variance[:GRID] + state.noise_var).sqrt()) < 1e-9


@pytest.mark.parametrize("shown", [(), tuple(LAYERS)], ids=["nothing", "everything"])
def test_pictures(shown: tuple[str, ...]):
    state = replace(SMALL, shown=shown)
    got = answer(state)
    assert export.picture(state, got, "png").startswith(b"\x89PNG")
    assert b"</svg>" in export.picture(state, got, "svg")
    with pytest.raises(ValueError, match="png"):
        export.picture(state, got, "exe")
