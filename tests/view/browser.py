"""Chromium without a screen, driven over its debugging pipe: null-terminated JSON on the file descriptors 3 and 4."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
          "--disable-component-update", "--disable-sync", "--remote-debugging-pipe")


class Page:
    """A page of `width` by `height` pixels at a file; `requests` are the addresses that it asked for."""

    def __init__(self, profile: Path, width: int = 1440, height: int = 900) -> None:
        assert CHROMIUM is not None
        theirs_in, ours_out = map(_high, os.pipe())
        ours_in, theirs_out = map(_high, os.pipe())

        def connect() -> None:
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        words = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"]
        self.process = subprocess.Popen(words, preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.read, self.write, self.buffer, self.sent = ours_in, ours_out, b"", 0
        self.ready = 0.0        # milliseconds from the start of loading until a test found the page drawn
        self.session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        page = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = {"sessionId": self.send("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Page:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.terminate()
        self.process.wait(20)
        os.close(self.read)
        os.close(self.write)

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            more = os.read(self.read, 1 << 20)
            if not more:
                raise RuntimeError(f"Chromium ended with {self.process.wait(20)}")
            self.buffer += more
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command; what happens meanwhile is kept in `events`."""
        self.sent += 1
        os.write(self.write, json.dumps({"id": self.sent, "method": method, "params": parameters, **self.session}).encode() + b"\0")
        while (said := self.receive()).get("id") != self.sent:
            self.events.append(said)
        if "error" in said:
            raise RuntimeError(f"{method}: {said['error']['message']}")
        return said["result"]

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a page and wait until it is there; an empty one comes between, so that another fragment of a page is loaded as well."""
        for address in ("about:blank", f"{path.absolute().as_uri()}{fragment}"):
            self.events.clear()
            self.send("Page.navigate", url=address)
            while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
                self.events.append(self.receive())

    def run(self, script: str) -> Any:
        """The value of a script, awaited if it is a promise."""
        said = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in said:
            raise RuntimeError(said["exceptionDetails"].get("exception", {}).get("description", said["exceptionDetails"]["text"]))
        return said["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.send("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)

    def click(self, x: float, y: float, times: int = 1) -> None:
        self.mouse("Moved", x, y)
        for n in range(1, times + 1):
            self.mouse("Pressed", x, y, button="left", clickCount=n)
            self.mouse("Released", x, y, button="left", clickCount=n)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    @property
    def requests(self) -> list[str]:
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    @property
    def complaints(self) -> list[str]:
        """Exceptions that nothing caught, and what was written to the console."""
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled")]


def _high(descriptor: int) -> int:
    """The same file on a descriptor that 3 and 4 do not collide with, not inherited."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(descriptor)
