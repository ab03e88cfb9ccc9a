"""``python -m packdata``: the same as the command ``packdata``."""

import sys

from packdata.cli import main

if __name__ == "__main__":
    sys.exit(main())
