"""Files of others, damaged and hostile."""
