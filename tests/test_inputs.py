"""How much memory a process may use, by all who have a say in it."""

from pathlib import Path
from resource import RLIMIT_AS, RLIMIT_DATA, getpagesize, getrlimit, setrlimit

import pytest

from wecfl.inputs import check_fits, usable_memory

GIGABYTE = 1 << 30


def system(root: Path, files: dict[str, str]) -> list[tuple[int, str]]:
    """What is usable on a system with these files and 8 GB that are free."""
    for name, text in {"proc/meminfo": f"MemAvailable: {8 << 20} kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return usable_memory(root)


def test_without_limits_it_is_what_the_machine_has(tmp_path: Path) -> None:
    assert min(system(tmp_path, {})) == (8 * GIGABYTE, "free memory of the machine")


@pytest.mark.parametrize("at", ["", "pods/mine/", "pods/"], ids=["root", "own", "parent"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_container_has_what_its_control_group_leaves(
    version: int, at: str, tmp_path: Path
) -> None:
    """1.5 GB, of which 1 is used; a quarter of that is a cache. An outer group counts as well."""
    limit, used, cache = 3 * GIGABYTE // 2, GIGABYTE, GIGABYTE // 4
    if version == 1:
        folder, names = f"sys/fs/cgroup/memory/{at}", ("limit_in_bytes", "usage_in_bytes", "total_")
        group = "4:memory:/pods/mine\n0::/\n"
    else:
        folder, names = f"sys/fs/cgroup/{at}", ("max", "current", "")
        group = "0::/pods/mine\n"
    found = system(
        tmp_path,
        {
            "proc/self/cgroup": group,
            f"{folder}memory.{names[0]}": f"{limit}\n",
            f"{folder}memory.{names[1]}": f"{used}\n",
            f"{folder}memory.stat": f"anon 5\n{names[2]}inactive_file {cache}\n",
        },
    )
    assert min(found) == (limit - used + cache, "control group")


def test_a_group_without_a_limit_is_none(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n",
             "sys/fs/cgroup/a/memory.current": "5\n"}  # fmt: skip
    assert min(system(tmp_path, files))[0] == 8 * GIGABYTE


@pytest.mark.parametrize(("kind", "column"), [(RLIMIT_AS, 0), (RLIMIT_DATA, 5)])
def test_the_limits_of_a_process_count(kind: int, column: int) -> None:
    """It really gets no more than it is told."""
    held = int(Path("/proc/self/statm").read_text().split()[column]) * getpagesize()
    soft, hard = getrlimit(kind)
    setrlimit(kind, (held + GIGABYTE // 2, hard))
    try:
        usable, bound = min(usable_memory())
        assert 0 < usable <= GIGABYTE // 2 + (1 << 24)  # some may have been freed in between
        assert "limit of its" in bound
        assert len(bytearray(usable // 2)) == usable // 2
        with pytest.raises(MemoryError):
            bytearray(usable + GIGABYTE // 4)
    finally:
        setrlimit(kind, (soft, hard))


def test_nothing_is_refused_that_fits() -> None:
    check_fits(1 << 20)
