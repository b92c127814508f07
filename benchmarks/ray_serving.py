"""Ray Serve with our application in a process of its own, and what can be done to its replicas."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil

PROGRAM = """
import json, sys
import ray
from ray import serve
folder, port, given = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
ray.init(
    num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, _temp_dir=folder,
    log_to_driver=False,
)
from draftproof.ray import app
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(app(given), name="draftproof", route_prefix="/")
print("ready", flush=True)
for line in sys.stdin:  # other options, for a rolling update
    serve.run(app(json.loads(line)), name="draftproof", route_prefix="/")
    print("ready", flush=True)
serve.shutdown()
ray.shutdown()
"""


ENGINE = "ray::ServeReplica:draftproof:Engine"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Replicas:
    """Runs until `end`. options: of the application."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.port = free_port()
        self.folder = tempfile.mkdtemp(prefix="ray")  # short: sockets lie in it
        with (Path(self.folder) / "stderr").open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, self.folder, str(self.port), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=600)

    def __enter__(self) -> Replicas:
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def wait(self) -> None:
        """Until the application is there."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        while line and line.strip() != "ready":
            line = self.process.stdout.readline()
        if not line:
            said = (Path(self.folder) / "stderr").read_text(errors="replace")
            self.end()
            raise RuntimeError(said[-3000:])

    def update(self, options: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(options) + "\n")
        self.process.stdin.flush()

    def engines(self) -> list[psutil.Process]:
        """Their processes, of this Ray alone."""
        found = []
        for each in psutil.Process(self.process.pid).children(recursive=True):
            try:
                title = (each.cmdline() or [""])[0]
            except psutil.Error:  # it has just ended
                continue
            if title.startswith(ENGINE):  # behind which Ray names the method that runs
                found.append(each)
        return found

    def busiest(self) -> psutil.Process:
        """The engine that computes now."""
        each = self.engines()
        before = {one.pid: sum(one.cpu_times()[:2]) for one in each}
        time.sleep(0.2)
        return max(each, key=lambda one: sum(one.cpu_times()[:2]) - before[one.pid])

    def kill(self, one: psutil.Process) -> None:
        os.kill(one.pid, signal.SIGKILL)

    def settled(self, count: int, seconds: float = 300) -> None:
        """Until so many engines answer."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answer = self.client.get("/metrics")
            names = {
                line.split('engine="')[1].split('"')[0]
                for line in answer.text.splitlines()
                if "num_requests_running{" in line
            }
            if len(names) == count == len(self.engines()):
                return
            time.sleep(0.5)
        raise TimeoutError(f"{len(self.engines())} engines, and {count} were to be there")

    def end(self) -> None:
        self.client.close()
        mine = psutil.Process(self.process.pid).children(recursive=True)
        try:
            self.process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for each in mine:  # what a process that was killed has left
            try:
                each.kill()
            except psutil.Error:
                continue
        shutil.rmtree(self.folder, ignore_errors=True)
