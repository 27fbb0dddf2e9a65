"""A language model of random weights as a GGUF file: it says nothing sensible, and says it for real."""

from __future__ import annotations

import random
import struct
from pathlib import Path

_U32, _I32, _F32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_ALIGNMENT = 32
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_WIDTH, _HEADS, _INNER, _CONTEXT = 32, 4, 64, 512


def write_tiny_model(path: Path) -> None:
    """Write the model; always the same one."""
    tokens = _tokens()
    shapes = _shapes(len(tokens))
    chance = random.Random(1)
    infos, data = b"", b""
    for name, shape in shapes.items():
        count = 1
        for size in shape:
            count *= size
        norm = name.endswith("norm.weight")
        values = [1.0 if norm else chance.gauss(0.0, 0.2) for _ in range(count)]
        infos += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += _padded(struct.pack(f"<{count}f", *values))
    pairs = _metadata(tokens)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(pairs)) + b"".join(pairs) + infos
    path.write_bytes(_padded(head) + data)


def _tokens() -> list[tuple[str, float, int]]:
    """Text, score and kind of each: the three special ones, every byte, and a few letters."""
    special = [("<unk>", 0.0, _UNKNOWN), ("<s>", 0.0, _CONTROL), ("</s>", 0.0, _CONTROL)]
    letters = [(text, -float(n), _NORMAL) for n, text in enumerate("▁etaoinshrdlu")]
    return special + [(f"<0x{n:02X}>", 0.0, _BYTE) for n in range(256)] + letters


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    layer = {
        "attn_norm": (_WIDTH,),
        "attn_q": (_WIDTH, _WIDTH),
        "attn_k": (_WIDTH, _WIDTH),
        "attn_v": (_WIDTH, _WIDTH),
        "attn_output": (_WIDTH, _WIDTH),
        "ffn_norm": (_WIDTH,),
        "ffn_gate": (_WIDTH, _INNER),
        "ffn_up": (_WIDTH, _INNER),
        "ffn_down": (_INNER, _WIDTH),
    }
    return {
        "token_embd.weight": (_WIDTH, vocabulary),
        "output_norm.weight": (_WIDTH,),
        "output.weight": (_WIDTH, vocabulary),
        **{f"blk.0.{name}.weight": shape for name, shape in layer.items()},
    }


def _metadata(tokens: list[tuple[str, float, int]]) -> list[bytes]:
    numbers = {
        "llama.context_length": _CONTEXT,
        "llama.embedding_length": _WIDTH,
        "llama.block_count": 1,
        "llama.feed_forward_length": _INNER,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _HEADS,
        "llama.rope.dimension_count": _WIDTH // _HEADS,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    texts = {"general.architecture": "llama", "general.name": "tiny", "tokenizer.ggml.model": "llama"}
    return [
        *(_pair(key, _STRING, _text(text)) for key, text in texts.items()),
        *(_pair(key, _U32, struct.pack("<I", number)) for key, number in numbers.items()),
        _pair("llama.attention.layer_norm_rms_epsilon", _F32, struct.pack("<f", 1e-5)),
        _list("tokenizer.ggml.tokens", _STRING, [_text(text) for text, _, _ in tokens]),
        _list("tokenizer.ggml.scores", _F32, [struct.pack("<f", score) for _, score, _ in tokens]),
        _list("tokenizer.ggml.token_type", _I32, [struct.pack("<i", kind) for _, _, kind in tokens]),
    ]


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _list(key: str, kind: int, values: list[bytes]) -> bytes:
    return _pair(key, _ARRAY, struct.pack("<IQ", kind, len(values)) + b"".join(values))


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)
