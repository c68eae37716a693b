"""The far end of the ping-pong, a program: ``python3 -m worker.probes.echo ADDRESS`` prints its port."""

import socket
import sys

MESSAGE_BYTES = 64
PATIENCE_S = 60.0


def serve(address: str) -> None:
    """Send back what comes until the peer has gone."""
    with socket.create_server((address, 0)) as listener:
        listener.settimeout(PATIENCE_S)
        print(listener.getsockname()[1], flush=True)
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(None)  # the accepted socket would have a poll before every call
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while message := peer.recv(MESSAGE_BYTES, socket.MSG_WAITALL):
                peer.sendall(message)


if __name__ == "__main__":
    serve(sys.argv[1])
