"""Run by test_scenarios inside namespaces of its own: what the faults do to one TCP port.

two_faults.py             exit 0 if they do what they say
two_faults.py SECONDS     stays that long, once its network is up, and says "up"
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import IO

from chaos.faults import Cut, CutOneWay, Delay
from chaos.worlds import contain, hosts

PORT = 2379
SERVE = f"""
import socket
server = socket.create_server(('', {PORT}))
print('up', flush=True)
while True:
    heard = server.accept()[0].recv(100)
    if heard:
        print(heard.decode(), flush=True)
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).close()"
SPEAK = """
import signal, socket, sys
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print('connected', flush=True)
signal.sigwait([signal.SIGUSR1])
there.send(b'still here')
signal.pause()
"""
DELAY_MS = 400


def connect_s(client: hosts.Host, server: hosts.Host) -> float | None:
    """How long a TCP handshake takes; None if there is none within a second."""
    began = time.monotonic()
    try:
        client.run((sys.executable, "-S", "-E", "-c", CONNECT, server.address, str(PORT)))
    except subprocess.CalledProcessError:
        return None
    return time.monotonic() - began


def serve(host: hosts.Host) -> IO[str]:
    """What it heard, a line each."""
    server = host.spawn((sys.executable, "-S", "-E", "-c", SERVE))
    assert server.stdout is not None
    assert server.stdout.readline() == "up\n"
    return server.stdout


def one_way(client: hosts.Host, server: hosts.Host, heard: IO[str]) -> None:
    """Over a connection that is there, what is said arrives; another cannot be opened."""
    speaker = client.spawn((sys.executable, "-S", "-E", "-c", SPEAK, server.address, str(PORT)))
    assert speaker.stdout is not None
    assert speaker.stdout.readline() == "connected\n"
    fault = CutOneWay(client, PORT)
    fault.inject()
    speaker.send_signal(signal.SIGUSR1)
    assert heard.readline() == "still here\n", "the fault cut the way to the server, too"
    assert connect_s(client, server) is None, "an answer came back"
    assert fault.heal() > 0, "the fault counted nothing"
    assert connect_s(client, server) is not None, "the fault was not healed"
    speaker.kill()
    speaker.communicate()


def main(stay_s: float) -> None:
    contain.prepare()
    there = hosts.build({"one": "10.77.0.11", "two": "10.77.0.12"})
    one, two = there["one"], there["two"]
    heard = serve(two)
    if stay_s:
        print("up", flush=True)
        time.sleep(stay_s)
        return
    cut, delay = Cut(one, PORT), Delay(one, PORT, DELAY_MS)
    assert connect_s(one, two) is not None, "the network does not work"
    cut.inject()
    assert connect_s(one, two) is None, "the cut let a packet through"
    assert cut.heal() > 0, "the cut counted nothing"
    assert cut.heal() == 0, "healing twice is not idempotent"
    assert connect_s(one, two) is not None, "the cut was not healed"
    one_way(one, two, heard)
    delay.inject()
    took_s = connect_s(one, two)
    assert took_s is not None, "the delay let nothing through"
    assert took_s >= DELAY_MS / 1000, "the delay did not delay"
    assert delay.heal() > 0, "the delay counted nothing"


if __name__ == "__main__":
    if contain.contained():
        main(float(sys.argv[1]) if sys.argv[1:] else 0.0)
    else:
        sys.exit(contain.enter([sys.executable, *sys.argv]))
