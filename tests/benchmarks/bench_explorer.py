"""The explorer: from a key press to the updated view, in a real browser, and where the time goes.

A pair of 25 words, shipped weights, everything (server, kernel and Chromium) on one core. Run with `python -m tests.benchmarks.bench_explorer`;
other work on the machine counts in the browser's times, not in the processor times (`processors`: server,
kernel, browser and what drives it, together: about what the view would take on a core of its own). Without Chromium only the latter are shown.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path

import psutil
import torch

from bornlib import explorer, explorer_html, serve
from bornlib.explorer_view import Choice, Subject, look
from tests.browser import CHROMIUM, opened, serving

PREMISE = "Three young men in red shirts are playing street hockey on a busy road near a park."
HYPOTHESIS = "A few happy people are outside playing a game"
AIM, REPEATS = 150, 10  # milliseconds
WATCH = """() => {
    window.times = [];
    let start = null;
    document.addEventListener('keydown', () => { start = performance.now(); }, true);
    document.addEventListener('pointerdown', () => { start = performance.now(); }, true);
    const seen = () => [...document.querySelectorAll('.bornlib-check, .bornlib-p')].map(e => e.textContent).join();
    let before = seen();
    new MutationObserver(() => {
        const now = seen();
        if (start !== null && now && now !== before) {
            const then = start;
            start = null;
            requestAnimationFrame(() => setTimeout(() => window.times.push(performance.now() - then), 0));
        }
        if (now) before = now;
    }).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""


def processor(function) -> float:
    """Median processor time of a call in milliseconds; other processes are left out of it."""
    function()
    times = []
    for _ in range(REPEATS):
        start = time.thread_time()
        function()
        times.append(1000 * (time.thread_time() - start))
    return statistics.median(times)


def spent() -> float:
    """Processor milliseconds of every process that this one has started: servers, kernel and browser."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += 1000 * sum(process.cpu_times()[:2])
    return total


def in_browser() -> dict[str, tuple[list[float], float]]:
    """For keys typed and words pressed: milliseconds from the event in the page to the frame that shows the new numbers, of each; and
    the processor milliseconds of one, all processes together, less what they take when nothing happens.
    """
    port = serve.free_port(19066)
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["bornlib", "explore", "--no-browser", f"--port={port}"]
        with serving(arguments, f"http://127.0.0.1:{port}/", Path(folder)) as address, opened() as page:
            page.goto(address)
            page.locator(".bornlib-check").wait_for()
            page.get_by_label("Premise").fill(PREMISE)
            page.get_by_role("button", name="park").wait_for()
            page.get_by_label("Hypothesis").fill(HYPOTHESIS)
            page.get_by_role("button", name="game").wait_for()
            page.evaluate(WATCH)

            def act(action) -> float:
                count = page.evaluate("window.times.length")
                action()
                for _ in range(20):  # a wait that asks the page in every frame would keep the processor busy
                    page.wait_for_timeout(500)
                    if page.evaluate("window.times.length") > count:
                        return page.evaluate("window.times.at(-1)")
                raise TimeoutError("no updated view in 10 s")

            def idle() -> None:
                page.evaluate("window.times.length")
                page.wait_for_timeout(500)
                page.evaluate("window.times.length")

            def several(*actions) -> tuple[list[float], float]:
                for action in actions:
                    act(action)
                start, times = spent(), [act(action) for _ in range(REPEATS) for action in actions]
                middle = spent()
                for _ in times:
                    idle()
                return times, (2 * middle - start - spent()) / len(times)

            page.get_by_label("Hypothesis").press("End")
            word = page.get_by_role("button", name="hockey")
            return {
                "a key typed": several(*[lambda key=key: page.keyboard.press(key) for key in ("s", "Backspace")]),
                "a word deleted or brought back": several(word.click, word.click),
            }


def main() -> None:
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        core = max(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core})  # servers and browser inherit it
    subject, choice = Subject.typed(PREMISE, HYPOTHESIS), Choice()
    view = look(subject, choice)
    explored = explorer.Explorer(PREMISE, HYPOTHESIS, "born", 0, None)
    panel = explored.panels[0]
    print(
        f"explorer, {int(view.full.words.sum())} words, {len(view.full.ids)} slots, one core (aim: {AIM} ms from key press to updated view)\n"
    )
    print(f"{'processor time of':44}{'ms':>8}{'of the aim':>12}")
    rows = {
        "evidence, certified": lambda: explorer.explain(explorer.open_model()[0], view.full),
        "all of a view (evidence, deletion curve)": lambda: look(subject, choice),
        "rendering": lambda: (explorer_html.answer_html(view), explorer_html.curve_html(view)),
        "a word pressed: view, rendering, widgets": lambda: panel.press(10),
        "the same with leave-one-out beside it": lambda: look(subject, Choice(second="leave-one-out")),
    }
    for name, function in rows.items():
        ms = processor(function)
        print(f"{name:44}{ms:>8.1f}{ms / AIM:>12.2f}")
    if CHROMIUM.exists():
        print(
            f"\n{'in Chromium, from the event to the frame':44}{'median':>8}{'of the aim':>12}{'fastest':>10}{'slowest':>10}{'processors':>12}"
        )
        for name, (times, processors) in in_browser().items():
            middle = statistics.median(times)
            print(f"{name:44}{middle:>8.0f}{middle / AIM:>12.2f}{min(times):>10.0f}{max(times):>10.0f}{processors:>12.0f}")


if __name__ == "__main__":
    main()
