"""One server and one browser for all files of this folder."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.explorer_server import running_server


@pytest.fixture(scope="package")
def server() -> Iterator[tuple[str, int]]:
    with running_server() as running:
        yield running


@pytest.fixture(scope="package")
def window(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.support import browser

    if browser.MISSING is not None:
        pytest.skip(browser.MISSING)
    address, _ = request.getfixturevalue("server")  # only where there is a browser
    made = browser.Browser(address, tmp_path_factory.mktemp("downloads"))
    yield made
    made.driver.quit()


@pytest.fixture
def page(window: Any) -> Iterator[Any]:
    """A page of its own; whatever a test does, the console stays free of errors."""
    window.complaints()
    yield window
    assert window.complaints() == []
