"""A server that speaks ComfyUI's endpoints, for tests: POST /prompt, GET /history/<id>, GET and POST /queue, POST /interrupt,
POST /free, GET /system_stats, with the shapes that ComfyUI answers with.

Like ComfyUI it has one worker, which runs one job at a time, takes memory while it does, keeps it afterwards, and frees late:
/free answers at once and only leaves a note, which the worker acts on when it comes to it. Behaviour is set on the object:
`run_s`, `free_after_s` (None: never), `fail` (the job ends with an error), `peak_mib`. As a program it takes these as JSON, says its
address, and serves until its stdin ends.
"""
import json
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MIB = 1 << 20


class Comfy:
    def __init__(self, name="cuda:0 Some Card : cudaMallocAsync", total_mib=24000, free_mib=9000, run_s=0.4, free_after_s=0.3,
                 peak_mib=6000, fail=None, take=None, give=None, extra=None):
        self.name, self.total_mib, self.free_mib = name, total_mib, free_mib
        self.run_s, self.free_after_s, self.peak_mib, self.fail = run_s, free_after_s, peak_mib, fail
        self.take, self.give = take or (lambda: None), give or (lambda: None)  # what really takes and frees memory
        self.extra = extra or {}
        self.lock = threading.Condition()
        self.pending, self.running, self.history, self.number = [], None, {}, 0
        self.reserved_mib = self.active_mib = 0
        self.free_asked, self.interrupted, self.closed = None, False, False
        self.requests = []
        self.connections = []
        handler = type("Handler", (Handler,), {"comfy": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        for target in (self.server.serve_forever, self.work):
            threading.Thread(target=target, daemon=True).start()

    def die(self):
        """As by kill -9: nobody listens any more, connections break, its memory is free."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            self.lock.notify_all()
        self.server.shutdown()
        self.server.server_close()
        for connection in self.connections:
            try:
                connection.shutdown(2)
            except OSError:
                pass
        self.release()

    def release(self):
        if self.reserved_mib > 0:
            self.give()
        self.reserved_mib = self.active_mib = 0

    def work(self):
        while not self.closed:
            with self.lock:
                self.lock.wait(0.02)
                if self.closed:
                    return
                due = self.free_asked is not None and self.free_after_s is not None and \
                    time.monotonic() - self.free_asked >= self.free_after_s
                if due and self.running is None:
                    self.free_asked = None
                    self.release()
                if not self.pending:
                    continue
                self.running = self.pending.pop(0)
                self.interrupted = False
            self.run(self.running)

    def run(self, entry):
        messages = [["execution_start", {"prompt_id": entry[1], "timestamp": 1}]]
        self.take()
        self.reserved_mib = self.active_mib = self.peak_mib
        until = time.monotonic() + self.run_s
        while time.monotonic() < until and not self.interrupted and not self.closed:
            time.sleep(0.01)
        with self.lock:
            self.active_mib //= 4  # the models stay; torch keeps the rest, unused
            good = not self.fail and not self.interrupted
            if self.interrupted:
                messages.append(["execution_interrupted", {"prompt_id": entry[1], "node_id": "3", "node_type": "KSampler", "executed": []}])
            elif self.fail:
                messages.append(["execution_error", {"prompt_id": entry[1], "node_id": "3", "node_type": "KSampler", "executed": [],
                                                     "exception_message": self.fail, "exception_type": "RuntimeError",
                                                     "traceback": ["line 1\n"], "current_inputs": {}, "current_outputs": {}}])
            else:
                messages.append(["execution_success", {"prompt_id": entry[1], "timestamp": 2}])
            self.history[entry[1]] = {"prompt": entry, "outputs": {"9": {"images": [{"filename": "a.png"}]}} if good else {},
                                      "status": {"status_str": "success" if good else "error", "completed": good, "messages": messages},
                                      "meta": {}}
            self.running = None

    def stats(self):
        return {"system": {"os": "posix", "comfyui_version": "0.3.40", "python_version": "3.12", "ram_total": 1 << 36, "ram_free": 1 << 35},
                "devices": [{"name": self.name, "type": "cuda", "index": 0, "vram_total": self.total_mib * MIB,
                             "vram_free": (self.free_mib - self.active_mib) * MIB, "torch_vram_total": self.reserved_mib * MIB,
                             "torch_vram_free": (self.reserved_mib - self.active_mib) * MIB, **self.extra}]}

    def post_prompt(self, body):
        workflow = body.get("prompt")
        if not workflow:
            return 400, {"error": {"type": "no_prompt", "message": "No prompt provided", "details": "", "extra_info": {}}, "node_errors": {}}
        wrong = {node: {"errors": [{"type": "value_not_in_list", "message": "Value not in list", "details": "ckpt_name: 'none' not in []",
                                    "extra_info": {}}], "dependent_outputs": ["9"], "class_type": said["class_type"]}
                 for node, said in workflow.items() if said.get("inputs", {}).get("ckpt_name") == "none"}
        if wrong and len(wrong) == len(workflow):
            return 400, {"error": {"type": "prompt_outputs_failed_validation", "message": "Prompt outputs failed validation", "details": "",
                                   "extra_info": {}}, "node_errors": wrong}
        with self.lock:
            entry = [self.number, str(uuid.uuid4()), workflow, {"client_id": body.get("client_id")}, ["9"]]
            self.number += 1
            self.pending.append(entry)
            self.lock.notify_all()
        return 200, {"prompt_id": entry[1], "number": entry[0], "node_errors": wrong}

    def answer(self, method, path, body):
        """The status, and the object to send (None: an empty body)."""
        if (method, path) == ("GET", "/system_stats"):
            return 200, self.stats()
        if (method, path) == ("GET", "/queue"):
            with self.lock:
                return 200, {"queue_running": [self.running] if self.running else [], "queue_pending": list(self.pending)}
        if method == "GET" and path.startswith("/history/"):
            with self.lock:
                return 200, {i: h for i, h in self.history.items() if i == path[len("/history/"):]}
        if (method, path) == ("POST", "/prompt"):
            return self.post_prompt(body)
        if (method, path) == ("POST", "/queue"):
            with self.lock:
                self.pending = [] if body.get("clear") else [e for e in self.pending if e[1] not in body.get("delete", [])]
            return 200, None
        if (method, path) == ("POST", "/interrupt"):
            self.interrupted = True
            return 200, None
        if (method, path) == ("POST", "/free"):
            if body.get("unload_models") or body.get("free_memory"):
                with self.lock:
                    self.free_asked = time.monotonic()
            return 200, None
        return 404, None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    comfy = None

    def setup(self):
        super().setup()
        self.comfy.connections.append(self.connection)

    def log_message(self, *_):
        pass

    def serve(self, method):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}") if method == "POST" else {}
        self.comfy.requests.append((method, self.path, body))
        status, said = self.comfy.answer(method, self.path, body)
        data = b"" if said is None else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.serve("GET")

    def do_POST(self):
        self.serve("POST")


if __name__ == "__main__":
    print(Comfy(**json.loads(sys.argv[1])).url, flush=True)
    sys.stdin.read()
