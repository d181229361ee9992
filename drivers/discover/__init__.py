"""Search for rules: small programs that compute the same."""
