"""What a federation is made of, without one: certificates, configurations, keepers, errors."""

import base64
import json
import os
import re
import shutil
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
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from helpers import Wecfl
from wecfl.deploy import processes
from wecfl.deploy.certificates import authority, key_fingerprint, node_key, server_certificate
from wecfl.deploy.deployment import Deployment
from wecfl.deploy.flower_programs import call_flwr
from wecfl.deploy.follow import follow_run
from wecfl.deploy.host_files import host_files
from wecfl.deploy.processes import Probe
from wecfl.deploy.proxy import nginx, nginx_config
from wecfl.enrolment import Enrolment
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
    assert set(re.findall(r"proxy_pass (.*);", text)) == {"https://127.0.0.1:9444"}
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


# What the proxy lets through


class SuperLinkStub(ThreadingHTTPServer):
    """Takes every call over TLS, and counts the bytes that it gets."""

    daemon_threads = True
    log: Path
    """That of the proxy."""

    def __init__(self, folder: Path) -> None:
        self.got: list[tuple[str, int]] = []
        super().__init__(("127.0.0.1", 0), SuperLinkCall)
        trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        trust.load_cert_chain(folder / "server.crt", folder / "server.key")
        self.socket = trust.wrap_socket(self.socket, server_side=True)


class SuperLinkCall(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, SuperLinkStub)
        length = len(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.got.append((self.path, length))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


Push = Callable[..., int]


def header_of(node: str) -> str:
    """As long as the header with the key of a node: 215 bytes of PEM."""
    return base64.b64encode(f"{node:>200}{'':15}".encode()).decode()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SuperLinkStub, Push]]:
    """nginx as a federation has it, for replies of 50,000 bytes, in front of a stub."""
    try:
        found = nginx()
    except DeployError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("proxy")
    for name in ("logs", "nginx"):
        (folder / name).mkdir()
    server_certificate(folder, ["localhost", "127.0.0.1"])
    stub = SuperLinkStub(folder)
    stub.log = folder / "logs" / "nginx.log"
    threading.Thread(target=stub.serve_forever, daemon=True).start()
    with taken_port() as port:
        pass
    text = nginx_config(folder, port, stub.server_address[1], max_reply=50_000)
    (folder / "nginx.conf").write_text(text)
    process = subprocess.Popen([str(found), "-e", str(stub.log), "-c", str(folder / "nginx.conf")])
    trust = ssl.create_default_context(cafile=folder / "ca.crt")

    def push(call: str, body: bytes, node: str, *, chunked: bool = False) -> int:
        connection = HTTPSConnection("localhost", port, context=trust, timeout=20)
        sent = iter([body[:1000], body[1000:]]) if chunked else body
        headers = {"flwr-public-key": header_of(node)}
        try:
            connection.request("POST", f"/v1/fleet/{call}", sent, headers, encode_chunked=chunked)
            return connection.getresponse().status
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            return 413  # it hung up before it had all
        finally:
            connection.close()

    def answers() -> bool:
        try:
            return push("pull-messages", b"", "first") > 0
        except ConnectionRefusedError:
            return False

    try:
        wait(answers)
        stub.got.clear()
        yield stub, push
    finally:
        process.terminate()
        process.wait()
        stub.shutdown()
        stub.server_close()


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize(
    ("call", "size", "passes"),
    [
        ("push-object", 40_000, True),
        ("push-object", 60_000, False),
        ("push-object", 4_000_000, False),
        ("push-messages", 60_000, True),
        ("push-messages", 70_000, False),
        ("pull-messages", 70_000, False),
    ],
)
def test_nothing_larger_than_a_reply_reaches_the_superlink(
    proxied: tuple[SuperLinkStub, Push], call: str, size: int, passes: bool, chunked: bool
) -> None:
    stub, push = proxied
    stub.got.clear()
    node = f"{call}-{size}-{chunked}"
    assert push(call, bytes(size), node, chunked=chunked) == (200 if passes else 413)
    assert stub.got == ([(f"/v1/fleet/{call}", size)] if passes else [])


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_node_that_keeps_sending_is_slowed_and_no_other_is(
    proxied: tuple[SuperLinkStub, Push], chunked: bool
) -> None:
    """Flower tries again on 503; what is small is not held up by what is large."""
    stub, push = proxied
    stub.got.clear()
    flood = f"flood-{chunked}"
    said = [push("push-object", bytes(40_000), flood, chunked=chunked) for _ in range(10)]
    assert said[:2] == [200, 200]
    assert said.count(503) >= 7
    assert sum(size for _, size in stub.got) <= 3 * 40_000
    assert push("push-object", bytes(40_000), f"other-{chunked}", chunked=chunked) == 200
    assert push("push-object", bytes(400), flood) == 200
    small = [push("push-object", bytes(400), flood) for _ in range(80)]
    assert 503 in small


