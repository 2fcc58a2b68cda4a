"""The server answers only requests to its own names: a foreign name that resolves to 127.0.0.1 (DNS rebinding) gets nothing."""

from collections.abc import Iterator

import pytest

pytest.importorskip("bokeh", reason="Bokeh is not installed")


from typer.testing import CliRunner

from ntkgp.cli import app
from tests.support.explorer_server import ask, running_server

ROUTES = {  # every route, and the status of a reply to a friend
    "/": 200,
    "/?state=abc": 200,
    "/ws": 101,
    "/metadata": 200,
    "/autoload.js?bokeh-autoload-element=1": 200,
    "/static/js/bokeh.min.js": 200,
    "/static/extensions/none.js": 404,
    "/favicon.ico": 200,
    "/nothing": 404,
}
OWN = "127.0.0.1:{}"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_server("--allow-host", "Lab.example:8000", "--allow-host", "proxy.example") as (address, _):
        yield address


@pytest.fixture(scope="module")
def port(address: str) -> str:
    return address.rstrip("/").rsplit(":", 1)[1]


@pytest.mark.parametrize("path", ROUTES)
def test_no_route_answers_a_foreign_name(address: str, port: str, path: str):
    own, foreign = f"127.0.0.1:{port}", f"evil.example:{port}"
    assert ask(address, path, f"Host: {own}", f"Origin: http://{own}")[0] == ROUTES[path]
    for headers in (
        (f"Host: {foreign}", f"Origin: http://{foreign}"),  # as a browser sends them after DNS rebinding
        (f"Host: {foreign}", f"Origin: http://{foreign}", "Sec-Fetch-Site: same-origin"),
        (f"Host: {foreign}",),
        (f"Host: {own}", f"Origin: http://{foreign}"),
        (f"Host: {own}", f"Origin: http://{foreign}", "Sec-Fetch-Site: same-origin"),
        (f"Host: {foreign}", f"Origin: http://{own}"),
    ):
        status, text = ask(address, path, *headers)
        assert status == 403
        for word in (own, f"localhost:{port}", f"[::1]:{port}", "lab.example:8000", "--allow-host", foreign):
            assert word in text


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_no_method_answers_a_foreign_name(address: str, method: str):
    for path in ("/", "/autoload.js"):
        status, _ = ask(address, path, "Host: evil.example", "Content-Length: 0", start=method + " {} HTTP/1.1")
        assert status == 403


@pytest.mark.parametrize(
    "host",
    [OWN, "localhost:{}", "[::1]:{}", "LocalHost:{}", "lab.example:8000", "LAB.EXAMPLE:8000", "proxy.example",
     "proxy.example:80", "proxy.example:443"],
)  # fmt: skip
def test_its_own_names_are_answered(address: str, port: str, host: str):
    host = host.format(port)
    for scheme in ("http", "https"):  # a proxy may serve the page with https
        assert ask(address, "/ws", f"Host: {host}", f"Origin: {scheme}://{host}")[0] == 101
    assert ask(address, "/metadata", f"Host: {host}")[0] == 200


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "localhost:1", "localhost.:{}", "127.0.0.1.:{}", "127.0.0.2:{}", "0.0.0.0:{}", "127.1:{}",
     "localhost:{}.evil.example", "localhost.evil.example:{}", "evil.example:{}#localhost:{}", "xlocalhost:{}", "localhost:{}0",
     "lab.example", "lab.example:80", "lab.example:8001", "a.lab.example:8000", "proxy.example:8000", "[::2]:{}", "::1:{}",
     "localhost:{},evil.example", "user@localhost:{}", ""],
)  # fmt: skip
def test_other_names_are_not(address: str, port: str, host: str):
    host = host.replace("{}", port)
    for path in ("/ws", "/metadata"):
        status, text = ask(address, path, f"Host: {host}", f"Origin: http://{host}")
        assert status == 403 or (status == 400 and text == "")  # Tornado itself refuses names that HTTP forbids


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "http://127.0.0.1:1", "http://127.0.0.1", "file://", "{}", "ftp://{}", "http://{}/",
               "http://user@{}", "http://evil.example\r\nOrigin: http://{}", "http://["],
)  # fmt: skip
def test_pages_from_elsewhere_are_not_answered(address: str, port: str, origin: str):
    own = OWN.format(port)
    for path in ("/ws", "/autoload.js?bokeh-autoload-element=1"):
        assert ask(address, path, f"Host: {own}", "Origin: " + origin.format(own))[0] == 403


def test_a_request_without_one_name_is_not_answered(address: str, port: str):
    own = f"Host: 127.0.0.1:{port}"
    for path in ("/", "/ws", "/metadata"):
        status, text = ask(address, path, start="GET {} HTTP/1.0")
        assert status == 403
        assert "no Host header" in text
        assert ask(address, path)[0] == 400
        assert ask(address, path, own, "Host: evil.example")[0] == 400
        assert ask(address, path, "Host: evil.example", own)[0] == 400


def test_the_request_line_may_not_name_another_host(address: str, port: str):
    own = f"127.0.0.1:{port}"
    for target in (
        "http://evil.example{}",
        "HTTPS://evil.example{}",
        f"ws://evil.example:{port}{{}}",
        "http://evil.example?{}",
    ):
        status, text = ask(address, "/metadata", f"Host: {own}", start=f"GET {target} HTTP/1.1")
        assert status == 403
        assert "evil.example" in text
    assert ask(address, "/metadata", "Host: evil.example", start=f"GET http://{own}{{}} HTTP/1.1")[0] == 403


@pytest.mark.parametrize("name", ["http://lab.example", "lab.example/", "*", "*.example", "", "two names", "::1", "a:b", "a@b"])
def test_an_allowed_host_is_a_name_and_a_port(port: str, name: str):
    command = ["explore", "--no-browser", "--port", port, "--allow-host", name]  # a port in use: nothing can start here
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    said = " ".join(done.stderr.replace("│", " ").split())
    assert "such as lab.example:8000" in said
    assert f"got {name!r}" in said
