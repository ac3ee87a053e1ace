"""Keys made at the sites, requests read as the work of strangers, and certificates that are renewed."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.oid import NameOID

from fedshed import ConfigError
from fedshed.cli import app
from fedshed.deployment import certificates, local, master
from fedshed.deployment.certificates import Authority, ending_soon, ends
from fedshed.deployment.config import read_study
from fedshed.deployment.join import (
    IDENTITY,
    MOST_BYTES,
    Joining,
    Request,
    _joined,
    join,
    read_request,
    read_requests,
)
from fedshed.deployment.new import RESULTS, commands, write
from fedshed.deployment.plan import Deployment
from fedshed.deployment.renew import renew, warnings
from fedshed.privacy.masks import identity_public, signed
from fedshed.solve.watching import LOG

pytestmark = pytest.mark.deployment  # it needs what the engines' extras install

SITES = ("paris", "oslo", "rome")
PLAN = Deployment("flower", SITES)


@cache
def key_of(kind: str) -> Any:
    """A private key; made once, since some take long."""
    makers = {
        "rsa": lambda: rsa.generate_private_key(65537, 2048),
        "rsa-1024": lambda: rsa.generate_private_key(65537, 1024),
        "rsa-e3": lambda: rsa.generate_private_key(3, 2048),
        "dsa": lambda: dsa.generate_private_key(1024),
        "ed25519": ed25519.Ed25519PrivateKey.generate,
        "p256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "p384": lambda: ec.generate_private_key(ec.SECP384R1()),
    }
    return makers[kind]()


def csr(key: Any, *names: str) -> str:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = builder.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    return signed.public_bytes(certificates.Encoding.PEM).decode()


def written(folder: Path, request: Request | dict | bytes, name: str = "one.join") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(request if isinstance(request, bytes) else msgspec.json.encode(request))
    return path


def asked(folder: Path, sites: tuple[str, ...] = SITES) -> dict[str, Joining]:
    """Requests of Flower's sites, each from its own folder, collected in one."""
    (folder / "requests").mkdir(parents=True)
    for site in sites:
        join(site, "flower", folder / site)
        shutil.copy(folder / site / f"{site}.join", folder / "requests")
    return read_requests(folder / "requests", "flower", sites)


@pytest.mark.parametrize(("engine", "key"), [("flower", "node.key"), ("nvflare", "startup/client.key")])
def test_a_site_makes_a_key_that_only_its_owner_reads_and_a_request_without_it(tmp_path, engine, key):
    made = join("paris", engine, tmp_path)
    for private in (key, IDENTITY):
        assert (tmp_path / private).stat().st_mode & 0o077 == 0
        assert (tmp_path / private).read_bytes() not in (tmp_path / "paris.join").read_bytes()
    names = [Path(key).name, IDENTITY, "paris.join"]
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == sorted(names)
    read = read_request(tmp_path / "paris.join", engine)
    assert read.fingerprint == made.fingerprint
    assert b"PRIVATE" not in read.data
    with pytest.raises(ConfigError, match="already exists"):
        join("paris", engine, tmp_path)


def test_the_master_registers_the_sites_keys_and_holds_none_of_them(tmp_path):
    requests = asked(tmp_path)
    write(tmp_path / "study", PLAN, requests)
    for site in SITES:
        private = load_ssh_private_key((tmp_path / site / "node.key").read_bytes(), None)
        registered = load_ssh_public_key(
            (tmp_path / "study" / "master" / "keys" / f"{site}.pub").read_bytes()
        )
        assert private.public_key() == registered
        assert not list((tmp_path / "study" / "sites" / site).rglob("*.key"))
        assert not (tmp_path / "study" / "sites" / site / "table.csv").exists()
        assert requests[site].fingerprint in (tmp_path / "study" / "COMMANDS.md").read_text()
    secrets = {path.name for path in (tmp_path / "study").rglob("*.key")}
    assert secrets == {"ca.key", "server.key"}
    with pytest.raises(ConfigError, match="paris, oslo, rome are at the sites"):
        local.run(tmp_path / "study")


def test_a_trial_says_that_it_is_one(tmp_path):
    pytest.importorskip("flwr")
    result = CliRunner().invoke(app, ["deploy", "new", str(tmp_path / "study"), "--engine", "flower"])
    assert result.exit_code == 0, result.output
    assert "for a trial only" in result.output
    assert "whoever reaches the Master's port" in result.output
    assert "whoever reaches the Master's port" in (tmp_path / "study" / "COMMANDS.md").read_text()
    assert "for a trial only" in (tmp_path / "study" / "COMMANDS.md").read_text()
    assert len(list((tmp_path / "study" / "sites").glob("*/node.key"))) == 3


