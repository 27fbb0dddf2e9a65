"""Generate the protobuf and gRPC modules (with type stubs where mypy-protobuf is installed).

Usage: protogen.py SOURCE_ROOT OUTPUT_DIR
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from grpc_tools import protoc


def generate(root: Path, out: Path) -> int:
    """Write akv/v1/*_pb2*.py and controlplane/store/etcd_pb2*.py below `out`; returns protoc's exit code."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    include = str(Path(str(protoc.__file__)).parent / "_proto")
    stubs = importlib.util.find_spec("mypy_protobuf") is not None
    jobs = [(root / "protos", sorted((root / "protos/akv/v1").glob("*.proto")))]
    etcd = root / "controlplane/store/etcd.proto"
    if etcd.exists():
        jobs.append((root, [etcd]))
    for base, files in jobs:
        args = ["protoc", f"-I{base}", f"-I{include}", f"--python_out={out}", f"--grpc_python_out={out}"]
        if stubs:
            args += [f"--mypy_out={out}", f"--mypy_grpc_out={out}"]
        code = int(protoc.main([*args, *map(str, files)]))
        if code:
            return code
    for package in ("akv", "akv/v1"):
        (out / package / "__init__.py").touch()
    return 0


if __name__ == "__main__":
    sys.exit(generate(Path(sys.argv[1]), Path(sys.argv[2])))
