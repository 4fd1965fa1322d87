"""``python -m isomorph`` is the command ``isomorph``."""

from isomorph.cli.main import main

if __name__ == "__main__":
    main()
