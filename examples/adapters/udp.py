#!/usr/bin/env python3
"""Each UDP datagram becomes an event. ADAPTER_RECEIVER={"port": 5514}"""
import http.server, json, os, signal, socket, sys, threading, time, urllib.error, urllib.request, uuid

try:
    port = int(json.loads(os.environ["ADAPTER_RECEIVER"])["port"])
except (KeyError, TypeError, ValueError) as error:
    sys.exit(f"ADAPTER_RECEIVER: port: {error!r}")

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"ready":true,"reason":"","live":false,"qos":1}')
    def log_message(self, *arguments): pass

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.bind(("127.0.0.1", port))
if os.environ.get("PORT"):
    threading.Thread(target=http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Health).serve_forever, daemon=True).start()
while True:
    data, peer = listener.recvfrom(65536)
    headers = {"ce-specversion": "1.0", "ce-type": "udp", "ce-source": f"udp://{peer[0]}", "ce-id": str(uuid.uuid4()), "content-type": "text/plain"}
    while True:
        try: urllib.request.urlopen(urllib.request.Request(os.environ["K_SINK"], data, headers), timeout=30); break
        except (urllib.error.URLError, OSError) as error: print(f"sink: {error}", file=sys.stderr, flush=True); time.sleep(1)
