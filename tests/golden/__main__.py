"""Write the recorded numbers anew: ``python -m tests.golden [FILE]``."""

import sys
from pathlib import Path

from tests.golden.record import FILE, write

write(Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)
