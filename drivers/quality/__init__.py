"""Is it right? Tests of rules, verification, bisection, reduction."""
