"""Output of ``iris nodes --watch --json`` on a cluster."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from typing import final


@final
class Changes:
    """Output of ``iris nodes --watch``, line by line, without waiting for ever."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._kinds: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._kinds.put(json.loads(line)["change"])

    def wait_for(self, kind: str, timeout: float) -> None:
        """Wait for a change of this kind."""
        began = time.monotonic()
        seen: list[str] = []
        while (left := began + timeout - time.monotonic()) > 0:
            try:
                seen.append(self._kinds.get(timeout=left))
            except queue.Empty:
                break
            if seen[-1] == kind:
                return
        raise AssertionError(f"no {kind} within {timeout:g} s, only {seen}")
