"""Programs from other frameworks."""