def test_commands_lead_from_join_to_a_study(tmp_path):
    pytest.importorskip("flwr")
    run = CliRunner()
    (tmp_path / "sent").mkdir()
    for site in SITES:
        argv = ["site", "join", site, "--engine", "flower", "--folder", str(tmp_path / site)]
        said = run.invoke(app, argv).output
        assert "stays on this machine" in said
        shutil.copy(tmp_path / site / f"{site}.join", tmp_path / "sent")
    argv = [
        "deploy",
        "new",
        str(tmp_path / "study"),
        "--engine",
        "flower",
        "--requests",
        str(tmp_path / "sent"),
    ]
    result = run.invoke(app, argv)
    assert result.exit_code == 0, result.output
    assert "trial" not in result.output
    for site in SITES:
        assert read_request(tmp_path / "sent" / f"{site}.join", "flower").fingerprint in result.output
    result = run.invoke(app, ["deploy", "renew", str(tmp_path / "study"), "--json"])
    assert [one["holder"] for one in json.loads(result.output)] == ["the server"]


# requests are the work of strangers


def asking(site, engine, csr, identity=b"k" * 32):
    """A request that is signed with a key for protected studies."""
    return Request(
        site, engine, csr, identity_public(identity).hex(), signed(identity, _joined(site, csr)).hex()
    )


