"""Results for readers: HTML pages, tables, prediction files, and output on the terminal."""
