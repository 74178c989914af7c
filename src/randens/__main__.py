"""``python -m randens``: the command line."""

from randens.cli.main import main

if __name__ == "__main__":
    main()
