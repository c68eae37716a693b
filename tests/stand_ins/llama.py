"""A llama of drawn weights in llama.cpp's format: its speed is that of a trained one, and its text means nothing.

``SERVER`` is the program that serves it by llama.cpp's own server: ``python llama_server.py PORT``.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

SERVER = '''"""Serves model.gguf by llama.cpp's server until it is ended."""

import signal
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = "model.gguf"
params.hostnames = ["0.0.0.0"]
params.port = int(sys.argv[1])
params.n_ctx = 1024
params.n_parallel = 1  # sums of several requests in one batch round otherwise, and give other words
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
signal.pause()
'''
WIDTH, INNER, LAYERS, HEADS, WORDS = 256, 1024, 6, 4, 1000
_ALIGNMENT = 32
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9
"""The types of values, as ggml's ``gguf.h`` numbers them."""
_FORMATS = {_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f"}


def write_llama(path: Path) -> None:
    """Write a model whose most likely tokens are words: neither its end nor parts of characters."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256]
    special = len(tokens)
    tokens += [f"\N{LOWER ONE EIGHTH BLOCK}w{number}" for number in range(WORDS)]
    kinds += [_NORMAL] * WORDS
    values = {
        "general.architecture": _value(_STRING, "llama"),
        "llama.context_length": _value(_UINT32, 2048),
        "llama.embedding_length": _value(_UINT32, WIDTH),
        "llama.block_count": _value(_UINT32, LAYERS),
        "llama.feed_forward_length": _value(_UINT32, INNER),
        "llama.attention.head_count": _value(_UINT32, HEADS),
        "llama.attention.layer_norm_rms_epsilon": _value(_FLOAT32, 1e-5),
        "llama.rope.dimension_count": _value(_UINT32, WIDTH // HEADS),
        "tokenizer.ggml.model": _value(_STRING, "llama"),
        "tokenizer.ggml.tokens": _array(_STRING, tokens),
        "tokenizer.ggml.scores": _array(_FLOAT32, [-float(number) for number in range(len(tokens))]),
        "tokenizer.ggml.token_type": _array(_INT32, kinds),
        "tokenizer.ggml.unknown_token_id": _value(_UINT32, 0),
        "tokenizer.ggml.bos_token_id": _value(_UINT32, 1),
        "tokenizer.ggml.eos_token_id": _value(_UINT32, 2),
    }
    tensors = _tensors(len(tokens), special)
    described = b""
    data = b""
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        described += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += _padded(tensor.astype("<f4").tobytes())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    pairs = b"".join(_text(name) + value for name, value in values.items())
    path.write_bytes(_padded(head + pairs + described) + data)


def _tensors(tokens: int, special: int) -> Mapping[str, np.ndarray]:
    rng = np.random.default_rng(1)

    def drawn(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, columns**-0.5, (rows, columns))

    tensors = {"token_embd.weight": drawn(tokens, WIDTH), "output_norm.weight": np.ones(WIDTH)}
    tensors["output.weight"] = drawn(tokens, WIDTH)
    tensors["output.weight"][:special] = 0
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"{block}.{name}.weight"] = drawn(WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            tensors[f"{block}.{name}.weight"] = drawn(INNER, WIDTH)
        tensors[f"{block}.ffn_down.weight"] = drawn(WIDTH, INNER)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"{block}.{name}.weight"] = np.ones(WIDTH)
    return tensors


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _bare(kind: int, value: str | float) -> bytes:
    if isinstance(value, str):
        return _text(value)
    return struct.pack(_FORMATS[kind], value)


def _value(kind: int, value: str | float) -> bytes:
    return struct.pack("<I", kind) + _bare(kind, value)


def _array(kind: int, values: list[str] | list[float] | list[int]) -> bytes:
    return struct.pack("<IIQ", _ARRAY, kind, len(values)) + b"".join(_bare(kind, value) for value in values)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)