def test_limits_know_a_node_by_its_whole_key(
    proxied: tuple[SuperLinkStub, Push], tmp_path: Path
) -> None:
    """nginx drops a limit whose key is too long, and says so in its log only."""
    public = load_ssh_public_key(node_key(tmp_path / "key").read_bytes())
    assert isinstance(public, ec.EllipticCurvePublicKey)
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert len(base64.b64encode(pem)) == len(header_of("a"))
    assert "more than 255 bytes" not in proxied[0].log.read_text()


@pytest.mark.parametrize("size", [100, 10**12])
def test_a_cap_that_makes_no_sense(wecfl: Wecfl, size: int) -> None:
    words = ("host", "x", "--name", "y", "--max-reply", str(size))
    assert "--max-reply must lie between" in refused(wecfl, *words)


# Who is enrolled


@pytest.fixture
def fake_flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `flwr` that numbers the nodes; its file tells which nodes it knows."""
    place = tmp_path / "programs"
    place.mkdir()
    script = f"""#!{sys.executable}
import json, pathlib, sys
file = pathlib.Path({str(tmp_path / "nodes.json")!r})
nodes = json.loads(file.read_text()) if file.exists() else []
if sys.argv[2] == "register":
    nodes.append(100 + len(nodes))
    file.write_text(json.dumps(nodes))
    print(json.dumps({{"success": True, "node-id": nodes[-1]}}))
else:
    print(json.dumps({{"success": True, "nodes": [{{"node-id": n}} for n in nodes]}}))
"""
    (place / "flwr").write_text(script)
    (place / "flwr").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(place / "python"))
    return tmp_path / "nodes.json"


def test_enrol_binds_a_key_to_a_name_and_a_size(
    wecfl: Wecfl, tmp_path: Path, fake_flwr: Path
) -> None:
    host = tmp_path / "host"
    assert wecfl("deploy", "host", host, "--name", "fl.example.org").code == 0
    for name in ("ward-1", "ward-2"):
        key = node_key(tmp_path / name)
        code, out, err = wecfl("deploy", "enrol", host, name, key, "--samples", "500")
        assert (code, err) == (0, "")
        assert key_fingerprint(key) in "".join(out.split())
    told = {each.name: each for each in Enrolment.read(host / "enrolled.toml").clients}
    assert {name: (each.node, each.samples) for name, each in told.items()} == {
        "ward-1": (100, 500), "ward-2": (101, 500),
    }  # fmt: skip
    # The same key again: another size, the same node.
    again = ("deploy", "enrol", host, "ward-1", tmp_path / "ward-1.pub", "--samples", "900")
    assert wecfl(*again).code == 0
    # A new key: the same name, another node. And one that the SuperLink has forgotten.
    assert wecfl(*again[:3], "ward-2", node_key(tmp_path / "new"), "--samples", "5").code == 0
    fake_flwr.write_text("[100]")
    assert wecfl(*again[:3], "ward-2", tmp_path / "new.pub", "--samples", "6").code == 0
    told = {each.name: each for each in Enrolment.read(host / "enrolled.toml").clients}
    assert {name: (each.node, each.samples) for name, each in told.items()} == {
        "ward-1": (100, 900), "ward-2": (101, 6),
    }  # fmt: skip
    # Certificates are renewed, and who is enrolled stays so.
    assert wecfl("deploy", "host", host, "--name", "a", "--max-reply", "90000").code == 0
    after = Enrolment.read(host / "enrolled.toml")
    assert (len(after.clients), after.max_reply) == (2, 90_000)


def test_a_fingerprint_is_the_one_that_openssh_shows(tmp_path: Path) -> None:
    if not (program := shutil.which("ssh-keygen")):
        pytest.skip("no ssh-keygen")
    public = node_key(tmp_path / "key")
    told = subprocess.run([program, "-lf", public], capture_output=True, text=True, check=True)
    assert key_fingerprint(public) in told.stdout.split()


def test_who_can_not_be_enrolled(wecfl: Wecfl, tmp_path: Path) -> None:
    key = node_key(tmp_path / "key")
    assert "no enrolled.toml" in refused(wecfl, "enrol", tmp_path, "a", key, "--samples", "5")
    assert wecfl("deploy", "host", tmp_path / "h", "--name", "x").code == 0
    for name, file, samples, problem in (
        ("a\nb", key, "5", "printable"),
        ("a", key, "0", "--samples must lie"),
        ("a", tmp_path / "key", "5", "not a public key"),
        ("a", tmp_path / "none.pub", "5", "not a public key"),
    ):
        assert problem in refused(wecfl, "enrol", tmp_path / "h", name, file, "--samples", samples)


# Waiting


def test_a_run_that_prints_nothing_is_not_waited_for_in_silence() -> None:
    """It says what it waits for; a server that never begins is an error."""
    shown: list[str] = []
    news = chain([("pending", "")], repeat(("pending", "superlink is ill (no answer)")))
    with pytest.raises(DeployError, match=r"has not begun within 0.6 s: superlink is ill"):
        follow_run(
            ["/bin/sh", "-c", "exec sleep 60"], os.environ, lambda: next(news), shown.append,
            quiet=0.05, start=0.6,
        )  # fmt: skip
    assert shown[0] == "(still waiting: the run is pending)"
    assert "superlink is ill" in shown[1]


def test_a_run_that_ends_and_a_superlink_that_does_not_know_it() -> None:
    shown: list[str] = []
    how: dict[str, Any] = {"quiet": 5.0, "end": 0.2}
    words = ["/bin/sh", "-c", "echo one; echo 'Using SuperLink'; echo two"]
    ended = follow_run(words, os.environ, lambda: ("finished:completed", ""), shown.append, **how)
    assert (ended, shown) == ("finished:completed", ["one", "two"])
    ended = follow_run(words, os.environ, lambda: ("running", ""), shown.append, **how)
    assert ended == "running, although its log has ended"
    words = ["/bin/sh", "-c", "exit 1"]
    assert "lost" in follow_run(words, os.environ, lambda: ("", ""), shown.append, **how)


def test_flwr_that_does_not_answer_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flwr").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "flwr").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(DeployError, match=r"flwr list: .* within 0.2 s"):
        call_flwr(tmp_path, ["list"], timeout=0.2)


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


UNPROBED = Probe()


def keep(folder: Path, script: str, name: str = "it", probe: Probe = UNPROBED) -> processes.Service:
    """Keep a shell script running, and what is written down of it once it runs."""
    processes.start(folder, name, ["/bin/sh", "-c", script], os.environ, folder, probe=probe)
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
        before = service.created - 10  # both may have begun within one tick of the clock
        stale = replace(service, name="old", pid=bystander.pid, created=before)
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


def test_what_runs_but_lost_a_program_it_needs_is_started_again(folder: Path) -> None:
    """As a SuperLink whose `flower-superexec` has died: no exit code tells."""
    probe = Probe(child="sleep 301", every=0.1, patience=0.4, start=10)
    first = keep(folder, "sleep 301 & exec sleep 302", probe=probe)
    wait(lambda: len(processes.find(folder)) == 3)
    [child] = [each for each in processes.find(folder) if "301" in each.cmdline()]
    time.sleep(0.5)
    assert (service := kept(folder)) and (service.pid, service.ill) == (first.pid, "")
    child.kill()
    wait(lambda: (service := kept(folder)) and "sleep 301 is not running" in service.ill)
    wait(lambda: (service := kept(folder)) and service.pid not in (None, first.pid))
    again = kept(folder)
    assert again and (again.restarts, again.ill) == (1, "")
    log = (folder / "logs" / "it.log").read_text()
    assert "sleep 301 is not running; again in 1 s" in log


HANGING = """
import http.server, pathlib, sys, time
class Call(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        hang = pathlib.Path("hang")
        if hang.exists():
            hang.unlink()
            time.sleep(60)
        self.send_error(404)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Call).serve_forever()
