"""The import table breaks on what it forbids, on the project's own rows."""

import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

from tools.import_table import Table, broken_imports, parse_rows

ROOT = Path(__file__).resolve().parents[2]


def contracts() -> list[dict[str, object]]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: list[dict[str, object]] = config["tool"]["importlinter"]["contracts"]
    return found


def project_table() -> Table:
    rows = next(contract["rows"] for contract in contracts() if contract["type"] == "import_table")
    assert isinstance(rows, list)
    return parse_rows(rows)


def broken(importer: str, imported: str) -> list[str]:
    """What the project's table says of a graph with this one import."""
    graph = grimp.ImportGraph()
    for module in (importer, imported):
        graph.add_module(module)
    graph.add_import(importer=importer, imported=imported)
    return list(broken_imports(graph, project_table()))


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("controlplane.model.slots", "controlplane.base.logging"),
        ("controlplane.base.logging", "controlplane.model.cards"),
        ("controlplane.store.client", "controlplane.cluster.leader"),
        ("controlplane.store.client", "akv.v1.plan_pb2"),
        ("controlplane.cluster.leader", "controlplane.gateway.poll"),
        ("controlplane.gateway.poll", "controlplane.cluster.leader"),
        ("controlplane.gateway.poll", "dataplane.config"),
        ("controlplane.gateway.poll", "akv.etcd.etcd_pb2"),
        ("controlplane.exporters.card", "controlplane.store.client"),
        ("controlplane.cluster.leader", "controlplane.apps.awide_cluster"),
        ("dataplane.servicer", "controlplane.model.slots"),
        ("integration.client.session", "dataplane._native"),
        ("integration.client.session", "akv.v1.plan_pb2"),
        ("clustercli.main", "controlplane.store.client"),
        ("bench.replay", "controlplane.apps.akv"),
    ],
)
def test_an_import_outside_its_row_is_named(importer: str, imported: str) -> None:
    lines = broken(importer, imported)
    assert len(lines) == 1
    assert f"{importer} imports {imported}" in lines[0]


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("controlplane.cluster.leader", "controlplane.model.health"),
        ("controlplane.gateway.poll", "akv.v1.dataplane_pb2"),
        ("controlplane.apps.awide_cluster", "controlplane.cluster.service"),
        ("dataplane.config", "controlplane.base.gateway_config"),
        ("dataplane.servicer", "dataplane._native"),
        ("clustercli.main", "akv.v1.cluster_pb2"),
    ],
)
def test_an_import_in_its_row_is_allowed(importer: str, imported: str) -> None:
    assert broken(importer, imported) == []


def test_a_package_without_a_row_is_named() -> None:
    graph = grimp.ImportGraph()
    graph.add_module("novelty.main")
    assert list(broken_imports(graph, project_table())) == ["novelty.main has no row in the import table"]


def test_a_row_without_an_arrow_is_refused() -> None:
    with pytest.raises(ValueError, match="has no '->'"):
        parse_rows(["controlplane.model"])


def test_a_controlplane_package_has_a_row_of_its_own() -> None:
    packages = {f"controlplane.{path.parent.name}" for path in ROOT.glob("controlplane/*/__init__.py")}
    assert packages <= set(project_table())


def test_the_linter_fails_on_a_clock_in_the_model(tmp_path: Path) -> None:
    """The real program, over a copy of the configuration and a model that reads the clock."""
    packages = (
        "akv",
        "controlplane",
        "controlplane/model",
        "clustercli",
        "integration",
        "dataplane",
        "bench",
    )
    for package in packages:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "controlplane/model/debounce.py").write_text("import time\n\nNOW = time.monotonic()\n")
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    (tmp_path / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    # -S and an own path: the editable install would lead to this project's packages.
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]; from importlinter.cli import lint_imports; "
        "sys.exit(lint_imports(no_cache=True))"
    )
    site_packages = [path for path in sys.path if path.endswith("site-packages")]
    result = subprocess.run(
        [sys.executable, "-S", "-c", script, str(tmp_path), *site_packages],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "controlplane.model.debounce -> time" in result.stdout
