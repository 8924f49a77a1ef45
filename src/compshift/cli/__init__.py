"""The command line: parses options and calls the other packages, which do the work."""
