"""The dialects that have Python modules."""
