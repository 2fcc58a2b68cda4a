"""Damaged and forged files: bytes changed at random, and headers edited by somebody who then signs the file again."""

import hashlib
import json
import math
import random
import struct
from typing import Any

BLANK = "0" * 64
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**40, -(10**40), 0.5, -0.0, math.nan, math.inf, -math.inf, 1e308,
    "", "x", "../../etc/passwd", "/etc/passwd", "\0", "__class__", "float64", "torch.float64", "0" * 64,
    [], {}, [[]], {"a": {}}, [1, 2, 3],
    "é" * 1000, ["../x"], {"kind": "Linear", "in_features": 10**6, "out_features": 10**6, "bias": True}, [[1, 1]], [-1, 2],
]  # fmt: skip


def damaged(data: bytes, draw: random.Random) -> bytes:
    """A few bytes flipped, cut, inserted, doubled, swapped or set to numbers that lengths trip over."""
    content = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        at = draw.randrange(len(content) + 1) if draw.random() < 0.7 else draw.randrange(min(len(content), 64) + 1)
        kind = draw.randrange(8)
        if kind == 0 and content:
            content[min(at, len(content) - 1)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del content[at:]
        elif kind == 2:
            content[at:at] = draw.randbytes(draw.randrange(1, 9))
        elif kind == 3:
            del content[at : at + draw.randrange(1, 33)]
        elif kind == 4:
            piece = content[at : at + draw.randrange(1, 65)]
            content[at:at] = piece * draw.randrange(1, 4)
        elif kind == 5:
            size = draw.choice([1, 2, 4, 8])
            content[at : at + size] = draw.choice([b"\0", b"\xff", b"\x7f", b"\x80"]) * size
        elif kind == 6:
            content[at : at + 8] = struct.pack("<Q", draw.choice([0, 1, 2**31, 2**32, 2**40, 2**63, 2**64 - 1]))
        else:
            other = draw.randrange(len(content) + 1)
            content[at : at + 16], content[other : other + 16] = content[other : other + 16], content[at : at + 16]
    return bytes(content)


def edited(value: Any, draw: random.Random) -> Any:
    """JSON with something in it replaced, renamed, left out, repeated or wrapped."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        kind = draw.randrange(8)
        if kind == 0:
            return {name: part for name, part in value.items() if name != key}
        if kind == 1:
            return {draw.choice(["", "x", "../x", key + "x", "__init__"]) if name == key else name: part
                    for name, part in value.items()}  # fmt: skip
        return {name: edited(part, draw) if name == key else part for name, part in value.items()}
    if isinstance(value, list) and value and draw.random() < 0.7:
        at, kind = draw.randrange(len(value)), draw.randrange(5)
        if kind == 0:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return value[: at + 1] + value[at:]
        return [edited(part, draw) if k == at else part for k, part in enumerate(value)]
    if isinstance(value, int | float) and not isinstance(value, bool) and draw.random() < 0.4:
        return draw.choice([value + 1, value - 1, -value, value * 2, value / 2, value * 1e30])
    if draw.random() < 0.02:  # lists in lists in lists
        for _ in range(draw.choice([3, 3000])):
            value = [value]
        return value
    return draw.choice(ODD)


def forged(data: bytes, draw: random.Random) -> bytes:
    """A safetensors file of the library with another header or other numbers, its sha256 right again."""
    length = int.from_bytes(data[:8], "little")
    header, tensors = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    about = json.loads(header["__metadata__"]["ntkgp"])
    kind = draw.random()
    if kind < 0.6:
        about["facts"] = edited(about["facts"], draw)
    elif kind < 0.7:
        about = edited(about, draw)
    elif kind < 0.85:
        header = edited(header, draw)
    elif tensors:
        at = draw.randrange(len(tensors))
        tensors[at : at + 8] = struct.pack("<d", draw.choice([0.0, -1.0, 1e308, math.nan, math.inf, 1e-308]))
    try:
        if isinstance(about, dict) and isinstance(header, dict) and isinstance(header.get("__metadata__"), dict):
            about["sha256"] = BLANK
            header["__metadata__"]["ntkgp"] = json.dumps(about)
        text = json.dumps(header).encode()
    except RecursionError:  # as deep as JSON can be written by other tools
        about = '{"format": 2, "sha256": "' + BLANK + '", "facts": ' + "[" * 100_000 + "]" * 100_000 + "}"
        text = json.dumps({"__metadata__": {"ntkgp": about}}).encode()
    whole = struct.pack("<Q", len(text)) + text + bytes(tensors)
    digest = hashlib.sha256(whole).hexdigest()
    return whole.replace(BLANK.encode(), digest.encode(), 1)


def forged_facts(text: str, draw: random.Random) -> str:
    """The JSON of a model folder, changed and signed again."""
    facts = json.loads(text)
    facts.pop("sha256")
    kept = facts if draw.random() < 0.5 else {"network": facts["network"]}
    changed = edited(kept, draw)
    if isinstance(changed, dict):
        facts = {**facts, **changed} if kept is not facts else changed
        try:
            facts["sha256"] = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
            return json.dumps(facts)
        except (RecursionError, TypeError):
            return "[" * 5000
    return json.dumps(changed) if not isinstance(changed, list) else "[" * 5000
