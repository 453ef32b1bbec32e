"""What is installed and downloaded is known by its hash."""

import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from node_lock import LOCK_FILE, digest, requirements
from wecfl.data.datasets import SOURCES


def locked() -> dict[str, list[tuple[Requirement, list[str]]]]:
    """The entries of the lock, by package: the requirement, and its hashes."""
    found: dict[str, list[tuple[Requirement, list[str]]]] = {}
    text = re.sub(r"^#.*\n", "", LOCK_FILE.read_text("utf-8"), flags=re.MULTILINE)
    for entry in text.replace("\\\n", " ").splitlines():
        words, *hashes = entry.split("--hash=")
        requirement = Requirement(words)
        found.setdefault(canonicalize_name(requirement.name), []).append((requirement, hashes))
    return found


def test_the_lock_was_made_from_the_requirements_as_they_are() -> None:
    """If this fails: make lock."""
    (line,) = re.findall(r"^# inputs: sha256:(\w+)$", LOCK_FILE.read_text("utf-8"), re.MULTILINE)
    assert line == digest()


def test_every_package_of_the_lock_has_one_version_and_its_hashes() -> None:
    entries = [each for group in locked().values() for each in group]
    assert len(entries) > 50
    for requirement, hashes in entries:
        assert re.fullmatch(r"==[\w.+!]+", str(requirement.specifier)), requirement
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each.strip()) for each in hashes)


@pytest.mark.parametrize("text", requirements())
def test_the_lock_holds_what_is_required(text: str) -> None:
    wanted = Requirement(text)
    for requirement, _ in locked()[canonicalize_name(wanted.name)]:
        (pinned,) = requirement.specifier
        assert wanted.specifier.contains(pinned.version), requirement


@pytest.mark.parametrize("name", SOURCES)
def test_data_sets_come_over_https_and_have_a_sum(name: str) -> None:
    source = SOURCES[name]
    assert all(url.startswith("https://") for url in source.urls)
    assert all(re.fullmatch("[0-9a-f]{64}", sum) for sum in source.files.values())
    assert bool(source.urls) == bool(source.files)
