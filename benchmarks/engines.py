"""Real deployments on this machine: seconds, exchanges, and what crosses the wire beside the payload.

Each site reaches the Master through a relay that counts bytes, so TLS, HTTP, heartbeats and start-up are in.
The study is heart disease at its four hospitals where FEDSHED_DATA has it, else the one of `deploy new`.
With `--protected`: what masks add to the same study on NVFlare.
"""

from __future__ import annotations

import csv
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from msgspec.structs import replace

import fedshed
from fedshed._utils.errors import DataError
from fedshed.deployment import local
from fedshed.deployment.flower_kit import FlowerKit
from fedshed.deployment.master import Report
from fedshed.deployment.new import write
from fedshed.deployment.plan import Command, Deployment, Engine, Kit

PORT, RELAY = 29400, 29450
RUNS = 3  # of which the median counts
KINDS = ("plain", "plain, by newton", "protected")
MOST = 1.5  # times the seconds of the plain fit


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
    study, names = root / "master" / "study.toml", ", ".join(f'"{name}"' for name in federation.columns)
    text = study.read_text().replace("malignant", "disease").replace('["no", "yes"]', "[-1, 1]")
    study.write_text(re.sub("^columns = .*$", f"columns = [{names}]", text, flags=re.MULTILINE))


def federation() -> fedshed.Federation | None:
    try:
        return fedshed.datasets.load("heart")
    except DataError:
        return None


def by_newton(root: Path) -> None:
    """As a protected study chooses, whatever the budgets of the sites say."""
    for path in root.glob("sites/*/site.toml"):
        text = path.read_text().replace("max_curvature = 0.2 ", "max_curvature = 50 ")
        path.write_text(text.replace("max_numbers = 1.0 ", "max_numbers = 50 "))
    study = root / "master" / "study.toml"
    study.write_text(study.read_text().replace('algorithm = "auto"', 'algorithm = "newton"'))


def deployed(engine: Engine, kind: str = "plain") -> tuple[Report, float, Counted]:
    """The outcome of a deployment, its seconds from command to summary, and what was on the wire."""
    data = federation()
    sites = data.sites if data else ("a", "b", "c")
    with TemporaryDirectory() as folder, relay(RELAY, PORT) as counted:
        root, plan = Path(folder) / "study", Deployment(engine, sites, port=PORT)
        write(root, plan, protected=kind == "protected")
        if data:
            heart(root, data)
        if "newton" in kind:
            by_newton(root)
        began = time.perf_counter()
        report = local.run(root, seconds=600, kit=through_relay(root, plan))
        return report, time.perf_counter() - began, counted


def measure(engine: Engine) -> None:
    report, took, counted = deployed(engine)
    print(
        f"{engine}: {report.sites} sites, {sum(report.rows.values())} rows, n = {len(report.theta)}; "
        f"{took:.0f} s from command to summary, {report.exchanges} exchanges in {report.seconds:.1f} s"
    )
    for way, *counts in (
        ("up", report.payload_up, report.carried_up, counted.up),
        ("down", report.payload_down, report.carried_down, counted.down),
    ):
        print("  {:5} {:9,} bytes traced {:9,} in envelopes {:9,} on the wire".format(way, *counts))


def masked() -> None:
    """The same study of each kind; the medians."""
    runs = {kind: [deployed("nvflare", kind) for _ in range(RUNS)] for kind in KINDS}
    for name, made in runs.items():
        report = made[0][0]
        fits = ", ".join(f"{one.seconds:.1f}" for one, _, _ in made)
        print(
            f"{name}: {report.sites} sites, n = {len(report.theta)}, {report.algorithm.partition(':')[0]}; "
            f"{_whole(made):.1f} s from command to summary, "
            f"{report.exchanges} exchanges in {_seconds(made):.1f} s ({fits}); "
            f"{report.carried_up:,} bytes up, {report.carried_down:,} down"
        )
    for kind in KINDS[:-1]:
        whole = _whole(runs["protected"]) / _whole(runs[kind])
        fit = _seconds(runs["protected"]) / _seconds(runs[kind])
        print(f"protected / {kind}: {whole:.2f} of the whole (at most {MOST}), {fit:.2f} of the fit")


def _whole(made: list[tuple[Report, float, Counted]]) -> float:
    return median(took for _, took, _ in made)


def _seconds(made: list[tuple[Report, float, Counted]]) -> float:
    return median(report.seconds for report, _, _ in made)


def main() -> None:
    if "--protected" in sys.argv:
        return masked()
    for engine in ("nvflare", "flower"):
        measure(engine)
