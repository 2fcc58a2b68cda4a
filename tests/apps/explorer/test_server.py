"""The explorer's server and its command."""

import urllib.request
from collections.abc import Iterator

import pytest

pytest.importorskip("bokeh", reason="Bokeh is not installed")


from typer.testing import CliRunner

from ntkgp.apps.explorer import server
from ntkgp.cli import app
from tests.support.explorer_server import running_server


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_server() as (address, _):
        yield address


def test_the_page_needs_nothing_from_elsewhere(address: str):
    with urllib.request.urlopen(address) as reply:
        text = reply.read().decode()
    assert "ntkgp explorer" in text
    assert [part for part in text.split('"') if part.startswith(("http://", "https://", "//"))] == []


def test_it_listens_on_loopback_alone(address: str):
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    with open("/proc/net/tcp") as table:
        local = [line.split()[1] for line in table.readlines()[1:] if line.split()[3] == "0A"]
    assert [place for place in local if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_a_port_in_use_is_said(address: str):
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    with pytest.raises(ValueError, match="--port"):
        server.make_server(port)
    done = CliRunner().invoke(app, ["explore", "--no-browser", "--port", str(port)])
    assert done.exit_code == 2
    assert "--port" in done.stderr


def test_a_missing_extra_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["explore"])
    assert done.exit_code == 2
    assert "ntkgp[app]" in " ".join(done.stderr.replace("│", " ").split())
