"""The server of ``ntkgp explore``: listens on loopback only and answers only requests from its own pages to its own hosts."""

import socket
import webbrowser
from collections.abc import Sequence
from typing import Any

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.document import Document
from bokeh.server.server import BaseServer
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop

from ntkgp.apps.explorer.hosts import CheckedTornado, other_hosts, own_hosts
from ntkgp.apps.explorer.model.compute import answer
from ntkgp.apps.explorer.model.state import start
from ntkgp.apps.explorer.page.app import Page
from ntkgp.apps.explorer.page.share import MAX_STATE_BYTES

ADDRESS = "127.0.0.1"
MAX_MESSAGE_BYTES = 2 * MAX_STATE_BYTES  # of a message with a file, whose encoding adds a third
CLOSED_TAB_MS = 2000  # time after which the session of a closed tab, and its training, end


def make_server(port: int = 5006, allow_hosts: Sequence[str] = ()) -> BaseServer:
    """A server that listens on loopback; port 0 chooses a free port, `allow_hosts` are more hosts that it answers for.

    The server reads no file on behalf of a browser: files are uploaded.
    """
    others = other_hosts(allow_hosts)
    try:
        listener = socket.create_server((ADDRESS, port))
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"port {port} cannot be used ({error}); choose another with --port, or --port 0 for a free one"
        ) from error
    listener.setblocking(False)
    answer(start())  # the first computation is slow in torch: do it before a user waits for it
    app = CheckedTornado(
        {"/": Application(FunctionHandler(_open_page))},
        hosts=(*own_hosts(listener.getsockname()[1]), *others),
        websocket_max_message_size_bytes=MAX_MESSAGE_BYTES,
        check_unused_sessions_milliseconds=1000,
        unused_session_lifetime_milliseconds=CLOSED_TAB_MS,
    )
    http = HTTPServer(app)
    http.add_socket(listener)
    return BaseServer(IOLoop.current(), app, http)


def _open_page(doc: Document) -> None:
    context: Any = doc.session_context
    request = context.request
    link = request.arguments.get("state", [b""])[0]
    Page(doc, link.decode("ascii", "replace"), f"http://{request.host}/")


def serve(port: int = 5006, browser: bool = True, allow_hosts: Sequence[str] = ()) -> None:
    """Run the explorer until it is interrupted."""
    server = make_server(port, allow_hosts)
    address = f"http://{ADDRESS}:{server.port}/"
    print(f"ntkgp explorer: {address} (press Ctrl-C to stop)", flush=True)
    server.start()
    if browser:
        server.io_loop.add_callback(webbrowser.open, address)
    try:
        server.io_loop.start()
    except KeyboardInterrupt:
        server.stop()
