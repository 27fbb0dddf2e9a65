"""The test helpers themselves: a cluster comes up, a member can be lost, suspended and brought back."""

from tests.support.etcd import EtcdCluster
from tests.support.procs import wait_until


def test_cluster_survives_member_faults(etcd_cluster: EtcdCluster) -> None:
    follower = etcd_cluster.follower()
    follower.running.kill()
    assert etcd_cluster.leader() is not follower
    etcd_cluster.restart(follower)

    leader = etcd_cluster.leader()
    leader.running.suspend()
    assert leader.status() is None
    wait_until(lambda: etcd_cluster.leader() is not leader, "another leader")
    leader.running.resume()
    wait_until(leader.has_leader, "the resumed member follows")
