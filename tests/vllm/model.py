"""The model that all engines of these tests serve: the project's tiny one, with tools, unweighted.

Written into a temporary folder. Engines are told to invent its weights, so no file holds any; an
adapter's are random numbers in the layout of safetensors.
"""

import json
import random
import shutil
import struct
from array import array
from pathlib import Path

import simulate

NAME = "tiny-qwen3"
ADAPTER = "tiny-adapter"
BLOCK = 32
"""Tokens of a block; vLLM's attention on the CPU takes multiples of 32."""

LAYERS, HIDDEN, RANK = 2, 64, 8
WIDTHS = {"q_proj": 128, "v_proj": 64}


def write(folder: Path) -> Path:
    """Write the model: configuration, tokenizer, and a chat template that shows tools."""
    shutil.copytree(Path(simulate.__file__).parent / "model", folder)
    template = folder / "chat_template.jinja"
    template.unlink()
    template.write_bytes(Path(__file__).with_name("chat_template.jinja").read_bytes())
    return folder


def write_adapter(folder: Path) -> Path:
    """Write an adapter of random weights."""
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": NAME,
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(WIDTHS),
        "fan_in_fan_out": False,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    shapes = {}
    for layer in range(LAYERS):
        for name, width in WIDTHS.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            shapes[f"{place}.lora_A.weight"] = (RANK, HIDDEN)
            shapes[f"{place}.lora_B.weight"] = (width, RANK)
    (folder / "adapter_model.safetensors").write_bytes(_tensors(shapes))
    return folder


def _tensors(shapes: dict[str, tuple[int, int]]) -> bytes:
    """Return random 32-bit floats of these shapes: length of the header, header, numbers."""
    dice = random.Random(1)
    header, numbers = {}, array("f")
    for name, (rows, columns) in shapes.items():
        begin = 4 * len(numbers)
        numbers.extend(dice.gauss(0, 0.02) for _ in range(rows * columns))
        offsets = [begin, 4 * len(numbers)]
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": offsets}
    described = json.dumps(header).encode()
    return struct.pack("<Q", len(described)) + described + numbers.tobytes()
