"""Spark's `hash`: Murmur3 with seed 42 over the values of some columns, in plain Python (Trident rules 1.5)."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from pipelines.graph.types import parts_of

SEED = 42
_MASK = 0xFFFFFFFF
_EPOCH = datetime.datetime(1970, 1, 1)
_MICRO = datetime.timedelta(microseconds=1)
_INTS = ("tinyint", "byte", "smallint", "short", "int", "integer")
_LONGS = ("bigint", "long")
_TIMES = ("timestamp", "timestamp_ntz", "timestamp_ltz")


def spark_hash(values: Sequence[Any], types: Sequence[str]) -> int:
    """Return what Spark's `hash(c1, c2, ...)` gives: an int of 32 bits.

    Args:
        values: one of each column; null changes nothing.
        types: their Spark SQL types, all of them `hashable`.
    """
    digest = SEED
    for value, kind in zip(values, types, strict=True):
        digest = _hash(value, kind, digest)
    return _signed(digest)


def hashable(kind: str) -> bool:
    """Return whether Spark hashes values of a type: maps and variants it does not, nor what holds them."""
    outer, parts = parts_of(kind)
    return outer.strip().lower() not in ("map", "variant") and all(hashable(part) for _, part in parts)


def task_of(values: Sequence[Any], types: Sequence[str], tasks: int) -> int:
    """Return the task that these values belong to: `pmod(hash(...), tasks)`."""
    return spark_hash(values, types) % tasks


def _hash(value: Any, kind: str, seed: int) -> int:
    if value is None:
        return seed
    if kind in _INTS:
        return _int(int(value), seed)
    if kind in _LONGS:
        return _long(int(value), seed)
    if kind == "boolean":
        return _int(int(value), seed)
    if kind in ("float", "real"):
        return _int(_bits(float(value), "<f", "<i", 0x7FC00000), seed)
    if kind == "double":
        return _long(_bits(float(value), "<d", "<q", 0x7FF8000000000000), seed)
    if kind == "date":
        return _int((value - _EPOCH.date()).days, seed)
    if kind in _TIMES:
        if value.tzinfo is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        return _long((value - _EPOCH) // _MICRO, seed)
    if kind.startswith("decimal"):
        return _decimal(value, kind, seed)
    if kind.startswith(("array<", "struct<", "void")):
        return _nested(value, kind, seed)
    return _bytes(value.encode() if isinstance(value, str) else bytes(value), seed)


def _nested(value: Any, kind: str, seed: int) -> int:
    outer, parts = parts_of(kind)
    if outer == "array":
        for item in value:
            seed = _hash(item, parts[0][1], seed)
    elif outer == "struct":
        items = value.values() if isinstance(value, Mapping) else value
        for item, (_, part) in zip(items, parts, strict=True):
            seed = _hash(item, part, seed)
    return seed


def _decimal(value: Decimal, kind: str, seed: int) -> int:
    digits = kind.removeprefix("decimal").strip("() ") or "10,0"
    precision, scale = (int(part) for part in (digits.split(",") if "," in digits else (digits, "0")))
    sign, numerals, exponent = Decimal(value).as_tuple()
    unscaled = int("".join(map(str, numerals)))
    shift = int(exponent) + scale
    unscaled = unscaled * 10**shift if shift >= 0 else unscaled // 10**-shift
    unscaled = -unscaled if sign else unscaled
    if precision <= 18:
        return _long(unscaled, seed)
    # As Java's BigInteger.toByteArray: the shortest two's complement, and room for a sign.
    bits = unscaled.bit_length() if unscaled >= 0 else (unscaled + 1).bit_length()
    return _bytes(unscaled.to_bytes(bits // 8 + 1, "big", signed=True), seed)


def _bits(value: float, floats: str, ints: str, not_a_number: int) -> int:
    """Return the bits of a float as an integer; all NaN alike, and minus zero as zero."""
    if value != value:
        return not_a_number
    bits: int = struct.unpack(ints, struct.pack(floats, 0.0 if value == 0 else value))[0]
    return bits


def _int(value: int, seed: int) -> int:
    return _last(_mixed(seed, value & _MASK), 4)


def _long(value: int, seed: int) -> int:
    return _last(_mixed(_mixed(seed, value & _MASK), (value >> 32) & _MASK), 8)


def _bytes(value: bytes, seed: int) -> int:
    """Return words of four bytes, then each byte that is left as a signed number of its own (unlike the textbook's Murmur3)."""
    whole = len(value) - len(value) % 4
    for (word,) in struct.iter_unpack("<I", value[:whole]):
        seed = _mixed(seed, word)
    for byte in value[whole:]:
        seed = _mixed(seed, (byte - 256 if byte > 127 else byte) & _MASK)
    return _last(seed, len(value))


def _mixed(seed: int, word: int) -> int:
    word = _rotated((word * 0xCC9E2D51) & _MASK, 15) * 0x1B873593 & _MASK
    return (_rotated(seed ^ word, 13) * 5 + 0xE6546B64) & _MASK


def _rotated(value: int, by: int) -> int:
    return ((value << by) | (value >> (32 - by))) & _MASK


def _last(digest: int, length: int) -> int:
    digest ^= length
    digest ^= digest >> 16
    digest = digest * 0x85EBCA6B & _MASK
    digest ^= digest >> 13
    digest = digest * 0xC2B2AE35 & _MASK
    return digest ^ (digest >> 16)


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
