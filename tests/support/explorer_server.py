"""``ntkgp explore`` in a process of its own, and requests to it as they are written on the wire."""

import base64
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse

UPGRADE = ("Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + base64.b64encode(b"0" * 16).decode())


@contextmanager
def running_server(*options: str) -> Iterator[tuple[str, int]]:
    """``ntkgp explore`` with these options in a process of its own: its address and process id."""
    command = [sys.executable, "-c", "from ntkgp.cli import app; app()", "explore", "--no-browser", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = ""
    try:
        while not (match := re.search(r"http://127\.0\.0\.1:\d+/", said)):
            line = process.stdout.readline()
            assert line, f"the server did not start: {said}"
            said += line
        yield match.group(), process.pid
    finally:
        process.terminate()
        process.communicate(timeout=20)


def ask(address: str, path: str, *headers: str, start: str = "GET {} HTTP/1.1") -> tuple[int, str]:
    """Status and text of the reply to a request with these headers and no others; "/ws" opens a websocket."""
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    opening = (*UPGRADE, "Connection: Upgrade") if path == "/ws" else ("Connection: close",)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall("\r\n".join([start.format(path), *headers, *opening, "", ""]).encode())
        reply = HTTPResponse(connection, method=start.split()[0])
        reply.begin()
        return reply.status, reply.read().decode(errors="replace")