WRONG = {
    "empty": (b"", "not a request"),
    "no JSON": (b"\xff\xfe\x00", "not a request"),
    "another field": ({"site": "paris", "engine": "nvflare", "csr": "", "role": "admin"}, "not a request"),
    "no signing request": (asking("paris", "nvflare", "hello"), "cannot be read"),
    "a null in it": (asking("paris", "nvflare", "-----BEGIN\x00"), "cannot be read"),
    "long": (b" " * (MOST_BYTES + 1), "longer than"),
    "a path as a name": (asking("../master", "nvflare", ""), "letters, digits"),
    "control characters": (asking("par\x1b[2Jis", "nvflare", ""), "letters, digits"),
    "no ASCII": (asking("zürich", "nvflare", ""), "ASCII"),
    "another engine": (asking("paris", "flower", ""), "runs on nvflare"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_a_request_is_refused_with_its_file_and_what_to_do(tmp_path, case):
    content, said = WRONG[case]
    with pytest.raises(ConfigError, match=said) as caught:
        read_request(written(tmp_path, content), "nvflare")
    assert "one.join" in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("kind", ["rsa-1024", "rsa-e3", "dsa", "ed25519", "p256", "p384"])
def test_keys_that_the_engine_cannot_use_or_that_are_weak_are_refused(tmp_path, kind):
    path = written(tmp_path, asking("paris", "nvflare", csr(key_of(kind), "paris")))
    with pytest.raises(ConfigError, match="RSA key"):
        read_request(path, "nvflare")


def test_flower_takes_no_other_curve(tmp_path):
    for kind in ("rsa", "p256"):
        path = written(tmp_path, asking("paris", "flower", csr(key_of(kind), "paris")))
        with pytest.raises(ConfigError, match="P-384"):
            read_request(path, "flower")


def test_a_signing_request_must_be_for_the_site_and_signed_with_its_key(tmp_path):
    good = csr(key_of("rsa"), "paris")
    assert read_request(written(tmp_path, asking("paris", "nvflare", good)), "nvflare").site == "paris"
    for names in (("oslo",), (), ("paris", "oslo")):
        request = asking("paris", "nvflare", csr(key_of("rsa"), *names))
        with pytest.raises(ConfigError, match="not for 'paris'"):
            read_request(written(tmp_path, request), "nvflare")
    lines = good.splitlines()
    last = lines[-2]  # in the signature
    swapped = last[:4] + ("A" if last[4] != "A" else "B") + last[5:]
    forged = "\n".join([*lines[:-2], swapped, lines[-1]])
    with pytest.raises(ConfigError, match="not signed with its own key"):
        read_request(written(tmp_path, asking("paris", "nvflare", forged)), "nvflare")


def test_the_key_for_protected_studies_has_signed_the_request(tmp_path):
    good = asking("paris", "nvflare", csr(key_of("rsa"), "paris"))
    other = asking("paris", "nvflare", good.csr, b"o" * 32)
    assert read_request(written(tmp_path, good), "nvflare").identity == good.identity
    for wrong in ({"identity": other.identity}, {"proof": other.proof}, {"identity": "no"}, {"proof": ""}):
        with pytest.raises(ConfigError, match="key for protected studies"):
            read_request(written(tmp_path, replace(good, **wrong)), "nvflare")


def test_any_damage_to_a_request_is_told_in_our_words(tmp_path):
    """Cut off or with one byte changed it is refused, or it still holds the same key."""
    import numpy as np

    made = join("paris", "flower", tmp_path / "paris")
    rng = np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(made.data)
        data[int(rng.integers(len(data)))] = int(rng.integers(256))
        data = data[: int(rng.integers(len(data)))] if rng.random() < 0.2 else data
        try:
            read = read_request(written(tmp_path, bytes(data)), "flower")
        except ConfigError:
            continue
        assert read.fingerprint == made.fingerprint


def test_every_site_asks_once_with_its_own_key(tmp_path):
    folder = tmp_path / "requests"
    asked(tmp_path)
    with pytest.raises(ConfigError, match="no request of bonn"):
        read_requests(folder, "flower", (*SITES, "bonn"))
    with pytest.raises(ConfigError, match="not among --sites asked to join: rome"):
        read_requests(folder, "flower", ("paris", "oslo"))
    shutil.copy(folder / "paris.join", folder / "again.join")
    with pytest.raises(ConfigError, match="both ask to be site 'paris'"):
        read_requests(folder, "flower")
    written(folder, asking("bonn", "flower", csr(key_of("p384"), "bonn")), "again.join")
    written(folder, asking("berlin", "flower", csr(key_of("p384"), "berlin")), "berlin.join")
    with pytest.raises(ConfigError, match="with the same key"):
        read_requests(folder, "flower")


def test_a_folder_without_requests_and_what_is_not_a_file_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no \.join file"):
        read_requests(tmp_path, "flower")
    with pytest.raises(ConfigError, match="is not a folder"):
        read_requests(tmp_path / "nowhere", "flower")
    os.mkfifo(tmp_path / "pipe.join")  # reading it would never end
    with pytest.raises(ConfigError, match="is not a file"):
        read_requests(tmp_path, "flower")


# certificates


def test_a_sites_certificate_holds_its_name_and_key_and_nothing_else_of_the_request():
    authority = Authority.new("study")
    made = x509.load_pem_x509_certificate(authority.client("paris", key_of("rsa").public_key(), "fedshed"))
    made.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    assert made.public_key() == key_of("rsa").public_key()
    assert made.subject.rfc4514_string() == "O=fedshed,CN=paris"
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.ExtendedKeyUsageOID.CLIENT_AUTH]


def test_renewal_keeps_the_key_and_the_name_and_moves_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "DAYS", 20)
    write(tmp_path, PLAN)
    path = tmp_path / "master" / "server.crt"
    before = path.read_bytes()
    assert len(warnings(tmp_path)) == 1
    assert "fedshed deploy renew" in warnings(tmp_path)[0]
    monkeypatch.setattr(certificates, "DAYS", 365)
    (one,) = renew(tmp_path)
    assert one.until == ends(path.read_bytes()) > ends(before) + timedelta(days=300)
    assert warnings(tmp_path) == []
    old, new = map(x509.load_pem_x509_certificate, (before, path.read_bytes()))
    assert (old.subject, old.public_key()) == (new.subject, new.public_key())
    assert old.serial_number != new.serial_number
    assert [e.oid for e in new.extensions]
    assert {e.oid for e in old.extensions} == {e.oid for e in new.extensions}
    new.verify_directly_issued_by(
        x509.load_pem_x509_certificate((tmp_path / "master" / "ca.crt").read_bytes())
    )
    with pytest.raises(ConfigError, match="nothing to renew"):
        renew(tmp_path, "paris")
    with pytest.raises(ConfigError, match="not a site of this deployment"):
        renew(tmp_path, "bonn")


def test_the_authoritys_key_is_private_and_without_it_nothing_is_renewed(tmp_path):
    write(tmp_path, PLAN)
    key = tmp_path / "authority" / "ca.key"
    assert key.stat().st_mode & 0o077 == 0
    key.unlink()
    with pytest.raises(ConfigError, match="restore them"):
        renew(tmp_path)


def test_no_certificate_outlives_its_authority(monkeypatch):
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 40)
    authority = Authority.new("study")
    assert ends(authority.server("localhost")[0]) <= ends(authority.certificate)
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 0)
    with pytest.raises(ConfigError, match="authority has expired"):
        Authority.new("study").server("localhost")


def test_a_certificate_is_spoken_of_from_thirty_days_before_its_end(tmp_path, monkeypatch):
    authority = Authority.new("study")
    for days in (0, 5, 29, 31):
        monkeypatch.setattr(certificates, "DAYS", days)
        (tmp_path / f"{days}.crt").write_bytes(authority.server("localhost")[0])
    said = ending_soon(tmp_path / f"{days}.crt" for days in (0, 5, 29, 31))
    assert [("expired" in one, "expires" in one) for one in said] == [
        (True, False),
        (False, True),
        (False, True),
    ]
    assert f"{datetime.now(UTC) + timedelta(days=5):%Y-%m-%d}" in said[1]


