"""What a federation is made of, without one: certificates, configurations, keepers, errors."""

import json
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from helpers import Wecfl
from wecfl.deploy import processes
from wecfl.deploy.certificates import authority, node_key, server_certificate
from wecfl.deploy.deployment import Deployment
from wecfl.deploy.host_files import host_files
from wecfl.deploy.proxy import nginx, nginx_config
from wecfl.errors import DeployError


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


# Certificates and keys


def shake_hands(folder: Path, host: str, ca: Path) -> None:
    """A client that trusts `ca` and asks for `host`, and a server with the certificate there."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client = ssl.create_default_context(cafile=ca)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as secure:
                secure.sendall(b"hello")
        except OSError:
            pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours, client.wrap_socket(ours, server_hostname=host) as secure:
            assert secure.recv(5) == b"hello"
    finally:
        thread.join()
        theirs.close()


def test_the_certificate_is_trusted_under_its_names_only(tmp_path: Path) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    for folder in (here, other):
        folder.mkdir()
        server_certificate(folder, ["fl.example.org", "127.0.0.1", "::1"])
    for host in ("fl.example.org", "127.0.0.1", "::1"):
        shake_hands(here, host, here / "ca.crt")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(here, "example.org", here / "ca.crt")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        shake_hands(here, "fl.example.org", other / "ca.crt")


def test_the_authority_stays_while_the_servers_certificate_is_renewed(tmp_path: Path) -> None:
    first, key = server_certificate(tmp_path, ["localhost"])
    old, ca = first.read_bytes(), [file.read_bytes() for file in authority(tmp_path)]
    server_certificate(tmp_path, ["localhost"])
    assert first.read_bytes() != old
    assert [file.read_bytes() for file in authority(tmp_path)] == ca
    shake_hands(tmp_path, "localhost", tmp_path / "ca.crt")
    assert mode(key) == mode(tmp_path / "ca.key") == 0o600


def test_certificates_end(tmp_path: Path) -> None:
    """The authority after ten years, the server's certificate after one; only one signs others."""
    ca, server = authority(tmp_path)[0], server_certificate(tmp_path, ["localhost"])[0]
    for file, years in ((ca, 10), (server, 1)):
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
        left = certificate.not_valid_after_utc - datetime.now(UTC)
        assert left.total_seconds() == pytest.approx(365 * 86400 * years, abs=120)
        assert certificate.not_valid_before_utc < datetime.now(UTC)
        signs = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert signs == (file == ca)


