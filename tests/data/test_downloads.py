"""Fetching, against a server on the loopback that misbehaves in every way we defend against."""

from __future__ import annotations

import hashlib
import socket
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath

import pytest

from wecfl.data.downloads import download, has_apt, unpack_debian
from wecfl.errors import DataError

BODY = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(BODY).hexdigest()


class Server(ThreadingHTTPServer):
    """Plays its script, one act per request; when it is over, serves well."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[str] = []
        self.requests = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        act = self.server.script.pop(0) if self.server.script else "well"
        if act == "hang up":
            self.close_connection = True
            return
        if act.isdigit():
            self.send_error(int(act))
            return
        self.send_response(200)
        if act != "unknown length":
            self.send_header("Content-Length", str(len(BODY)))
        if act == "marked as compressed":
            assert self.headers["Accept-Encoding"] == "identity"
        self.end_headers()
        self.wfile.write(BODY[: len(BODY) // 2] if act == "cut short" else BODY)

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which tests don't wait for."""
    found: list[float] = []
    monkeypatch.setattr("time.sleep", found.append)
    return found


def failure(urls: list[str], target: Path, sha256: str = SHA256) -> str:
    with pytest.raises(DataError) as caught:
        download(urls, target, sha256)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_arrives_whole_with_progress(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[str, int, int | None]] = []
    target = tmp_path / "new" / "folder" / "file.gz"
    assert download([server.url], target, SHA256, progress=lambda *a: told.append(a)) == target
    assert target.read_bytes() == BODY
    assert [*target.parent.iterdir()] == [target]
    assert told[-1] == ("file.gz", len(BODY), len(BODY))
    assert len(told) > 2
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert capfd.readouterr() == ("", "")


def test_a_length_nobody_knows(server: Server, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    server.script = ["unknown length"]
    download([server.url], tmp_path / "f", SHA256, progress=lambda *a: told.append(a))
    assert {total for _, _, total in told} == {None}
    assert told[-1][1] >= len(BODY)


def test_bytes_are_asked_for_as_they_are(server: Server, tmp_path: Path) -> None:
    server.script = ["marked as compressed"]
    assert download([server.url], tmp_path / "f", SHA256).read_bytes() == BODY


@pytest.mark.parametrize("trouble", ["hang up", "cut short", "500", "503", "429"])
def test_trouble_that_passes_is_tried_again(
    server: Server, tmp_path: Path, trouble: str, pauses: list[float]
) -> None:
    server.script = [trouble, trouble]
    assert download([server.url], tmp_path / "f", SHA256).read_bytes() == BODY
    assert server.requests == 3
    assert pauses == [1, 2]


@pytest.mark.parametrize(
    ("trouble", "fact"),
    [("hang up", "closed connection"), ("cut short", f"{len(BODY) // 2} "), ("500", "500")],
)
def test_trouble_that_stays_is_an_error(
    server: Server, tmp_path: Path, trouble: str, fact: str, pauses: list[float]
) -> None:
    server.script = [trouble] * 9
    message = failure([server.url], tmp_path / "f")
    assert message.startswith(server.url)
    assert fact in message
    assert server.requests == 3
    assert not [*tmp_path.iterdir()]


def test_a_wrong_checksum_leaves_what_was_there(
    server: Server, tmp_path: Path, pauses: list[float]
) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"old")
    message = failure([server.url], target, "0" * 64)
    assert "0" * 64 in message and SHA256 in message
    assert target.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [target]


def test_mirrors_are_tried_in_order(server: Server, tmp_path: Path, pauses: list[float]) -> None:
    with Server() as closed:
        refused = closed.url
    assert download([refused, server.url], tmp_path / "f", SHA256).read_bytes() == BODY
    server.script = ["404"] * 3
    message = failure([refused, server.url], tmp_path / "g")
    assert message.index(refused) < message.index("refused") < message.index("404")


def test_a_machine_without_network(
    tmp_path: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unresolved(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    message = failure(["https://example.org/file"], tmp_path / "f")
    assert "example.org" in message and "not known" in message
    assert len(message) < 200


def test_what_is_there_is_not_asked_for(server: Server, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(BODY)
    assert download([server.url], tmp_path / "f", SHA256) == tmp_path / "f"
    assert server.requests == 0


def test_a_folder_that_cannot_be(tmp_path: Path, pauses: list[float]) -> None:
    (tmp_path / "f").write_bytes(b"")
    message = failure(["http://127.0.0.1:9/"], tmp_path / "f" / "g")
    assert "written" in message and "127.0.0.1" not in message


INSIDE = PurePosixPath("/usr/share/datasets/toy")
APT = 'echo archive > "$2_1_all.deb"'
DPKG = f'mkdir -p "$3{INSIDE}" && echo a > "$3{INSIDE}/a" && echo b > "$3{INSIDE}/b"'


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Put shell scripts in front of the PATH; names are written with _ for -."""
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        file = folder / name.replace("_", "-")
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_a_debian_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "bin", monkeypatch, apt_get=APT, dpkg_deb=DPKG)
    told: list[tuple[str, int, int | None]] = []
    assert has_apt()
    unpack_debian("toy", INSIDE, ["a"], tmp_path / "to", progress=lambda *a: told.append(a))
    assert (tmp_path / "to" / "a").read_text() == "a\n"
    assert [file.name for file in (tmp_path / "to").iterdir()] == ["a"]
    assert told == [("toy", 0, None), ("toy", 8, 8)]


@pytest.mark.parametrize(
    ("apt", "dpkg", "said"),
    [
        ("echo warned >&2; echo E: Unable to locate package toy >&2; exit 100", DPKG, "Unable to"),
        ("exit 3", DPKG, "apt-get .* 3$"),
        ("true", DPKG, "one .deb, got 0"),
        (APT, "exit 2", "dpkg-deb .* 2$"),
        (APT, "true", f"toy .*{INSIDE}/a"),
    ],
)
def test_a_debian_package_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apt: str, dpkg: str, said: str
) -> None:
    install(tmp_path / "bin", monkeypatch, apt_get=apt, dpkg_deb=dpkg)
    with pytest.raises(DataError, match=said):
        unpack_debian("toy", INSIDE, ["a"], tmp_path / "to")
    assert not [*(tmp_path / "to").iterdir()]


def test_a_machine_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_apt()
    with pytest.raises(DataError, match="apt-get"):
        unpack_debian("toy", INSIDE, ["a"], tmp_path / "to")
