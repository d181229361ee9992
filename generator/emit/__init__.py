"""What rules become: PDLL, PDL, transform specs, tuning specs."""