def test_a_nodes_key_is_one_that_openssh_knows(tmp_path: Path) -> None:
    public = node_key(tmp_path / "key")
    private = load_ssh_private_key((tmp_path / "key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert (private.curve.name, mode(tmp_path / "key")) == ("secp384r1", 0o600)
    told = load_ssh_public_key(public.read_bytes())
    assert isinstance(told, ec.EllipticCurvePublicKey)
    assert told.public_numbers() == private.public_key().public_numbers()
    with pytest.raises(FileExistsError):
        node_key(tmp_path / "key")


# Configurations


def test_the_proxy_listens_on_loopback_and_passes_two_things_at_most(tmp_path: Path) -> None:
    try:
        found = nginx()
    except DeployError as error:
        pytest.skip(str(error))
    text = nginx_config(tmp_path, 9443, 9444)
    assert re.findall(r"listen (.*);", text) == ["127.0.0.1:9443 ssl"]
    assert re.findall(r"proxy_pass (.*);", text) == ["https://127.0.0.1:9444"]
    assert text.count("return 403") == 2
    for name in ("logs", "nginx"):
        (tmp_path / name).mkdir()
    server_certificate(tmp_path, ["localhost"])
    (tmp_path / "nginx.conf").write_text(text)
    files = ["-e", tmp_path / "logs" / "nginx.log", "-c", tmp_path / "nginx.conf"]
    done = subprocess.run(
        [str(found), "-t", *map(str, files)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_files_for_real_hosts_name_the_host_and_never_open_the_superlink(
    tmp_path: Path,
) -> None:
    made = {file.name: file for file in host_files(tmp_path / "host", "fl.example.org", 8443)}
    text = {name: file.read_text() for name, file in made.items()}
    assert "--superlink fl.example.org:8443" in text["wecfl-supernode@.service"]
    assert "--host 127.0.0.1 --port 8444" in text["wecfl-superlink.service"]
    assert "--enable-supernode-auth" in text["wecfl-superlink.service"]
    assert "--disable-runtime-dependency-installation" in text["wecfl-superlink.service"]
    for name in ("superlink", "supernode"):
        unit = next(each for file, each in text.items() if file.startswith(f"wecfl-{name}"))
        assert f"-m wecfl_main.loopback_guard flower-{name} " in unit
        assert "--allow-runtime-dependency-installation" not in unit
    assert text["requirements-node.txt"].count("--hash=sha256:") > 100
    for name in ("nginx.conf", "Caddyfile"):
        assert "https://127.0.0.1:8444" in text[name] and "403" in text[name]
    assert not [name for name, each in text.items() if "{" + "{" in each]
    host_files(tmp_path / "host", "fl.example.org", 8443)
    assert made["ca.crt"].read_text() == text["ca.crt"]
    assert made["server.crt"].read_text() != text["server.crt"]
    shake_hands(tmp_path / "host", "fl.example.org", made["ca.crt"])
    assert mode(tmp_path / "host") == 0o700


@pytest.mark.deploy
@pytest.mark.parametrize("program", ["flower-superlink", "flower-supernode"])
def test_the_units_use_flags_that_flower_has(program: str, tmp_path: Path) -> None:
    made = host_files(tmp_path / "host", "fl.example.org")
    unit = next(file for file in made if file.name.startswith(program.replace("flower", "wecfl")))
    command = unit.read_text().replace("\\\n", " ").partition("ExecStart=")[2].splitlines()[0]
    told = subprocess.run(
        [Path(sys.executable).parent / program, "--help"],
        capture_output=True, text=True, check=True, env={**os.environ, "FLWR_HOME": str(tmp_path)},
    ).stdout  # fmt: skip
    flags = set(re.findall(r"--[a-z-]+", command))
    assert len(flags) > 5 and flags <= set(re.findall(r"--[a-z-]+", told))


# Keepers


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / ".federation"
    folder.mkdir()
    yield folder
    processes.stop(processes.find(folder), patience=2)


@pytest.fixture
def fake_nginx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nginx that does nothing, so that the system needs none."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nginx").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield int(taken.getsockname()[1])


def kept(folder: Path, name: str = "it") -> processes.Service | None:
    return processes.read_services(folder).get(name)


def wait(until: Callable[[], object], seconds: float = 20) -> None:
    began = time.monotonic()
    while not until():
        assert time.monotonic() - began < seconds
        time.sleep(0.05)


def keep(folder: Path, script: str, name: str = "it") -> processes.Service:
    """Keep a shell script running, and what is written down of it once it runs."""
    processes.start(folder, name, ["/bin/sh", "-c", script], os.environ, folder)
    wait(lambda: (service := kept(folder, name)) and service.process)
    service = kept(folder, name)
    assert service is not None
    return service


def test_what_dies_is_started_again_and_what_it_left_is_ended(folder: Path) -> None:
    first = keep(folder, "sleep 300 & setsid sleep 301 & echo begun; sleep 302")
    wait(lambda: len(processes.find(folder)) == 5)
    left = {each.pid for each in processes.find(folder)} - {first.keeper}
    assert first.pid
    os.kill(first.pid, signal.SIGKILL)
    wait(lambda: (service := kept(folder)) and service.pid not in (None, first.pid))
    again = kept(folder)
    assert again and (again.restarts, again.exit, again.keeper) == (1, -9, first.keeper)
    wait(lambda: len(processes.find(folder)) == 5)
    assert not left & {each.pid for each in processes.find(folder)}
    log = (folder / "logs" / "it.log").read_text()
    assert log.count("begun") == 2 and re.search(r"^it ended \(-9\).* 1 s$", log, re.MULTILINE)


def test_a_keeper_that_is_asked_to_end_takes_all_with_it(folder: Path) -> None:
    service = keep(folder, "setsid sleep 300 & exec sleep 301")
    os.kill(service.keeper, signal.SIGTERM)
    wait(lambda: not processes.find(folder))
    assert kept(folder) is None


def test_what_a_killed_keeper_leaves_is_found_by_its_mark(folder: Path) -> None:
    service = keep(folder, "setsid sleep 300 & exec sleep 301")
    wait(lambda: len(processes.find(folder)) == 3)
    assert not processes.find(folder / "other")
    assert not processes.find(folder, "other")
    os.kill(service.keeper, signal.SIGKILL)
    wait(lambda: len(processes.find(folder)) == 2)
    Deployment(folder.parent).down()
    assert not processes.find(folder)


def test_up_ends_what_a_crash_left(folder: Path, wecfl: Wecfl, fake_nginx: None) -> None:
    """Before it starts anything: here a taken port keeps it from that."""
    files = {"pyproject.toml": "[tool.flwr.app.config]\n", ".gitignore": ".federation/\nruns/\n"}
    for name, text in files.items():
        (folder.parent / name).write_text(text)
    service = keep(folder, "exec sleep 300", "proxy")
    assert "is up already" in refused(wecfl, "up", folder.parent)
    os.kill(service.keeper, signal.SIGKILL)
    wait(lambda: len(processes.find(folder)) == 1)
    with taken_port() as port:
        assert f"port {port} can't" in refused(wecfl, "up", folder.parent, "--port", str(port))
    assert not processes.find(folder)


def test_a_number_that_is_in_use_again_is_not_taken_for_the_process(folder: Path) -> None:
    service = keep(folder, "exec sleep 300")
    assert service.process == psutil.Process(service.pid)
    assert replace(service, created=service.created - 10).process is None
    bystander = subprocess.Popen(["sleep", "300"])
    try:
        stale = replace(service, name="old", pid=bystander.pid)
        file = folder / "services" / "old.json"
        file.write_text(json.dumps({each: getattr(stale, each) for each in stale.__slots__}))
        assert bystander.pid not in {each.pid for each in processes.find(folder)}
        processes.stop(processes.find(folder))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_failures_in_a_row_are_waited_for_longer(folder: Path) -> None:
    processes.start(folder, "it", ["/bin/sh", "-c", "exit 3"], os.environ, folder)
    log = folder / "logs" / "it.log"
    wait(lambda: log.exists() and " 2 s\n" in log.read_text())
    service = kept(folder)
    assert service and service.exit == 3
    first, second = log.read_text().splitlines()[:2]
    assert "(3)" in first and first.endswith(" 1 s")
    assert "(3)" in second and second.endswith(" 2 s")


# The command line


@pytest.fixture
def app(wecfl: Wecfl) -> Path:
    """An app in the current folder."""
    assert wecfl("deploy", "new", "wards").code == 0
    return Path("wards")


def refused(wecfl: Wecfl, *words: str | Path) -> str:
    code, out, err = wecfl("deploy", *words)
    assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
    return err


def test_new_says_what_to_fill_in(wecfl: Wecfl) -> None:
    code, out, err = wecfl("deploy", "new", "wards")
    assert (code, err) == (0, "")
    assert "wards/wards/task.py" in out and "wecfl deploy up wards" in out
    assert "not empty" in refused(wecfl, "new", "wards")


@pytest.mark.parametrize("command", ["up", "run", "status", "down"])
def test_no_such_folder(wecfl: Wecfl, command: str) -> None:
    assert "wecfl deploy new nowhere" in refused(wecfl, command, "nowhere")


@pytest.mark.parametrize("command", ["up", "run", "status", "down"])
def test_a_folder_that_is_no_app(wecfl: Wecfl, tmp_path: Path, command: str) -> None:
    assert "it has no pyproject.toml" in refused(wecfl, command, tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert "no [tool.flwr.app.config]" in refused(wecfl, command, tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project\n")
    assert "can't read" in refused(wecfl, command, tmp_path)
    assert not (tmp_path / ".federation").exists()


def test_what_is_up_is_stopped_although_its_app_is_gone(wecfl: Wecfl, folder: Path) -> None:
    keep(folder, "exec sleep 300", "proxy")
    assert wecfl("deploy", "down", folder.parent).out.endswith(": proxy\n")
    assert not processes.find(folder)


@pytest.mark.parametrize("kept", ["", ".federation/\n", "runs/\n"])
def test_keys_and_results_must_not_be_packed_into_the_app(
    wecfl: Wecfl, app: Path, kept: str
) -> None:
    (app / ".gitignore").write_text(kept)
    assert "sends all other files to the clients" in refused(wecfl, "up", app)


def test_without_nginx_nothing_is_started(
    wecfl: Wecfl, app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert "apt install nginx-light" in refused(wecfl, "up", app)
    assert not (app / ".federation").exists()


def test_numbers_that_make_no_sense(wecfl: Wecfl, app: Path) -> None:
    assert "--nodes must be at least 1" in refused(wecfl, "up", app, "--nodes", "0")
    assert "--port must be within" in refused(wecfl, "host", "x", "--name", "y", "--port", "0")
    assert "host name" in refused(wecfl, "host", "x", "--name", "a;b")


def test_ports_that_can_not_be_used(wecfl: Wecfl, app: Path, fake_nginx: None) -> None:
    assert "--port must be within 1024" in refused(wecfl, "up", app, "--port", "80")
    with taken_port() as port:
        assert f"port {port} can't be used" in refused(wecfl, "up", app, "--port", str(port - 1))
    assert not processes.find(app.absolute() / ".federation")


def test_settings_of_a_run(wecfl: Wecfl, app: Path) -> None:
    assert "did you mean 'rounds'?" in refused(wecfl, "run", app, "round=3")
    assert "name=value, got '3'" in refused(wecfl, "run", app, "3")
    assert "is not up: wecfl deploy up" in refused(wecfl, "run", app, "rounds=3")


def test_a_federation_that_is_not_up(wecfl: Wecfl, app: Path) -> None:
    code, out, err = wecfl("deploy", "status", app)
    assert (code, err) == (0, "") and "not up" in out
    assert wecfl("deploy", "down", app).out.startswith("nothing")
