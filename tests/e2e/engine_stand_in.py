"""An engine for tests of tools: a control socket that says what it is told to, and nothing else."""
import socket
import threading


class StandIn:
    """Answers by verb, each a list of lines for the n-th time it is asked.

    A verb's function gets n, from 0, and the request. `requests` has all that were asked.
    """

    def __init__(self, path, answers):
        self.answers, self.asked, self.requests = answers, {}, []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection, connection.makefile("rb") as requests:
            for request in requests:
                self.requests.append(request.decode().strip())
                verb = request.decode().split()[0]
                n = self.asked[verb] = self.asked.get(verb, -1) + 1
                connection.sendall("".join(line + "\n" for line in self.answers[verb](n, request.decode().strip())).encode())

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
