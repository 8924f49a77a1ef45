"""Results for people: terminal tables, figures and files."""
