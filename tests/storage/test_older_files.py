"""Files that earlier versions wrote still load and give the same answers. The files in format2/ were written once, and stay."""

import json
from pathlib import Path

import pytest
import torch

import ntkgp

OLD = Path(__file__).parent / "format2"
EXPECTED = json.loads((OLD / "expected.json").read_text())


@pytest.mark.parametrize("kind", ["exact", "low rank", "trained"])
def test_posteriors_of_format_2(kind: str):
    """Each was fitted, updated with two more points, and saved."""
    net = ntkgp.mlp(1, width=4).double()
    net.load_state_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in EXPECTED["weights"].items()})
    posterior = ntkgp.load(OLD / f"{kind.replace(' ', '_')}.safetensors", net)
    query = torch.tensor(EXPECTED["query"], dtype=torch.float64)
    p = posterior.predict(query)
    expected = {name: torch.tensor(value, dtype=torch.float64) for name, value in EXPECTED["answers"][kind].items()}
    if kind == "low rank":  # its draws are used in another way now: inside of the same certified bracket, and around the truth
        truth = torch.tensor(EXPECTED["answers"]["exact"]["variance"], dtype=torch.float64)
        for name, outwards in (("lower", -1), ("upper", 1)):
            assert bool((outwards * (getattr(p, name) - expected.pop(name)) <= 1e-9 * truth.max()).all())
        expected.pop("variance")
        assert bool(((p.lower <= truth) & (truth <= p.upper)).all())
        torch.testing.assert_close(posterior.sharpen(query, rtol=1e-6).variance, truth, rtol=1e-6, atol=0)
    for name, value in expected.items():
        torch.testing.assert_close(getattr(p, name), value, rtol=1e-9, atol=1e-12)
    again = posterior.update(torch.tensor([[0.3]]).double(), torch.tensor([0.8]).double())
    assert again.problem.data.points == 11


def test_table_models_of_version_1():
    pl = pytest.importorskip("polars")
    from ntkgp.apps.tables import folder

    expected = json.loads((OLD / "table_expected.json").read_text())
    p = folder.load(OLD / "table").predict(pl.DataFrame(expected["rows"]))
    for name in ("mean", "variance", "noise_var"):
        torch.testing.assert_close(getattr(p, name), torch.tensor(expected[name], dtype=torch.float64), rtol=1e-9, atol=1e-12)
