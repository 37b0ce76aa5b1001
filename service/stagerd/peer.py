"""Who is calling: the kernel's word for the peer of a Unix socket, not the message's."""

import asyncio
import socket
import struct

from uvicorn.protocols.http.h11_impl import H11Protocol


class PeerProtocol(H11Protocol):
    """HTTP whose `client` is (uid, pid) of the peer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        pid, uid, _ = struct.unpack(
            "3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        self.client = (str(uid), pid)
