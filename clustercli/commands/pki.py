"""Certificates: pki issue, renew, revoke, token, show."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from akv.v1 import pki_pb2
from akv.v1.pki_pb2_grpc import PkiServiceStub
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from clustercli.call import REFUSED, USAGE, CallError
from clustercli.session import READ_SECONDS, session_of
from controlplane.base.credentials import CredentialFiles, CredentialsError, write_credentials
from controlplane.base.pki import Identity, PkiError, Role, checked_name, key_pem, make_request, new_key

app = typer.Typer(help="Certificates of the cluster's CA (AWC_SECURITY=mtls).", no_args_is_help=True)
ISSUED_ROLES = (Role.ADMIN, Role.GATEWAY, Role.AGENT)


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="pki")


@app.command("issue")
def issue(
    context: typer.Context,
    role: Annotated[Role, typer.Option(help="admin, gateway or agent.")],
    name: Annotated[str, typer.Option(help="Whose it is: one name for each pod, node or person.")],
    out: Annotated[Path, typer.Option(help="Directory for ca.pem, cert.pem and key.pem.")],
    days: Annotated[int, typer.Option(min=1, max=825, help="How long it is valid.")] = 365,
) -> None:
    """Make a key here and have its certificate signed; the key goes nowhere."""
    session = session_of(context)
    if role not in ISSUED_ROLES:
        raise CallError("pki issue: hosts get their certificates by add_node --token", USAGE)
    files = CredentialFiles.in_directory(out)
    _refuse_existing(files)
    key, identity = new_key(), _identity(role, name)
    request = pki_pb2.IssueCertificateRequest(
        role=role.value, name=name, request_pem=make_request(key, identity).decode(), days=days
    )
    answer = session.call(
        "pki issue", lambda stub: stub.IssueCertificate, request, READ_SECONDS, PkiServiceStub
    )
    document = _store(files, answer, key_pem(key), identity)
    session.show(
        document, lambda d: f"{d['role']} {d['name']}: {d['cert']}, valid until {_time(d['expires'])}"
    )


@app.command("renew")
def renew(context: typer.Context) -> None:
    """Replace the files of --ca, --cert and --key by a fresh certificate of the same role and name."""
    session = session_of(context)
    credentials, files = session.target.credentials, session.target.files
    if credentials is None or files is None:
        raise CallError("pki renew: name what is to be renewed by --ca, --cert and --key", USAGE)
    key = new_key()
    request = pki_pb2.RenewCertificateRequest(request_pem=make_request(key, credentials.identity).decode())
    answer = session.call(
        "pki renew", lambda stub: stub.RenewCertificate, request, READ_SECONDS, PkiServiceStub
    )
    document = _store(files, answer, key_pem(key), credentials.identity)
    session.show(document, lambda d: f"{d['role']} {d['name']} is valid until {_time(d['expires'])}")


@app.command("revoke")
def revoke(
    context: typer.Context,
    name: Annotated[str, typer.Option(help="Whose certificates are to be refused from now on.")],
) -> None:
    """Refuse every certificate of a name, for ever; the name is not given again."""
    session = session_of(context)
    request = pki_pb2.RevokeNameRequest(name=name)
    answer = session.call("pki revoke", lambda stub: stub.RevokeName, request, READ_SECONDS, PkiServiceStub)
    document = {"role": answer.role, "name": name}
    session.show(document, lambda d: f"The certificates of {d['role']} {d['name']} are refused from now on")


@app.command("token")
def token(
    context: typer.Context,
    ttl: Annotated[int, typer.Option(min=60, max=2592000, help="Seconds for which it can be used.")] = 86400,
) -> None:
    """Make a one-time token with which one more host can join."""
    session = session_of(context)
    request = pki_pb2.CreateTokenRequest(ttl_seconds=ttl)
    answer = session.call("pki token", lambda stub: stub.CreateToken, request, READ_SECONDS, PkiServiceStub)
    session.show({"token": answer.token, "expires": answer.expires}, lambda d: str(d["token"]))


@app.command("show")
def show(context: typer.Context) -> None:
    """Show the CA, the certificates that it signed, and open join tokens."""
    session = session_of(context)
    request = pki_pb2.GetPkiRequest()
    answer = session.call("pki show", lambda stub: stub.GetPki, request, READ_SECONDS, PkiServiceStub)
    session.show(pki_document(answer), pki_table)


def pki_document(answer: pki_pb2.GetPkiResponse) -> dict[str, Any]:
    """The answer for programs; times are Unix seconds."""
    return {
        "ca": {"fingerprint": answer.ca_fingerprint, "expires": answer.ca_expires},
        "certificates": [
            {
                "role": c.role,
                "name": c.name,
                "serial": c.serial,
                "expires": c.expires,
                "issued_by": c.issued_by,
                "revoked": c.revoked,
            }
            for c in sorted(answer.certificates, key=lambda c: (c.role, c.name))
        ],
        "tokens": [{"token_id": token.token_id, "expires": token.expires} for token in answer.tokens],
    }


def pki_table(document: dict[str, Any]) -> RenderableType:
    """The answer for people."""
    table = Table(title="certificates", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("role", "name", "valid until", "serial", "signed by"):
        table.add_column(heading)
    for item in document["certificates"]:
        until = "revoked" if item["revoked"] else _time(item["expires"])
        table.add_row(item["role"], item["name"], until, item["serial"], item["issued_by"])
    ca = document["ca"]
    lines = [f"CA {ca['fingerprint']}, valid until {_time(ca['expires'])}"]
    lines += [f"open join token {t['token_id']}, until {_time(t['expires'])}" for t in document["tokens"]]
    return Group(table, "\n".join(lines))


def _identity(role: Role, name: str) -> Identity:
    try:
        return Identity(role, checked_name(name))
    except PkiError as error:
        raise CallError(f"pki issue: {error}", USAGE) from None


def _refuse_existing(files: CredentialFiles) -> None:
    for path in (files.certificate, files.key):
        if path.exists():
            raise CallError(f"pki issue: {path} exists: choose another --out, or use pki renew", REFUSED)


def _store(files: CredentialFiles, answer: Any, key: bytes, identity: Identity) -> dict[str, Any]:
    """Write the three files and read them back as a program will."""
    try:
        write_credentials(files, answer.ca_pem.encode(), answer.certificate_pem.encode(), key)
        loaded = files.load()
    except (OSError, CredentialsError) as error:
        raise CallError(f"the certificate of {identity} was not stored: {error}", REFUSED) from None
    return {
        "role": loaded.identity.role.value,
        "name": loaded.identity.name,
        "ca": str(files.ca),
        "cert": str(files.certificate),
        "key": str(files.key),
        "expires": loaded.certificate.not_valid_after_utc.timestamp(),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%MZ")
