"""What mlirules uses of the bindings' native module."""

class _Globals:
    dialect_search_modules: list[str]

globals: _Globals

def register_dialect(dialect_class: type) -> type: ...
