"""Matching rules against IR."""
