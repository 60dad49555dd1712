"""Chromium for the tests: a page on which nothing but this machine's own server can be asked, and servers that are stopped at the end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--force-device-scale-factor=1",
]
PATIENCE = 120  # seconds that a test waits on a busy machine


@contextlib.contextmanager
def opened(width: int = 1100, height: int = 1000, dark: bool = False) -> Iterator:
    """A new page of a headless Chromium. `page.outside` lists every request to another machine (each is blocked), `page.errors` what went wrong."""
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
        page = context.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        expect.set_options(timeout=1000 * PATIENCE)
        page.outside, page.errors = [], []

        def note(request) -> None:
            if not request.url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "about:")):
                page.outside.append(request.url)

        def guard(route) -> None:
            route.continue_() if route.request.url.startswith("http://127.0.0.1:") else route.abort()

        context.on("request", note)
        context.route(lambda url: url.startswith(("http:", "https:")), guard)
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on("dialog", lambda dialog: (page.errors.append(f"dialog {dialog.message}"), dialog.dismiss()))
        try:
            yield page
        finally:
            browser.close()


@contextlib.contextmanager
def serving(arguments: list[str], address: str, folder: Path, **environment: str) -> Iterator[str]:
    """Run `python -m ARGUMENTS` in a folder until the block ends; yields when it answers at the address."""
    log = folder / "server.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=folder,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        )
        try:
            _wait(address, process, log)
            yield address
        finally:
            process.terminate()
            process.wait(30)


def _wait(address: str, process, log: Path) -> None:
    for _ in range(PATIENCE * 4):
        if process.poll() is not None:
            raise AssertionError(f"the server has ended: {log.read_text()[-2000:]}")
        try:
            urllib.request.urlopen(address.split("?")[0] + ("api/status" if "token" in address else ""), timeout=5)
            return
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                return
        except OSError:
            pass
        time.sleep(0.25)
    raise AssertionError(f"no answer from {address} in {PATIENCE} s")


def picture(path: Path) -> None:
    """A picture of the explorer with the paper's pair (typed, where e-SNLI is not there): `python -m tests.browser figures/explorer.png`."""
    import tempfile

    from bornlib.corpus import data_folder
    from bornlib.serve import free_port

    port = free_port(18766)
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["bornlib", "explore", "--no-browser", f"--port={port}"]
        with serving(arguments, f"http://127.0.0.1:{port}/", Path(folder)) as address, opened(1120, 760) as page:
            page.goto(address)
            page.locator(".bornlib-check").wait_for()
            if data_folder() is None:
                page.get_by_label("Premise").fill("Men play hockey.")
                page.get_by_label("Hypothesis").fill("Aliens play")
            else:
                page.get_by_label("Pairs").select_option("test pair")
                page.get_by_role("button", name="Next", exact=True).and_(page.locator(":enabled")).wait_for()
                page.get_by_role("spinbutton", name="Number").fill("3763")
                page.get_by_role("spinbutton", name="Number").press("Enter")
            page.get_by_role("button", name="aliens").wait_for()
            page.get_by_label("Beside it").select_option("attention")
            page.get_by_text("Rank correlation").wait_for()
            page.mouse.click(1000, 700)  # no field keeps the focus
            page.wait_for_timeout(500)
            page.screenshot(path=path)


if __name__ == "__main__":
    picture(Path(sys.argv[1]))
