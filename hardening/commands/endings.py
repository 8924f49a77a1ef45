"""How each command ended on input of which nobody says beforehand whether it is good: a change of mind is seen.

``endings.txt`` has a line for each. If a change is meant, ``python -m hardening.commands.endings`` writes it anew.
"""

import json
from pathlib import Path
from typing import Literal

FILE = Path(__file__).with_name("endings.txt")
Told = Literal["answer", "refuse"]


def read_endings() -> dict[str, Told]:
    """The ending of each command, by its label; nothing where there is no list yet."""
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []
    pairs = (line.split(" ", 1) for line in lines)
    return {json.loads(label): ending for ending, label in pairs}  # type: ignore[misc]


def write_endings(endings: dict[str, Told]) -> None:
    """Write the list; labels are JSON, as they may hold any sign."""
    lines = (f"{ending} {json.dumps(label)}\n" for label, ending in sorted(endings.items()))
    FILE.write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Run every command, and write how it ended."""
    from hardening.commands import call, part

    call.KNOWN = None
    for tally in part.run():
        print(f"{tally.part}: {tally.tried} tried, {len(tally.failures)} failures")
    write_endings(call.ENDED)


if __name__ == "__main__":
    main()
