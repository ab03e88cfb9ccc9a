"""``python -m loaders.bench``."""

import sys

from loaders.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
