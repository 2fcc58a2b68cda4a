"""The server of ``ntkgp explore``: listens on loopback only and accepts connections from its own pages only."""

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
MAX_MESSAGE_BYTES = 256 * 2**20  # large, so that a file above the limit of the page reaches the page, which explains it
CLOSED_TAB_MS = 2000  # time after which the session of a closed tab, and its training, end


def make_server(port: int = 5006) -> Server:
    """A server that listens on loopback; port 0 chooses a free port.

    The server reads no file on behalf of a browser: files are uploaded. It accepts websockets from its own address only, so
    that another site in the same browser cannot reach its sessions.
    """
    port = free_port(port)
    answer(start())  # the first computation is slow in torch: do it before a user waits for it
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
        websocket_max_message_size=MAX_MESSAGE_BYTES,
        check_unused_sessions_milliseconds=1000,
        unused_session_lifetime_milliseconds=CLOSED_TAB_MS,
    )


def free_port(port: int) -> int:
    """The port, if it is free; 0 chooses a free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"port {port} cannot be used ({error}); choose another with --port, or --port 0 for a free one"
            ) from error
        return int(probe.getsockname()[1])


def serve(port: int = 5006, browser: bool = True) -> None:
    """Run the explorer until it is interrupted."""
    server = make_server(port)
    address = f"http://{HOST}:{server.port}/"
    print(f"ntkgp explorer: {address} (press Ctrl-C to stop)", flush=True)
    server.start()
    if browser:
        server.io_loop.add_callback(webbrowser.open, address)
    try:
        server.io_loop.start()
    except KeyboardInterrupt:
        server.stop()
