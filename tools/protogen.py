"""Generate the protobuf and gRPC modules, with type stubs where mypy-protobuf is installed.

Usage: protogen.py SOURCE_ROOT OUTPUT_DIR

Everything generated is in the package `akv`: `akv.v1` from protos/akv/v1, and `akv.etcd` from the subset of
etcd's API that controlplane/store owns (only controlplane/store may import that one).
"""

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc


def generate(root: Path, out: Path) -> int:
    """Write akv/v1/*_pb2*.py and akv/etcd/etcd_pb2*.py below `out`; returns protoc's exit code."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".protogen-") as scratch:
        fresh = Path(scratch) / "gen"
        fresh.mkdir()
        code = compile_protos(root, fresh)
        if code == 0:
            replace_tree(fresh, out)
    return code


def compile_protos(root: Path, out: Path) -> int:
    """Run protoc over akv.v1 and the etcd subset that controlplane/store owns."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    include = Path(str(protoc.__file__)).parent / "_proto"
    outputs = [f"--python_out={out}", f"--grpc_python_out={out}"]
    if importlib.util.find_spec("mypy_protobuf") is not None:
        outputs += [f"--mypy_out={out}", f"--mypy_grpc_out={out}"]
    sources = [f"-I{root / 'protos'}", f"-Iakv/etcd={root / 'controlplane/store'}", f"-I{include}"]
    ours = [
        str(file.relative_to(root / "protos")) for file in sorted((root / "protos/akv/v1").glob("*.proto"))
    ]
    code = int(protoc.main(["protoc", *sources, *outputs, *ours, "akv/etcd/etcd.proto"]))
    if code:
        return code
    for package in ("akv", "akv/v1", "akv/etcd"):
        (out / package / "__init__.py").touch()
    return 0


def replace_tree(fresh: Path, out: Path) -> None:
    """Put `fresh` in the place of `out`, so that a reader never meets a half-written folder."""
    if out.exists():
        out.rename(fresh.parent / "old")
    shutil.move(fresh, out)


if __name__ == "__main__":
    sys.exit(generate(Path(sys.argv[1]), Path(sys.argv[2])))
