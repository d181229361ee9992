"""A BERT of two layers (the shape of BERT-tiny): the program of `mlirules demo`.

Run this file, where PyTorch and transformers are installed, to write specs/demo again: the program
as bytecode with seeded weights, PyTorch's inputs and results beside it.
"""

import io
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

SIZES = {
    "vocab_size": 512,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "max_position_embeddings": 64,
    "num_labels": 4,
}


def demo_bert() -> tuple[torch.nn.Module, tuple[()], dict[str, torch.Tensor]]:
    """The model with random weights, and a sentence of 32 tokens whose last 4 are padding."""
    model = BertForSequenceClassification(BertConfig(**SIZES))
    for parameter in model.parameters():
        if parameter.dim() == 2:  # as drawn, every sentence would get nearly the same answer
            torch.nn.init.normal_(parameter, std=0.1)
    ids = torch.randint(1, SIZES["vocab_size"], (1, 32))
    mask = torch.ones(1, 32, dtype=torch.int64)
    mask[:, 28:] = 0
    return model, (), {"input_ids": ids, "attention_mask": mask}


def without_places(file: Path) -> None:
    """Take the paths of this machine's Python files out of a program."""
    from mlirules.drivers.iree import compiler, program
    from mlirules.support import files

    module = program.of_bytecode(file, compiler.context())
    compiler.run_passes(module, "builtin.module(strip-debuginfo)")
    made = io.BytesIO()
    module.operation.write_bytecode(made)
    files.write(file, made.getvalue())


if __name__ == "__main__":
    from mlirules.drivers.frontend.torch import import_file
    from mlirules.support import package

    demo = package.SPECS / "demo"
    import_file(f"{__file__}:demo_bert", demo / "bert.mlirbc", golden=demo / "bert.npz")
    without_places(demo / "bert.mlirbc")