"""


def test_what_runs_but_does_not_answer_is_started_again(folder: Path) -> None:
    with taken_port() as port:
        pass
    (folder / "server.py").write_text(HANGING)
    probe = Probe(url=f"http://127.0.0.1:{port}/", every=0.4, patience=0.5, start=20)
    first = keep(folder, f"exec {sys.executable} server.py {port}", probe=probe)
    wait(lambda: not probe.complaint(folder, "it"))  # 404 is an answer
    time.sleep(1)
    assert (service := kept(folder)) and (service.pid, service.restarts) == (first.pid, 0)
    (folder / "hang").touch()
    wait(lambda: (service := kept(folder)) and service.restarts == 1)
    wait(lambda: not probe.complaint(folder, "it"))
    assert "does not answer" in (folder / "logs" / "it.log").read_text()


def test_what_is_never_well_is_started_again_at_growing_intervals(folder: Path) -> None:
    probe = Probe(child="nothing of the kind", every=0.1, patience=0.1, start=0.2)
    keep(folder, "exec sleep 300", probe=probe)
    log = folder / "logs" / "it.log"
    wait(lambda: log.exists() and " 2 s\n" in log.read_text())
    assert [line[-3:] for line in log.read_text().splitlines()[:2]] == ["1 s", "2 s"]


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
    assert "[tool.flwr.app.config]" in refused(wecfl, "run", app, "clip=1.0")
    assert "name=value, got '3'" in refused(wecfl, "run", app, "3")
    assert "is not up: start it with wecfl deploy up" in refused(wecfl, "run", app, "rounds=3")


def test_a_federation_that_is_not_up(wecfl: Wecfl, app: Path) -> None:
    code, out, err = wecfl("deploy", "status", app)
    assert (code, err) == (0, "") and "not up" in out
    assert wecfl("deploy", "down", app).out.startswith("nothing")
