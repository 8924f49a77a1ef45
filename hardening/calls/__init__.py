"""Every public function with every kind of bad input."""
