"""Workers that a user asked for by ``--workers``: a located fault where they cannot be had."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mlirules.language.faults import MlirulesError
from mlirules.support.pool import Pool, Unusable, pool

__all__ = ["workers"]


@contextlib.contextmanager
def workers(spec: str) -> Iterator[Pool]:
    """``"2"``: processes here; ``"dask://HOST:PORT"``: a Dask cluster's. They end with it.

    Raises MlirulesError, also where they turn out to be of no use later on.
    """
    made = None
    try:
        made = pool(spec)
        yield made
    except Unusable as error:
        if error.extra:
            raise MlirulesError.not_installed(
                "--workers", str(error), error.extra, besides=", here and where the workers run"
            ) from None
        raise MlirulesError.at(
            "--workers", str(error), code="workers", suggestion=error.suggestion
        ) from error
    finally:
        if made is not None:
            made.close()
