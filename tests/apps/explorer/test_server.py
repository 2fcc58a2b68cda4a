"""The explorer's server and its command."""

import base64
import socket
import urllib.request
from collections.abc import Iterator

import pytest

pytest.importorskip("bokeh", reason="Bokeh is not installed")


from typer.testing import CliRunner

from ntkgp.apps.explorer.page import server
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


def test_only_its_own_pages_may_talk_to_it(address: str):
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    assert upgrade(port, f"http://127.0.0.1:{port}") != 403
    assert upgrade(port, f"http://localhost:{port}") != 403
    for origin in ("http://evil.example", f"http://evil.example:{port}", "http://127.0.0.1:1", "null"):
        assert upgrade(port, origin) == 403


def upgrade(port: int, origin: str) -> int:
    """The answer to opening a websocket from a page of that origin."""
    lines = ["GET /ws HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade", f"Origin: {origin}",
             "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + base64.b64encode(b"0" * 16).decode(), "", ""]  # fmt: skip
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall("\r\n".join(lines).encode())
        return int(connection.recv(64).split()[1])


def test_it_listens_on_loopback_alone(address: str):
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    with open("/proc/net/tcp") as table:
        local = [line.split()[1] for line in table.readlines()[1:] if line.split()[3] == "0A"]
    assert [place for place in local if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_a_port_in_use_is_said(address: str):
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    with pytest.raises(ValueError, match="--port"):
        server.free_port(port)
    done = CliRunner().invoke(app, ["explore", "--no-browser", "--port", str(port)])
    assert done.exit_code == 2
    assert "--port" in done.stderr


def test_a_missing_extra_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["explore"])
    assert done.exit_code == 2
    assert "ntkgp[app]" in " ".join(done.stderr.replace("│", " ").split())
