"""``python -m compshift`` is the command line."""

from compshift.cli.main import main

if __name__ == "__main__":
    main()
