"""How many predictions per second `wecfl serve` gives on loopback, and how long they take.

python benchmarks/serve_rate.py RUN --rows 1 --requests 2000 --clients 1
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from time import perf_counter

import numpy as np

import wecfl


def ask(port: int, body: bytes, count: int) -> list[float]:
    """The seconds of each of `count` requests over one connection."""
    connection, seconds = HTTPConnection("127.0.0.1", port), []
    for _ in range(count):
        began = perf_counter()
        connection.request("POST", "/predict", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the endpoint answered {answer.status}")
        seconds.append(perf_counter() - began)
    connection.close()
    return seconds


def main() -> None:
    """Serve the run, ask it, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=1)
    chosen = parser.parse_args()
    result = wecfl.load(chosen.run)
    shape = result.newcomer_setup.blueprint.shape
    rows = np.zeros((chosen.rows, *shape)).tolist()
    body = json.dumps({"client": result.federation.names[0], "rows": rows}).encode()
    command = ["-c", "from wecfl_main import main; main()", "serve", chosen.run, "--port", "0"]
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        port = int(process.stdout.readline().split("/")[2].rpartition(":")[2])
        ask(port, body, 100)  # so that the model is built and the code is warm
        each = chosen.requests // chosen.clients
        began = perf_counter()
        with ThreadPoolExecutor(chosen.clients) as pool:
            found = pool.map(lambda _: ask(port, body, each), range(chosen.clients))
            seconds = [second for some in found for second in some]
        rate = len(seconds) / (perf_counter() - began)
    finally:
        process.terminate()
        process.wait()
    median, slow = (1000 * np.quantile(seconds, q) for q in (0.5, 0.99))
    print(
        f"{chosen.rows} rows, {chosen.clients} connections: {rate:.0f} requests/s, "
        f"median {median:.1f} ms, p99 {slow:.1f} ms"
    )


if __name__ == "__main__":
    main()
