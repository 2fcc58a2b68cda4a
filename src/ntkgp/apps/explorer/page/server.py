"""The server behind ``ntkgp explore``: on this machine's loopback alone, for pages of its own origin alone."""

import socket
import webbrowser

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.document import Document
from bokeh.server.server import Server

from ntkgp.apps.explorer.model.compute import answer
from ntkgp.apps.explorer.model.state import start
from ntkgp.apps.explorer.page.app import Page

HOST = "127.0.0.1"
LARGEST_MESSAGE = 256 * 2**20  # bytes: a file that is too large should reach the page's own message
GONE = 2000  # ms after which a closed tab's session ends, and with it its training


def make_server(port: int = 5006) -> Server:
    """A server that listens on loopback; port 0 takes any free one.

    Nothing on disk is read for a browser: files come as uploads. Websockets are opened to pages from this address only, so that
    another site in the same browser cannot reach the sessions here.
    """
    port = free_port(port)
    answer(start())  # the first time takes torch a while: here, not in front of somebody
    address = f"http://{HOST}:{port}/"

    def open_page(doc: Document) -> None:
        context = doc.session_context
        request = getattr(context, "request", None)
        link = request.arguments.get("state", [b""])[0] if request is not None else ""
        Page(doc, link.decode("ascii", "replace") if isinstance(link, bytes) else str(link), address)

    return Server(
        {"/": Application(FunctionHandler(open_page))},
        address=HOST,
        port=port,
        allow_websocket_origin=[f"{HOST}:{port}", f"localhost:{port}"],
        websocket_max_message_size=LARGEST_MESSAGE,
        check_unused_sessions_milliseconds=1000,
        unused_session_lifetime_milliseconds=GONE,
    )


def free_port(port: int) -> int:
    """The port, if nobody listens on it; any free one for 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"port {port} cannot be used ({error}); choose another with --port, 0 takes any free one"
            ) from error
        return int(probe.getsockname()[1])


def serve(port: int = 5006, browser: bool = True) -> None:
    """Run the explorer until it is interrupted."""
    server = make_server(port)
    address = f"http://{HOST}:{server.port}/"
    print(f"ntkgp explorer: {address} (Ctrl-C ends it)", flush=True)
    server.start()
    if browser:
        server.io_loop.add_callback(webbrowser.open, address)
    try:
        server.io_loop.start()
    except KeyboardInterrupt:
        server.stop()
