"""What mlirules asks of the compiler's own constraints."""

from iree.compiler.ir import Operation

def convert_constraints_op_to_smtlib(
    constraints_op: Operation, emit_reset: bool = False
) -> str: ...
