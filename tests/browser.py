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
