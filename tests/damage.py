"""Damages input files as a disk, an editor, another program or an attacker would.

Every function takes a good input and a `random.Random` of Hypothesis, which can shrink it.
"""

import copy
import io
import json
import struct
import tomllib
import warnings
import zipfile
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import numpy as np
import tomli_w

Damage = Callable[[bytes, Random], bytes]
"""From the bytes of a good file to those of a damaged one (which may still be good)."""

ZIP_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)

MAX_EXACT = 2.0**53
"""Above it a whole number can't be changed by a half."""

HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 0.5, -0.5, 1e-308, 1e308, -1e308, 2**31, 2**63, -(2**63), 2**64,
    10**400, float("nan"), float("inf"), float("-inf"), "", "0", "nan", "a\x00b", "é\n\r\u2028💥",
    "../../x", "</script><img src=x onerror=alert(1)>", "[red]{{ 7*7 }}%s", "x" * 5000, [], {},
    [[]], [None], {"": None}, [1, "a"], [1.5] * 40, {"a": {"b": [1]}},
)  # fmt: skip
"""Values that are wrong almost wherever they are put."""


def of_bytes(data: bytes, rnd: Random) -> bytes:
    """Damage bytes in one to three places: cut, flip, overwrite, delete, double or insert some."""
    damaged = bytearray(data)
    for _ in range(rnd.choice((1, 1, 2, 3))):
        at = rnd.randrange(len(damaged) + 1)
        many = rnd.choice((1, 1, 2, 4, 8, 64, 1000))
        match rnd.randrange(7):
            case 0:
                del damaged[at:]
            case 1:
                damaged[at : at + 1] = bytes(
                    b ^ (1 << rnd.randrange(8)) for b in damaged[at : at + 1]
                )
            case 2:
                damaged[at : at + many] = bytes([rnd.randrange(256)]) * many
            case 3:
                del damaged[at : at + many]
            case 4:
                damaged[at:at] = damaged[at : at + many]
            case 5:
                damaged[at : at + 4] = rnd.choice((b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"))
            case _:
                damaged[at:at] = rnd.choice((b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\xc3("))
    return bytes(damaged)


def of_tree(tree: Any, rnd: Random) -> Any:
    """Delete, rename, double or replace one to three keys or items of a tree."""
    tree = copy.deepcopy(tree)
    for _ in range(rnd.choice((1, 1, 1, 2, 3))):
        places = _places(tree)
        if not places:
            return rnd.choice(HOSTILE_VALUES)
        inside, key = rnd.choice(places)
        match rnd.randrange(8):
            case 0:
                del inside[key]
            case 1 if isinstance(inside, dict):
                inside[rnd.choice(("", "config", f"{key}x", "ä\n", "round"))] = inside.pop(key)
            case 1 | 2 if isinstance(inside, list):
                inside.insert(key, copy.deepcopy(inside[key]))
            case 3 if isinstance(inside, list):
                rnd.shuffle(inside)
            case 4 if isinstance(inside[key], int | float) and abs(inside[key]) < MAX_EXACT:
                inside[key] = rnd.choice((-inside[key], inside[key] * 1000, inside[key] + 0.5))
            case 5:
                inside[key] = copy.deepcopy(rnd.choice(rnd.choice(places)[:1]))
            case _:
                inside[key] = copy.deepcopy(rnd.choice(HOSTILE_VALUES))
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of the tree."""
    keys = (
        list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    )
    return [each for key in keys for each in ((tree, key), *_places(tree[key]))]


def of_json(data: bytes, rnd: Random) -> bytes:
    """JSON with other values, or with damaged bytes."""
    return of_bytes(data, rnd) if rnd.random() < 0.3 else _dump(of_tree(json.loads(data), rnd))


def of_json_lines(data: bytes, rnd: Random) -> bytes:
    """JSON Lines with other values or lines, or with damaged bytes."""
    if rnd.random() < 0.3:
        return of_bytes(data, rnd)
    lines = [json.loads(line) for line in data.splitlines()]
    if rnd.random() < 0.2:
        lines = of_tree(lines, rnd)
        lines = lines if isinstance(lines, list) else [lines]
    else:
        at = rnd.randrange(len(lines))
        lines[at] = of_tree(lines[at], rnd)
    return b"\n".join(map(_dump, lines)) + b"\n"


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def of_toml(data: bytes, rnd: Random) -> bytes:
    """TOML with other values, or with damaged bytes."""
    if rnd.random() < 0.3:
        return of_bytes(data, rnd)
    altered = of_tree(tomllib.loads(data.decode()), rnd)
    return tomli_w.dumps(toml_values(altered) if isinstance(altered, dict) else {}).encode()


def toml_values(value: Any) -> Any:
    """The value without None, which TOML can't express."""
    if isinstance(value, dict):
        return {key: toml_values(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [toml_values(each) for each in value if each is not None]
    return value


def of_csv(data: bytes, rnd: Random) -> bytes:
    """A table with other cells, rows or columns, or with damaged bytes."""
    if rnd.random() < 0.3:
        return of_bytes(data, rnd)
    rows = of_tree([line.split(",") for line in data.decode().splitlines()], rnd)
    if not isinstance(rows, list):
        return str(rows).encode()
    lines = [",".join(map(str, row)) if isinstance(row, list) else str(row) for row in rows]
    return ("\n".join(lines) + "\n").encode()


def of_safetensors(data: bytes, rnd: Random) -> bytes:
    """Tensors under other names, of other shapes, types or places than their header says."""
    if rnd.random() < 0.3:
        return of_bytes(data, rnd)
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    match rnd.randrange(3):
        case 0:
            text = _dump(of_tree(header, rnd))
        case 1:
            text, size = _dump(header), rnd.choice((0, 1, 2**31, 2**63, 2**64 - 1))
            return struct.pack("<Q", size) + text + body
        case _:  # NaN and other numbers that the header allows
            text, body = _dump(header), rnd.choice((b"\xff", b"\0", b"\x7f\x80")) * len(body)
    return struct.pack("<Q", len(text)) + text + body[: 8 * (len(body) // 8)]


def of_npz(data: bytes, rnd: Random) -> bytes:
    """Arrays with other names, shapes or types, false headers, or damaged bytes."""
    if rnd.random() < 0.3:
        return of_bytes(data, rnd)
    with np.load(io.BytesIO(data)) as file:
        arrays = dict(file)
    out, key = io.BytesIO(), rnd.choice(sorted(arrays))
    with zipfile.ZipFile(out, "w", rnd.choice(ZIP_COMPRESSIONS)) as archive:
        for name, array in arrays.items():
            content, member = npy(array), f"{name}.npy"
            if name == key:
                match rnd.randrange(5):
                    case 0:
                        content = npy(_with_other_values(array, rnd))
                    case 1:
                        content = with_false_header(array, rnd)
                    case 2:
                        content = of_bytes(content, rnd)
                    case 3:
                        member = rnd.choice(("../x.npy", "/x.npy", "y.npy", "x", "X.npy", ".npy"))
                    case _:
                        continue
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # a name twice
                archive.writestr(member, content)
    return out.getvalue()


def npy(array: Any) -> bytes:
    """The array as numpy writes it."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def with_false_header(array: Any, rnd: Random) -> bytes:
    """The array as numpy writes it, but with a wrong header."""
    header: dict[str, Any] = {
        "descr": array.dtype.str,
        "fortran_order": False,
        "shape": array.shape,
    }
    false_values: Mapping[str, tuple[Any, ...]] = {
        "shape": (
            (2**40, 2**20),
            (2**62,),
            (-1,),
            (),
            (0,),
            (10**30,),
            (True,),
            "x",
            (1.5,),
            (3, 0),
        ),
        "descr": (
            "|O",
            "<f8",
            "<U9",
            "|V0",
            "<M8[s]",
            "nope",
            [("a", "<f4")],
            "<c16",
            "|S0",
            "<f2",
        ),
        "fortran_order": (True, 3, None),
        "more": (1,),
    }
    which = rnd.choice(sorted(false_values))
    header[which] = rnd.choice(false_values[which])
    text = repr(header).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(array.tobytes())


def _with_other_values(array: Any, rnd: Random) -> Any:
    """The array with other values, of another shape or another type."""
    array = np.array(array)
    match rnd.randrange(4):
        case 0:
            shapes = ((-1,), (1, -1), (-1, 1), (1, 1, -1), array.shape[::-1])
            return array.reshape(rnd.choice(shapes))
        case 1:
            return array[: rnd.choice((0, 1, 2))]
        case 2:
            kinds = ("f2", "f8", "u1", "i8", "b", "U5", "c8", "O", "M8[s]", "u8", "S3")
            return np.asarray(array.astype(float).round(), dtype=float).astype(rnd.choice(kinds))
    wild = np.array(array, dtype=np.float64)
    if wild.size:
        wild.flat[rnd.randrange(wild.size)] = rnd.choice((np.nan, np.inf, -1, 1e300, 2.0**63, 0.5))
    return wild
