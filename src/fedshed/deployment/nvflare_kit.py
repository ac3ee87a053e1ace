"""A deployment on NVFlare, whose provisioning makes the certificates; the job holds no code."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import write_atomically
from fedshed.deployment.certificates import AUTHORITY_DAYS, Authority
from fedshed.deployment.join import Joining
from fedshed.deployment.plan import HERE, Command, Deployment

ORGANISATION, ADMIN = "fedshed", "admin@fedshed.org"
MASTER, AGENT = "fedshed.deployment.nvflare.Master", "fedshed.deployment.nvflare.Agent"
CONTROLLER = "fedshed.deployment.nvflare_rejoin.Controller"
EXECUTOR = "fedshed.deployment.nvflare_rejoin.Executor"
REJOIN = {"id": "rejoin", "path": "fedshed.deployment.nvflare_rejoin.Rejoin", "args": {}}
ALLOWED = [MASTER, AGENT, CONTROLLER, EXECUTOR]  # the only classes a job may name
RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
POLICY = {
    "format_version": "1.0",  # neither code that comes with a job nor shell commands, from anyone
    "permissions": {
        "project_admin": {**dict.fromkeys(RIGHTS, "any"), "byoc": "none", "shell_commands": "none"}
    },
}
BUILDERS = [
    ("workspace.WorkspaceBuilder", {"template_file": ["master_template.yml"]}),
    ("static_file.StaticFileBuilder", {"config_folder": "config"}),
    ("cert.CertBuilder", {"root_valid_days": AUTHORITY_DAYS}),
    ("signature.SignatureBuilder", {}),
]


class NVFlareKit:
    """Server at the Master, a client at each site; mutual TLS, a name in each certificate."""

    organisation, notice = ORGANISATION, ""

    def __init__(self, plan: Deployment) -> None:
        self._plan = plan

    def write(self, root: Path, requests: Mapping[str, Joining]) -> Authority:
        """Write NVFlare's startup kits, with rights reduced to what a study needs, and the job."""
        with TemporaryDirectory() as temporary:
            made = self._provisioned(Path(temporary))
            kits = {self._plan.host: root / "master", ADMIN: root / "master" / "admin"}
            kits |= {site: root / "sites" / site for site in self._plan.sites}
            for name, folder in kits.items():
                left_out = shutil.ignore_patterns("client.key" if name in requests else "")
                shutil.copytree(made / name, folder, dirs_exist_ok=True, ignore=left_out)
                if name != ADMIN:
                    _restrict(folder.resolve() / "local")
            authority = _authority(made.parent / "state" / "cert.json")
        for site, request in requests.items():
            certificate = authority.client(site, request.key, self.organisation)
            write_atomically(root / self.certificates()[site], certificate)
        _write_job(root / "master" / "job", self._plan.sites)
        return authority

    def certificates(self) -> dict[str, str]:
        """The certificates of the server, of the administrator and of each site."""
        sites = {site: f"sites/{site}/startup/client.crt" for site in self._plan.sites}
        return {
            "the server": "master/startup/server.crt",
            "the administrator": "master/admin/startup/client.crt",
        } | sites

    def _provisioned(self, folder: Path) -> Path:
        project, made = folder / "project.yml", folder / "made"
        write_atomically(project, msgspec.json.encode(self._project()))  # JSON is YAML
        argv = [sys.executable, "-m", "nvflare.lighter.provision", "-p", str(project), "-w", str(made)]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=folder, check=False)
        if done.returncode:
            said = (done.stdout + done.stderr)[-500:]
            raise ConfigError(f"NVFlare could not make the certificates; its output ends with: {said}")
        return made / "study" / "prod_00"

    def _project(self) -> dict[str, Any]:
        port = self._plan.port
        server = {"name": self._plan.host, "type": "server", "fed_learn_port": port, "admin_port": port}
        clients = [{"name": site, "type": "client"} for site in self._plan.sites]
        admin = {"name": ADMIN, "type": "admin", "role": "project_admin"}
        everyone: list[dict[str, Any]] = [server, *clients, admin]
        return {
            "api_version": 3,
            "name": "study",
            "description": "a fedshed study",
            "participants": [{**one, "org": ORGANISATION} for one in everyone],
            "builders": [{"path": f"nvflare.lighter.impl.{path}", "args": args} for path, args in BUILDERS],
        }

    def master(self) -> Command:
        """The server."""
        return Command("server", "master", ("./startup/sub_start.sh", "--once"))

    def site(self, site: str) -> Command:
        """The client of a site."""
        return Command(f"client-{site}", f"sites/{site}", ("./startup/sub_start.sh", "--once"))

    def admissions(self) -> tuple[Command, ...]:
        """None, because the certificates say who may take part."""
        return ()

    def start(self) -> Command:
        """Submit the job."""
        argv = ("nvflare", "job", "submit", "-j", "job", "--startup-kit", f"{HERE}/admin")
        return Command("submit", "master", argv)

    def stop(self) -> Command | None:
        """Shut down the server and all clients; after Ctrl-C, NVFlare 2.9.0 waits for its threads.

        The server waits about 35 s for a client that ended without telling it.
        """
        argv = ("nvflare", "system", "shutdown", "all", "--force", "--timeout", "120")
        return Command("shutdown", "master", (*argv, "--startup-kit", f"{HERE}/admin"))

    def stop_site(self) -> str:
        """Send SIGTERM to the client of this folder."""
        return 'pkill -f "client_train -m $PWD "'


def _authority(state: Path) -> Authority:
    """The authority that NVFlare's provisioning made, from the file where it keeps its state."""
    kept = msgspec.json.decode(state.read_bytes())
    return Authority(kept["root_cert"].encode(), kept["root_pri_key"].encode())


def _restrict(local: Path) -> None:
    """A participant's own rules: our classes only, no code with a job, logs and jobs stay in its folder."""
    resources = msgspec.json.decode((local / "resources.json.default").read_bytes())
    resources["class_allow_list"] = ALLOWED
    resources["allow_log_streaming"] = False
    resources["components"] = [one for one in resources["components"] if "log" not in one["id"]]
    for one in resources["components"]:
        if one["id"] == "job_manager":
            one["args"]["uri_root"] = str(local.parent / "jobs")
    if "snapshot_persistor" in resources:  # the server's
        resources["components"].append(REJOIN)
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(
            local.parent / "snapshots"
        )
    write_atomically(local / "resources.json", msgspec.json.format(msgspec.json.encode(resources), indent=2))
    write_atomically(local / "authorization.json", msgspec.json.format(msgspec.json.encode(POLICY), indent=2))


def _write_job(folder: Path, sites: tuple[str, ...]) -> None:
    meta = {
        "name": "fedshed",
        "resource_spec": {},
        "deploy_map": {"app": ["@ALL"]},
        "min_clients": len(sites),
        "mandatory_clients": list(sites),
    }
    server = {
        "format_version": 2,
        "workflows": [{"id": "controller", "path": CONTROLLER, "args": {"server_obj_id": "master"}}],
        "components": [{"id": "master", "path": MASTER, "args": {}}],
        "task_data_filters": [],
        "task_result_filters": [],
    }
    executor = {"path": EXECUTOR, "args": {"client_obj_id": "agent"}}
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": executor}],
        "components": [{"id": "agent", "path": AGENT, "args": {}}],
        "task_data_filters": [],
        "task_result_filters": [],
    }
    files = {"meta": meta, "app/config/config_fed_server": server, "app/config/config_fed_client": client}
    for name, content in files.items():
        write_atomically(folder / f"{name}.json", msgspec.json.format(msgspec.json.encode(content), indent=2))
