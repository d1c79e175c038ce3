"""Run the command line with ``python -m semel``."""

from semel.cli.main import main

if __name__ == "__main__":
    main()
