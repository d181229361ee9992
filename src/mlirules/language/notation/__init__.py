"""The two notations of a rule: op equations and index equations, and the expressions in them."""
