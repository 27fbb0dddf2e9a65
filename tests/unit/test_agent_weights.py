"""Weights: what counts as one set, and removal that harms nothing, whatever is asked and done meanwhile."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from controlplane.agent.starts import paths_in
from controlplane.agent.weights import removal, roots
from controlplane.agent.weights.removal import KeptError, empty_trash, remove_weights
from controlplane.agent.weights.roots import WeightRoot, read_weights, resolve_roots, size_of

PROC = Path("/proc")


class Node:
    """A root of weights with a model in it, a shared root, and something precious outside."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root, self.shared, self.outside = base / "w", base / "s", base / "precious"
        for folder in (self.root / "model", self.shared / "model", self.outside):
            folder.mkdir(parents=True)
            (folder / "file").write_bytes(b"x" * 4096)
        self.roots = [WeightRoot(self.root, self.root, False), WeightRoot(self.shared, self.shared, True)]

    def remove(self, path: Path | str, *in_use: str) -> int:
        return remove_weights(str(path), self.roots, in_use, PROC)

    def whole(self) -> bool:
        """Whether everything that must never go is there."""
        return (self.outside / "file").exists() and (self.shared / "model" / "file").exists()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path.resolve())


def test_a_model_is_removed_and_its_bytes_counted(node: Node) -> None:
    assert node.remove(node.root / "model") == 4096
    assert list(node.root.iterdir()) == []
    assert node.whole()


def test_a_single_file_deep_in_a_model_is_removed(node: Node) -> None:
    assert node.remove(node.root / "model" / "file") == 4096
    assert (node.root / "model").is_dir()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "not an absolute path"),
        ("model", "not an absolute path"),
        ("{root}/model\0", "not an absolute path"),
        ("/", "none of this node's"),
        ("/etc", "none of this node's"),
        ("{base}", "none of this node's"),
        ("{root}", "a weight folder itself"),
        ("{root}/", "a weight folder itself"),
        ("{root}//", "a weight folder itself"),
        ("{root}/.", r"\. or \.\. in it"),
        ("{root}/../precious", r"\. or \.\. in it"),
        ("{root}/model/../../precious", r"\. or \.\. in it"),
        ("{root}x", "none of this node's"),
        ("{shared}/model", "others use too"),
        ("{root}/nothing", "not there"),
        ("{root}/model/file/deeper", "a link, or not a folder"),
        ("{root}/.akv-trash-1", "the agent's own"),
    ],
)
def test_paths_that_are_kept(node: Node, path: str, reason: str) -> None:
    text = path.format(root=node.root, shared=node.shared, base=node.base)
    with pytest.raises(KeptError, match=reason):
        node.remove(text)
    assert (node.root / "model" / "file").exists()
    assert node.whole()


def test_links_are_neither_followed_nor_removed(node: Node) -> None:
    (node.root / "link").symlink_to(node.outside)
    (node.root / "model" / "up").symlink_to("../../precious")
    for path in ("link", "link/file", "model/up", "model/up/file"):
        with pytest.raises(KeptError, match="a link"):
            node.remove(node.root / path)
    node.remove(node.root / "model")
    assert node.whole()


def test_a_root_that_is_named_through_a_link_counts(node: Node) -> None:
    (node.base / "alias").symlink_to(node.root)
    node.roots = resolve_roots([(node.base / "alias", False)], PROC)
    node.remove(node.base / "alias" / "model")
    assert not (node.root / "model").exists()


def test_what_a_shard_uses_is_kept(node: Node) -> None:
    model = node.root / "model"
    for used in (model, model / "file", node.root):
        with pytest.raises(KeptError, match="a shard uses"):
            node.remove(model, str(used))
    (node.base / "name").symlink_to(model)
    with pytest.raises(KeptError, match="a shard uses"):
        node.remove(model, str(node.base / "name" / "file"))


def test_what_another_model_links_to_is_kept(node: Node) -> None:
    (node.root / "other").mkdir()
    (node.root / "other" / "weights").symlink_to(node.root / "model" / "file")
    with pytest.raises(KeptError, match="other/weights leads to it"):
        node.remove(node.root / "model")
    node.remove(node.root / "other")
    node.remove(node.root / "model")
    assert node.whole()


def test_a_link_of_a_shared_root_protects_too(node: Node) -> None:
    (node.shared / "borrowed").symlink_to(node.root / "model")
    with pytest.raises(KeptError, match="borrowed leads to it"):
        node.remove(node.root / "model")


def test_a_shared_root_inside_an_own_one_is_kept(node: Node) -> None:
    inner = node.root / "model" / "inner"
    inner.mkdir()
    node.roots.append(WeightRoot(inner, inner, True))
    for path in (node.root / "model", inner / "x"):
        with pytest.raises(KeptError, match=r"below it|others use"):
            node.remove(path)


def test_pipes_and_sockets_are_kept(node: Node) -> None:
    os.mkfifo(node.root / "pipe")
    with pytest.raises(KeptError, match="neither a file nor a folder"):
        node.remove(node.root / "pipe")


def test_mounted_file_systems_are_kept(node: Node, tmp_path: Path) -> None:
    mounted = node.root / "model" / "mounted"
    mounted.mkdir()
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    line = f"30 1 0:26 / {mounted} rw,relatime shared:1 - nfs4 server:/x rw\n"
    (proc / "self" / "mountinfo").write_text(line)
    with pytest.raises(KeptError, match="mounted"):
        remove_weights(str(node.root / "model"), node.roots, (), proc)


