"""Serves the text of the status file over HTTP. Apart: only those who ask for it load an HTTP server."""

from __future__ import annotations

from aiohttp import web

from controlplane.base.addresses import HostPort
from controlplane.gateway.status_writer import MetricsAddressError, StatusWriter


async def serve_metrics(address: HostPort, writer: StatusWriter) -> web.AppRunner:
    """Serve the status text at /metrics until the runner is cleaned up. Raises MetricsAddressError."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=writer.text, content_type="text/plain")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, address.host, address.port).start()
    except OSError as error:
        await runner.cleanup()
        reason = error.strerror or error
        raise MetricsAddressError(f"{str(address)!r} can't be listened on: {reason}; change it") from error
    return runner
