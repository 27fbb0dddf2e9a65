"""Who may do what in etcd: its users are the names in certificates, its roles are two.

A host is `root`, a gateway may read what it polls and no more, everyone else is nobody to etcd. etcd knows
users by the common name of their certificate (client-cert-auth) and none of them has a password.
"""

from __future__ import annotations

from akv.etcd import etcd_pb2 as pb

from controlplane.base.backoff import Tries
from controlplane.store import kv, schema
from controlplane.store.client import EtcdClient, Q, R, Rpc
from controlplane.store.errors import OutcomeUnknown, Refusal, RequestRefused, StoreUnavailable

ROOT_ROLE = "root"
# etcd can't enable its authentication before a user of this name exists. No certificate has it.
ROOT_USER = "root"
GATEWAY_ROLE = "gateway"
READABLE_BY_GATEWAYS = (schema.CLUSTER_PREFIX, schema.TARGETS_PREFIX)
AUTH_CALL_SECONDS = 2.0
_TRIES = 4


async def enable_access_control(client: EtcdClient, host: str) -> None:
    """Make the roles, make `host` an administrator, and let nobody in any more who is no user.

    Can be repeated at any time. Raises StoreError.
    """
    await _add_role(client, GATEWAY_ROLE)
    for prefix in READABLE_BY_GATEWAYS:
        permission = pb.Permission(kind=pb.Permission.READ, key=prefix, range_end=kv.prefix_end(prefix))
        request = pb.RoleGrantPermissionRequest(role=GATEWAY_ROLE, permission=permission)
        await _repeat(client, lambda e: e.auth.RoleGrantPermission, request)
    await _add_role(client, ROOT_ROLE)
    for user in (ROOT_USER, host):
        await add_user(client, user, ROOT_ROLE)
    await _repeat(client, lambda e: e.auth.AuthEnable, pb.AuthEnableRequest())


async def add_user(client: EtcdClient, name: str, role: str) -> None:
    """Let who has certificates with this common name act in `role`. Can be repeated. Raises StoreError."""
    request = pb.UserAddRequest(name=name, options=pb.UserAddOptions(no_password=True))
    await _repeat(client, lambda e: e.auth.UserAdd, request, Refusal.NAME_EXISTS)
    await _repeat(client, lambda e: e.auth.UserGrantRole, pb.UserGrantRoleRequest(user=name, role=role))


async def remove_user(client: EtcdClient, name: str) -> None:
    """Let the owner of certificates with this common name do nothing any more. Raises StoreError.

    The roles go first: etcd 3.5.30 was seen to let a user that was only deleted read on with the roles it
    had, in about every other run of a test, on old connections and new ones.
    """
    for role in await _roles_of(client, name):
        revoked = pb.UserRevokeRoleRequest(name=name, role=role)
        await _repeat(client, lambda e: e.auth.UserRevokeRole, revoked, Refusal.ROLE_NOT_GRANTED)
    request = pb.UserDeleteRequest(name=name)
    await _repeat(client, lambda e: e.auth.UserDelete, request, Refusal.USER_NOT_FOUND)


async def _roles_of(client: EtcdClient, name: str) -> list[str]:
    """Nothing where there is no such user."""
    try:
        answer = await client.read(lambda e: e.auth.UserGet, pb.UserGetRequest(name=name))
    except RequestRefused as refused:
        if refused.refusal is not Refusal.USER_NOT_FOUND:
            raise
        return []
    return list(answer.roles)


async def _add_role(client: EtcdClient, name: str) -> None:
    await _repeat(client, lambda e: e.auth.RoleAdd, pb.RoleAddRequest(name=name), Refusal.NAME_EXISTS)


async def _repeat(client: EtcdClient, rpc: Rpc[Q, R], request: Q, done: Refusal | None = None) -> None:
    """Call what does the same when it is repeated, until its answer is known; `done`: it was so already."""
    async for _ in Tries(_TRIES):
        try:
            await client.write(rpc, request, AUTH_CALL_SECONDS)
        except OutcomeUnknown:
            continue
        except RequestRefused as refused:
            if refused.refusal is not done:
                raise
        return
    raise StoreUnavailable(f"etcd gave no answer to any of {_TRIES} tries to change who may do what")
