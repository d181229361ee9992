"""Search for fast lowering configurations: profile, enumerate, compile, measure, keep what wins.

One concept a module: :mod:`dispatches` cuts a program into its dispatches, :mod:`space` and
:mod:`constraints` say which configurations are valid, :mod:`ordering` which to try first,
:mod:`measure` compiles and times one, :mod:`workers` does that on several processes or machines,
:mod:`store` keeps every result, :mod:`tuner` is the whole search, :mod:`results` writes the rules
and :mod:`report` the page with the plots.
"""
