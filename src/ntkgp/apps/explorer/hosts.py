"""The hosts that the server answers for, and the check of every request before it reaches a page, a file or a websocket.

The owner of a website can let its name resolve to 127.0.0.1 (DNS rebinding). For the browser this server is then part of that
website: the origin of a request equals its host and proves nothing. So the host itself must be a known one.
"""

import re
from collections.abc import Sequence
from typing import Any

from bokeh.server.tornado import BokehTornado
from tornado.httputil import HTTPServerRequest
from tornado.web import RequestHandler

HOST = r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d+)?"


def own_hosts(port: int) -> tuple[str, ...]:
    """The hosts of a server on loopback, as a browser's address bar shows them."""
    return tuple(_shown(f"{name}:{port}") for name in ("127.0.0.1", "localhost", "[::1]"))


def other_hosts(names: Sequence[str]) -> tuple[str, ...]:
    """Hosts allowed by the user, checked.

    Example:
        >>> other_hosts(["Lab.example:8000", "proxy.example:443"])
        ('lab.example:8000', 'proxy.example')
    """
    for name in names:
        if not re.fullmatch(HOST, name.lower()):
            raise ValueError(
                f"--allow-host must be a host as the browser's address bar shows it, such as lab.example:8000, got {name!r}"
            )
    return tuple(_shown(name) for name in names)


class CheckedTornado(BokehTornado):
    """Bokeh's web application; refuses every request to another host and every request from a page of another host."""

    def __init__(self, applications: Any, hosts: tuple[str, ...], **options: Any):
        self.hosts = hosts
        super().__init__(applications, extra_websocket_origins=hosts, **options)

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        """The handler of a request; called for every request, before any route is chosen."""
        wrong = self._wrong(request)
        if wrong is None:
            return super().find_handler(request, **kwargs)
        sentence = (
            f"This server answers only requests to {', '.join(self.hosts)}, and this request {wrong}. If you trust that host, "
            "start the explorer with --allow-host and the host as the browser's address bar shows it.\n"
        )
        return self.get_handler_delegate(request, Refusal, {"sentence": sentence})

    def _wrong(self, request: HTTPServerRequest) -> str | None:
        """What is wrong with the hosts of a request; None if it names one of ours everywhere."""
        named = [request.headers.get("Host", "")]
        if target := re.match(r"\w+://([^/?#]*)", request.uri or ""):  # the request line can name a host too
            named.append(target[1])
        for host in named:
            if _shown(host) not in self.hosts:
                return f"is to {host!r}" if host else "has no Host header"
        origin = request.headers.get("Origin")  # browsers send it with websockets and with requests from another site
        if origin is not None:
            page = re.fullmatch("https?://(.*)", origin.lower())
            if page is None or _shown(page[1]) not in self.hosts:
                return f"comes from a page of {origin!r}"
        return None


class Refusal(RequestHandler):
    """Answers 403 with a sentence, whatever the method."""

    def initialize(self, sentence: str) -> None:
        """Keep the sentence."""
        self.sentence = sentence

    def prepare(self) -> None:
        """Answer before the method is called."""
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.finish(self.sentence)


def _shown(host: str) -> str:
    """A host as browsers show and send it: lower case, without the default port."""
    return re.sub(r":(80|443)$", "", host.lower())
