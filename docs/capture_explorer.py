"""Make the pictures of the explorer: ``python docs/capture_explorer.py`` controls a real browser.

Needs chromium and chromedriver, and the extra ``dev``. Writes docs/_static/explorer_{desktop,phone,dark,data,train}.png and the animated
docs/_static/explorer.webp. Everything in the pictures happens on the page: it taps points, moves sliders and trains networks.
"""

import io
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from tests.support.browser import Browser  # noqa: E402
from tests.support.explorer_server import running_server  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402

from ntkgp.apps.explorer.model.state import State, start  # noqa: E402

OUT = HERE / "_static"
STORY = State(points=((-2.2, -0.9), (-1.5, 0.4)), noise_var=0.01, rank=2, shown=("epistemic", "total", "exact", "bracket", "paper", "trained"))
ADDED = [(-0.6, 1.0), (0.4, 0.2), (1.1, -0.7), (1.8, -0.4), (2.6, 0.9)]


def metrics(page: Browser, width: int, height: int, scale: float = 1) -> None:
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600},
    )


def theme(page: Browser, name: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": name}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def shot(page: Browser) -> Image.Image:
    return Image.open(io.BytesIO(page.driver.get_screenshot_as_png())).convert("RGB")


def save(picture: Image.Image, name: str) -> None:
    picture.save(OUT / name, optimize=True)
    print(f"{name}: {picture.size}, {(OUT / name).stat().st_size / 1e3:.0f} kB")


def tap(page: Browser, x: float, y: float) -> None:
    left, top, width, height, x0, x1, y0, y1 = page.script("""
        const v = V("main"), box = v.el.getBoundingClientRect(), f = v.frame.bbox, m = v.model
        return [box.left + f.left, box.top + f.top, f.width, f.height, m.x_range.start, m.x_range.end, m.y_range.start, m.y_range.end]""")
    actions = ActionChains(page.driver, duration=20)
    actions.w3c_actions.pointer_action.move_to_location(
        round(left + width * (x - x0) / (x1 - x0)), round(top + height * (y1 - y) / (y1 - y0))
    )
    before = page.updates()
    actions.click().perform()
    page.until(lambda: page.updates() > before)
    time.sleep(0.5)  # two taps at once are a double tap


def finish(page: Browser) -> None:
    page.until(lambda: "done" in (page.number("stage") or ""), 120)
    time.sleep(0.4)


def stills(page: Browser) -> None:
    """Capture the page on a desktop, on a phone and in dark mode; a training; a table."""
    link = "?state=" + replace(start("paper"), shown=(*State().shown, "samples"), samples=3).to_link()
    metrics(page, 1280, 1080)
    page.open(link)
    time.sleep(1)
    save(shot(page), "explorer_desktop.png")
    page.click("train")
    finish(page)
    page.script("V('curve').el.scrollIntoView({block: 'end'})")
    time.sleep(0.5)
    save(shot(page), "explorer_train.png")
    theme(page, "dark")
    page.open(link)
    time.sleep(1.5)
    save(shot(page), "explorer_dark.png")
    theme(page, "light")
    metrics(page, 390, 1100, 1.5)
    page.open(link)
    time.sleep(1)
    save(shot(page), "explorer_phone.png")
    metrics(page, 1280, 1000)
    page.open(link)
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        x = np.concatenate([rng.uniform(0, 4, (45, 2)), rng.uniform(6, 10, (45, 2)), rng.uniform((0, 6), (4, 10), (25, 2))])
        y = 20 + 3 * np.sin(x[:, 0] / 2) + x[:, 1] + 0.3 * rng.normal(size=len(x))
        path = Path(folder) / "well.csv"
        path.write_text("east,north,depth\n" + "\n".join(f"{a:.3f},{b:.3f},{c:.3f}" for (a, b), c in zip(x, y, strict=True)))
        page.inside("csv", "input").send_keys(str(path))
        page.until(lambda: page.number("rows"))
        page.script("M('second').value = 'north'")
        page.until(lambda: "north" in (page.number("next") or ""))
    page.script("document.getElementById('data').scrollIntoView()")
    time.sleep(1)
    save(shot(page), "explorer_data.png")


def story(page: Browser) -> list[tuple[Image.Image, int]]:
    """Points narrow the band, noise relaxes the fit, predictors lower the bound, networks train; return frames and milliseconds."""
    metrics(page, 1000, 640)
    page.open("?state=" + STORY.to_link())
    page.script("document.querySelector('header').style.display = 'none'; window.scrollTo(0, 0)")
    time.sleep(1)
    frames: list[tuple[Image.Image, int]] = []

    def frame(wait: int) -> None:
        time.sleep(0.15)
        frames.append((shot(page), wait))

    def slide(name: str, values: list[float], last: int = 1200, wait: int = 140) -> None:
        for value in values:
            page.set(name, value)
            frame(wait)
        frames[-1] = (frames[-1][0], last)

    frame(1200)
    for point in ADDED:
        tap(page, *point)
        frame(600)
    slide("noise_var", [-2 + 0.15 * k for k in range(1, 11)])
    slide("noise_var", [-0.5 - 0.25 * k for k in range(1, 7)])
    slide("rank", list(range(3, 8)), wait=550, last=1500)
    page.set("rank", 4)
    page.click("train")
    page.script("window.scrollTo(0, 0)")
    while "done" not in (page.number("stage") or "") and len(frames) < 60:
        frame(160)
    frame(2500)
    return frames


def main() -> None:
    OUT.mkdir(exist_ok=True)
    with running_server() as (address, _), tempfile.TemporaryDirectory() as downloads:
        page = Browser(address, Path(downloads))
        try:
            theme(page, "light")
            stills(page)
            frames = story(page)
        finally:
            page.driver.quit()
    images, waits = [image.resize((800, 512), Image.Resampling.LANCZOS) for image, _ in frames], [wait for _, wait in frames]
    path = OUT / "explorer.webp"
    images[0].save(path, save_all=True, append_images=images[1:], duration=waits, loop=0, quality=60, method=4)
    print(f"{path.name}: {len(images)} frames, {sum(waits) / 1e3:.0f} s, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
