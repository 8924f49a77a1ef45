"""Walk over a pickle without building anything, so that one that would fill the memory is refused before it does.

A reader of pickles makes room for whatever number an instruction names: thirteen bytes are enough to have it take many
gigabytes. In a pickle that a program wrote, no text is longer than what is left of the file, and no more things are
remembered than there are bytes.
"""

from __future__ import annotations

import pickletools
import re
from mmap import mmap

REMEMBER, REMEMBER_TEXT = ord("r"), ord("p")
STOP = ord(".")
REFUSED = ("EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER", "LONG_BINPUT", "PUT", "STOP")
"""Instructions that no cache has, or that are looked at one by one."""

LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
"""How many bytes tell the length of what follows."""


def _tables() -> tuple[re.Pattern[bytes], dict[int, int]]:
    """A pattern of instructions that can be passed over, and those whose length is told by their first bytes."""
    fixed: dict[int, bytes] = {}
    lines: dict[int, bytes] = {}
    counted = {}
    for instruction in pickletools.opcodes:
        code, argument = ord(instruction.code), instruction.arg
        if instruction.name in REFUSED:
            continue
        size = 0 if argument is None else argument.n
        if size >= 0:
            fixed[size] = fixed.get(size, b"") + bytes([code])
        elif size == pickletools.UP_TO_NEWLINE:
            number = 2 if argument is not None and "pair" in argument.name else 1
            lines[number] = lines.get(number, b"") + bytes([code])
        else:
            counted[code] = LENGTHS[size]
    parts = [b"[%s].{%d}" % (re.escape(codes), size) for size, codes in fixed.items()]
    parts += [b"[%s](?:[^\n]*\n){%d}" % (re.escape(codes), number) for number, codes in lines.items()]
    return re.compile(b"(?:%s)*+" % b"|".join(parts), re.DOTALL), counted


PASSED_OVER, COUNTED = _tables()


def pickle_end(content: bytes | mmap, start: int = 0) -> int:
    """Where the pickle that begins at ``start`` ends; a ValueError if it is cut off, or asks for too much memory."""
    size = len(content)
    position = start
    while True:
        run = PASSED_OVER.match(content, position)
        position = position if run is None else run.end()
        if position >= size:
            raise ValueError("it is cut off")
        code = content[position]
        position += 1
        if code == STOP:
            return position
        if code in COUNTED:
            width = COUNTED[code]
            position += width + int.from_bytes(content[position : position + width], "little")
        elif code == REMEMBER:
            _check_number(int.from_bytes(content[position : position + 4], "little"), size)
            position += 4
        elif code == REMEMBER_TEXT:
            end = content.find(b"\n", position, position + 20)
            _check_number(int(content[position:end]) if end >= 0 else size, size)
            position = end + 1
        else:
            raise ValueError(f"it has the instruction {code}, which no cache needs")


def _check_number(number: int, size: int) -> None:
    if not 0 <= number < size:
        raise ValueError(f"it has {size} bytes and remembers {number + 1} things: it was made to fill the memory")
