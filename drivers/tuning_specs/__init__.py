"""Tuning specs: read, checked, linked, compiled with, and proven."""
