"""Numbers and times of compiled programs."""
