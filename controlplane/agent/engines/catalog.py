"""Engines that this agent can install: what to ask pip for, and how to run what it installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Variant:
    """How one variant is installed: more arguments and variables for pip."""

    pip_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineKind:
    """One engine. `{version}` and `{env}` (the environment) are filled in where they stand in its words.

    `probe` must exit 0 in a fresh environment; `package` is the distribution whose version counts.
    `requirements` is a file with hashes that pip then wants for everything (--require-hashes). `variants`
    are those that can be installed here; without any, every node gets the same.
    """

    name: str
    package: str
    requirement: str
    command: tuple[str, ...]
    probe: tuple[str, ...]
    pip_arguments: tuple[str, ...] = ()
    requirements: str = ""
    variants: Mapping[str, Variant] = field(default_factory=dict)

    def choose(self, wanted: str, *, has_cuda: bool) -> str | None:
        """The variant to install: the wanted one, or what the node's GPUs ask for; None = there is none."""
        if not self.variants:
            return ""
        choice = wanted or ("cuda" if has_cuda and "cuda" in self.variants else "cpu")
        return choice if choice in self.variants else None

    def filled(self, words: Sequence[str], version: str, environment: Path) -> tuple[str, ...]:
        """`words` with their placeholders replaced."""
        return tuple(word.replace("{version}", version).replace("{env}", str(environment)) for word in words)


BUILT_IN: Mapping[str, EngineKind] = {
    kind.name: kind
    for kind in (
        EngineKind(
            name="vllm",
            package="vllm",
            requirement="vllm=={version}",
            command=("{env}/bin/vllm", "serve"),
            probe=("{env}/bin/python", "-c", "import vllm"),
            variants={"cuda": Variant()},
        ),
        EngineKind(
            name="sglang",
            package="sglang",
            requirement="sglang[all]=={version}",
            command=("{env}/bin/python", "-m", "sglang.launch_server"),
            probe=("{env}/bin/python", "-c", "import sglang"),
            variants={"cuda": Variant()},
        ),
        EngineKind(
            name="llamacpp",
            package="llama-cpp-python",
            requirement="llama-cpp-python[server]=={version}",
            command=("{env}/bin/python", "-m", "llama_cpp.server"),
            probe=("{env}/bin/python", "-c", "import llama_cpp.server"),
            variants={"cpu": Variant(), "cuda": Variant(environment={"CMAKE_ARGS": "-DGGML_CUDA=on"})},
        ),
    )
}
