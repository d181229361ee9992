"""The compiler's package: what mlirules imports of it has a stub beside this one."""
