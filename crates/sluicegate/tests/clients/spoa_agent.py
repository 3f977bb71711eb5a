"""An agent of haproxyspoa, which prints its port. It answers the message `score` with variables that follow from the
arguments."""
import asyncio

from haproxyspoa.payloads.ack import AckPayload, ActionVarScope
from haproxyspoa.spoa_server import SpoaServer

AGENT = SpoaServer()


@AGENT.handler("score")
async def score(ip, path, length, absent):
    ack = AckPayload()
    ack.set_var(ActionVarScope.TRANSACTION, "text", f"{path} from {ip}, {absent}")
    ack.set_var(ActionVarScope.TRANSACTION, "number", length * 1000)
    ack.set_var(ActionVarScope.SESSION, "ip", ip)
    return ack


async def main():
    server = await asyncio.start_server(AGENT.handle_connection, "127.0.0.1", 0)
    print(f"port: {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


asyncio.run(main())
