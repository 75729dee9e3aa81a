"""Values of match fields and parameters: numbers, addresses, and their bytes in P4Runtime."""

from __future__ import annotations

import ipaddress
import re

from .binaries import RackError

MAC = re.compile(r"[0-9a-fA-F]{1,2}(:[0-9a-fA-F]{1,2}){5}")


def parse(value: object, bits: int) -> int:
    """The number of a value: an integer, or text with a number or an IPv4, IPv6 or Ethernet address.

    A negative number is its two's complement. RackError if the text is no value or does not fit.
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise RackError(f"{value!r} is no value: write a number or an address")
    number, width = (value, 0) if isinstance(value, int) else _of_text(value.strip())
    if width > bits:
        raise RackError(f'"{value}" is an address of {width} bits, but the field has {bits}')
    if number < 0 and number >= -(1 << (bits - 1)):
        number += 1 << bits
    if not 0 <= number < 1 << bits:
        raise RackError(f"{value} does not fit in {bits} bits")
    return number


def _of_text(text: str) -> tuple[int, int]:
    """The number and, of an address, its width in bits."""
    if MAC.fullmatch(text):
        return int("".join(part.zfill(2) for part in text.split(":")), 16), 48
    if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)", text):
        sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
        # int() refuses leading zeros of a decimal number unless the base is given.
        return sign * int(digits, 0 if digits[:2].lower() in ("0x", "0b") else 10), 0
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise RackError(
            f'"{text}" is no value: write a number (17, 0x11, 0b10001) or an IPv4, IPv6 or Ethernet address'
        ) from None
    return int(address), address.max_prefixlen


def to_bytes(number: int) -> bytes:
    """The shortest bytes of a number, as P4Runtime returns them."""
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")


def of_bytes(data: bytes) -> int:
    """The number in these bytes."""
    return int.from_bytes(data, "big")


def hexadecimal(number: int, bits: int) -> str:
    """The digits of a number, two for each byte of its field, as simple_switch_CLI prints them."""
    return f"{number:0{(bits + 7) // 8 * 2}x}"


def encoded(value: object, bits: int) -> bytes:
    """The bytes of a value in P4Runtime; a type without bits is a string. RackError as `parse`."""
    return to_bytes(parse(value, bits)) if bits else str(value).encode()


def shown(data: bytes, bits: int) -> str:
    """The text of a value from its bytes in P4Runtime; a type without bits is a string."""
    return hexadecimal(of_bytes(data), bits) if bits else data.decode(errors="replace")
