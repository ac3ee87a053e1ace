"""Real deployments on this machine: seconds, exchanges, and what crosses the wire beside the payload.

Each site reaches the Master through a relay that counts bytes, so TLS, HTTP, heartbeats and start-up are in.
The study is heart disease at its four hospitals where FEDSHED_DATA has it, else the one of `deploy new`.
"""

from __future__ import annotations

import csv
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

import fedshed
from fedshed._utils.errors import DataError
from fedshed.deployment import local
from fedshed.deployment.flower_kit import FlowerKit
from fedshed.deployment.new import write
from fedshed.deployment.plan import Command, Deployment, Engine, Kit

PORT, RELAY = 29400, 29450


class Counted:
    """Bytes that passed, each way."""

    up = 0
    down = 0


@contextmanager
def relay(listen: int, forward: int) -> Iterator[Counted]:
    """Pass every connection on, and count."""
    counted, server = Counted(), socket.create_server(("localhost", listen), reuse_port=True)

    def pump(source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(65536):
                setattr(counted, way, getattr(counted, way) + len(data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def serve() -> None:
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("localhost", forward))
            except OSError:  # the Master is gone before its sites
                near.close()
                continue
            for pair in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield counted
    finally:
        server.close()


class Relayed(FlowerKit):
    """Sites that go through the relay."""

    def site(self, site: str) -> Command:
        """As usual, with the relay's port."""
        command = super().site(site)
        changed = {f"localhost:{PORT}": f"localhost:{RELAY}"}
        return replace(command, argv=tuple(changed.get(part, part) for part in command.argv))


def through_relay(root: Path, plan: Deployment) -> Kit:
    """The kit of a deployment whose sites go through the relay."""
    if plan.engine == "flower":
        return Relayed(plan)
    for path in root.glob("sites/*/startup/fed_client.json"):
        path.write_text(path.read_text().replace(f"localhost:{PORT}", f"localhost:{RELAY}"))
    return plan.kit


def heart(root: Path, federation: fedshed.Federation) -> None:
    """The tables of the four hospitals, as each site's CSV, and a study of them."""
    for site, table in federation.tables.items():
        with (root / "sites" / site / "table.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*federation.columns, "disease"])
            writer.writerows([*x, y] for x, y in zip(table.X.tolist(), table.y.tolist(), strict=True))
        rules = root / "sites" / site / "site.toml"  # some hospitals have few rows at one level of a column
        rules.write_text(rules.read_text().replace("min_rows_per_level = 5", "min_rows_per_level = 1"))
    study = root / "master" / "study.toml"
    study.write_text(study.read_text().replace("malignant", "disease"))


def measure(engine: Engine) -> None:
    try:
        federation = fedshed.datasets.load("heart")
    except DataError:
        federation = None
    sites = federation.sites if federation else ("a", "b", "c")
    with TemporaryDirectory() as folder, relay(RELAY, PORT) as counted:
        root, plan = Path(folder) / "study", Deployment(engine, sites, port=PORT)
        write(root, plan)
        if federation:
            heart(root, federation)
        began = time.perf_counter()
        report = local.run(root, seconds=600, kit=through_relay(root, plan))
        took = time.perf_counter() - began
    print(
        f"{engine}: {len(sites)} sites, {sum(report.rows.values())} rows, n = {len(report.theta)}; "
        f"{took:.0f} s from command to summary, {report.exchanges} exchanges in {report.seconds:.1f} s"
    )
    for way, *counts in (
        ("up", report.payload_up, report.carried_up, counted.up),
        ("down", report.payload_down, report.carried_down, counted.down),
    ):
        print("  {:5} {:9,} bytes traced {:9,} in envelopes {:9,} on the wire".format(way, *counts))


def main() -> None:
    for engine in ("nvflare", "flower"):
        measure(engine)
