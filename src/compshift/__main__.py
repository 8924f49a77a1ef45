"""Entry point of ``python -m compshift``, the same as the ``compshift`` command."""

from compshift.cli.main import main

if __name__ == "__main__":
    main()
