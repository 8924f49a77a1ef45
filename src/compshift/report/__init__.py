"""Reports of results: HTML pages, tables, prediction files, and terminal output."""