def test_a_folder_that_is_replaced_meanwhile_is_put_back(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the rename, the name gets to be something else."""

    def replace(place: removal.Place, roots: object) -> None:
        place.path.rename(node.base / "moved")
        place.path.symlink_to(node.outside)

    monkeypatch.setattr(removal, "_refuse_links", replace)
    with pytest.raises(KeptError, match="replaced by something else"):
        node.remove(node.root / "model")
    assert (node.root / "model").is_symlink()
    assert (node.base / "moved" / "file").exists()
    assert node.whole()


def test_a_race_with_one_who_swaps_folders_for_links_never_leaves_the_root(node: Node) -> None:
    """Someone swaps a folder on the way for a link to the precious one, again and again."""
    way, aside = node.root / "way", node.root / "aside"
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            with suppress(OSError):
                way.rename(aside)
                way.symlink_to(node.outside)
            with suppress(OSError):
                way.unlink()
                aside.rename(way)

    way.mkdir()
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for number in range(300):
            for place in (way, aside):
                with suppress(OSError):
                    (place / "file").write_bytes(b"%d" % number)
                    break
            (node.outside / "file").write_bytes(b"precious")
            with suppress(KeptError):
                node.remove(way / "file")
            assert (node.outside / "file").exists()
    finally:
        stop.set()
        thread.join()


def test_an_interrupted_removal_is_finished(node: Node) -> None:
    (node.root / "model").rename(node.root / ".akv-trash-00")
    (node.root / ".akv-trash-00" / "out").symlink_to(node.outside)
    (node.shared / ".akv-trash-00").mkdir()
    empty_trash(node.roots)
    assert list(node.root.iterdir()) == []
    assert (node.shared / ".akv-trash-00").exists()
    assert node.whole()


def test_what_counts_as_weights(node: Node) -> None:
    hub = node.root / "hub" / "models--a--b"
    (hub / "blobs").mkdir(parents=True)
    (hub / "blobs" / "1").write_bytes(b"y" * 8192)
    (hub / "snapshots").symlink_to("blobs")
    (node.root / "single.gguf").write_bytes(b"z" * 4096)
    (node.root / ".akv-part-x").write_bytes(b"z" * 4096)
    (node.root / "link").symlink_to(node.outside)
    found = {weights.path: (weights.size_bytes, weights.shared) for weights in read_weights(node.roots)}
    assert found == {
        str(hub): (8192, False),
        str(node.root / "model"): (4096, False),
        str(node.root / "single.gguf"): (4096, False),
        str(node.shared / "model"): (4096, True),
    }


def test_a_hard_link_counts_once(node: Node) -> None:
    os.link(node.root / "model" / "file", node.root / "model" / "again")
    assert size_of(node.root / "model") == 4096


def test_a_root_on_a_network_file_system_is_shared(node: Node, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    lines = f"30 1 0:26 / {node.root} rw - nfs4 server:/x rw\n31 1 8:1 / / rw - ext4 /dev/sda rw\n"
    (proc / "self" / "mountinfo").write_text(lines)
    roots = resolve_roots([(node.root, False), (node.outside, False), (node.base / "none", False)], proc)
    assert [(root.path, root.shared) for root in roots] == [(node.root, True), (node.outside, False)]


def test_more_weights_than_one_message_holds_are_not_all_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a folder with very many files would keep the node from ever registering."""
    monkeypatch.setattr(roots, "MAX_SETS", 3)
    for number in range(5):
        (tmp_path / f"w{number}").write_bytes(b"x")
    told = roots.read_weights([roots.WeightRoot(tmp_path, tmp_path, shared=False)])
    assert [Path(one.path).name for one in told] == ["w0", "w1", "w2"]


def test_names_that_are_no_utf8_hide_nothing(node: Node) -> None:
    """They can't be sent as they are, and the other weights have to be told all the same."""
    name = os.fsdecode(b"caf\xe9")
    (node.root / name).write_bytes(b"z" * 4096)
    found = [weights.path for weights in read_weights(node.roots)]
    assert found == [f"{node.root}/caf\\xe9", str(node.root / "model"), str(node.shared / "model")]
    (node.root / name).unlink()
    (node.root / name).symlink_to(node.root / "model")
    with pytest.raises(KeptError, match=r"caf\\xe9 leads to it") as kept:
        node.remove(node.root / "model")
    str(kept.value).encode()


def test_a_folder_that_was_bound_in_on_the_way_is_kept(node: Node, tmp_path: Path) -> None:
    """It is of the same file system, so that nothing but the mount tells."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    line = f"30 1 8:1 /srv/shared {node.root}/model rw,relatime shared:1 - ext4 /dev/sda rw\n"
    (proc / "self" / "mountinfo").write_text(line)
    with pytest.raises(KeptError, match="mounted at"):
        remove_weights(str(node.root / "model" / "file"), node.roots, (), proc)
    assert (node.root / "model" / "file").exists()


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("{root}/model", True),
        ("--model={root}/model/file", True),
        ("--draft={root}/other,{root}/model/file", True),
        ("{root}", True),
        ("/", False),
        ("{root}/mode", False),
        ("https://host{root}/model", False),
    ],
)
def test_weights_that_a_command_names_are_in_use(node: Node, word: str, kept: bool) -> None:
    used = paths_in(word.format(root=node.root))
    if kept:
        with pytest.raises(KeptError, match="a shard uses"):
            node.remove(node.root / "model", *used)
    else:
        node.remove(node.root / "model", *used)
    assert (node.root / "model").exists() == kept


def test_the_trash_of_this_life_is_not_taken_for_that_of_an_earlier_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is cleaned up beside removals that are under way."""
    delete = removal._delete

    def slowly(name: str, parent: int) -> None:
        empty_trash(node.roots)
        delete(name, parent)

    monkeypatch.setattr(removal, "_delete", slowly)
    assert node.remove(node.root / "model") == 4096
    assert list(node.root.iterdir()) == []