def test_the_commands_of_a_study_without_keys_speak_of_the_sites_own_folders(tmp_path):
    requests = asked(tmp_path)
    assert "in its folder" in commands(PLAN, requests)
    assert "deploy local" not in commands(PLAN, requests)
    assert "in `sites/paris/`" in commands(PLAN)


def test_the_commands_of_a_site_say_to_name_the_table_and_where_the_study_goes(tmp_path):
    text = commands(PLAN, asked(tmp_path))
    step = text[text.index("## 2. At each site") : text.index("## 3.")]
    assert "under `[table]`, set `csv` to the path of your table" in step
    assert "Put `study.toml`, as the Master sent it, beside `site.toml`" in step
    assert [line for line in step.splitlines() if line.startswith("### ")] == [
        f"### At site {site}, in its folder" for site in SITES
    ]
    assert "a part of the example" in commands(PLAN)


@pytest.mark.parametrize("engine", ["flower", "nvflare"])
def test_the_steps_are_in_their_order(engine):
    """The study is written before the Master starts; every step has a number of its own."""
    plan = Deployment(engine, SITES)
    text = commands(plan)
    parts = (
        "## 1. At the Master", "Write the study into `study.toml`", plan.kit.master().line(),
        "## 2. At each site", plan.kit.site("rome").line(), "## 3. At the Master", plan.kit.start().line(),
        "fedshed watch results", "## 4. When the study has ended",
    )  # fmt: skip
    place = 0
    for part in parts:
        place = text.index(part, place) + len(part)  # an error if it is not there, or comes earlier
    numbers = [line[:5] for line in text.splitlines() if re.match(r"## \d", line)]
    assert numbers == ["## 1.", "## 2.", "## 3.", "## 4."]


def test_the_commands_say_how_to_stop_the_programs():
    ended = {
        engine: commands(Deployment(engine, SITES)).partition("## 4. When the study has ended")[2]
        for engine in ("flower", "nvflare")
    }
    assert "Press Ctrl-C in the shell of the Master and in that of each site." in ended["flower"]
    assert 'nvflare system shutdown all --force --timeout 120 --startup-kit "$PWD/admin"' in ended["nvflare"]
    assert 'pkill -f "client_train -m $PWD "' in ended["nvflare"]
    assert all("docker stop paris" in text for text in ended.values())


def test_the_commands_name_every_file_that_the_master_writes():
    """What `serve` writes into results/, apart from the files of an interrupted fit."""
    source = Path(inspect.getfile(master)).read_text()
    written = set(re.findall(r'results / "([a-z]+\.[a-z]+)"', source)) | {LOG}
    assert {"coefficients.csv", "plan.json", "evaluation.csv", "curves.csv"} < written
    assert written == set(re.findall(r"`([a-z]+\.[a-z]+)`", RESULTS))


@pytest.mark.parametrize("protected", [False, True])
def test_a_study_of_real_sites_marks_the_values_of_the_example(tmp_path, protected):
    """The marks are comments: the study is the one that its values define."""
    write(tmp_path / "real", PLAN, asked(tmp_path), protected=protected)
    write(tmp_path / "trial", PLAN, protected=protected)
    real, trial = (tmp_path / name / "master" / "study.toml" for name in ("real", "trial"))
    marked = [line.split(" = ")[0] for line in real.read_text().splitlines() if "# change this" in line]
    assert marked == ["family", "target", *["columns"] * protected, "l2", *["classes"] * protected]
    assert "change this" not in trial.read_text()
    assert "round" not in real.read_text()
    assert "`# change this`" in (tmp_path / "real" / "COMMANDS.md").read_text()
    files = read_study(real), read_study(trial)
    assert files[0].study == files[1].study
    if not protected:  # the keys of protected studies differ
        assert files[0].terms.digest == files[1].terms.digest
    (tmp_path / "bare.toml").write_text(re.sub(r"\s*#.*", "", real.read_text()))
    assert read_study(tmp_path / "bare.toml").terms.digest == files[0].terms.digest


@pytest.mark.parametrize("engine", ["flower", "nvflare"])
def test_the_line_of_a_container_runs_what_is_typed_without_one(engine):
    plan = Deployment(engine, ("paris", "oslo"))
    (line,) = (line for line in commands(plan).splitlines() if "--restart" in line)
    words = shlex.split(line)
    assert words[-3:] == ["sh", "-c", plan.kit.site("paris").line()]
    assert "fedshed-node" in words
    assert f"ENGINE={engine}" in commands(plan)
