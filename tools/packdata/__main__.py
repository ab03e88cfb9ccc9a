"""The command ``packdata``, also as ``python -m packdata``."""

import sys


def main() -> int:
    """Import the command and run it; an interrupt while libraries are imported ends it in one line, too."""
    try:
        from packdata import cli

        return cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("packdata: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
