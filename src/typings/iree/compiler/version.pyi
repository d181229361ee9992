"""The compiler's release and the commits that it was made of."""

VERSION: str
REVISIONS: dict[str, str]
