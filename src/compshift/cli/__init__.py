"""The command line: options and their values; the work is done in the other packages."""
