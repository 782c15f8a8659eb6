"""ClickHouse's engine (chdb), behind as much of its HTTP interface as a collector and these tests use.

    clickhouse.py serve PORT FOLDER DATABASE SCHEMA... [--user USER:PASSWORD] [--tls PORT:CERTIFICATE:KEY]
    clickhouse.py ask PORT STATEMENT
    clickhouse.py behave PORT MODE TIMES

`serve` answers on 127.0.0.1 with statements that the engine executes on the tables in FOLDER, which the files of SCHEMA make.
`ask` executes one there. `behave` spoils the next INSERTs. What the server's own HTTP layer does beyond this is not here.
"""

import argparse
import json
import re
import socket
import ssl
import tempfile
import threading
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# As src/Server/HTTP/exceptionCodeToHTTPStatus.cpp has them. All others are 500.
STATUS = {
    **dict.fromkeys([6, 26, 27, 36, 38, 41, 43, 53, 62, 70, 72, 117, 676], 400),
    194: 401,
    **dict.fromkeys([192, 193, 516], 403),
    **dict.fromkeys([46, 47, 50, 56, 60, 73, 81, 115], 404),
}
# Parameters of the interface itself. All others are settings of the statement.
OF_THE_INTERFACE = {"query", "wait_end_of_query"}
REFUSED = "Code: 516. DB::Exception: {}: Authentication failed: password is incorrect. (AUTHENTICATION_FAILED)"


class Engine:
    def __init__(self, folder, database, schemas):
        from chdb.session import Session

        self.session = Session(folder)
        self.lock = threading.Lock()
        self.inserts = 0
        self.mode, self.times = "well", 0
        self.execute(f"CREATE DATABASE IF NOT EXISTS {database}")
        self.execute(f"USE {database}")
        for schema in schemas:
            with open(schema) as file:
                text = re.sub(r"--.*", "", file.read())
            for statement in filter(str.strip, text.split(";")):
                self.execute(statement)

    def execute(self, statement, form="JSONEachRow"):
        with self.lock:
            return self.session.query(statement, form).bytes() or b""

    def insert(self, statement, settings, rows):
        with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
            file.write(rows)
            file.flush()
            settings = ", ".join(f"{name} = {value}" for name, value in settings)
            source = f"FROM INFILE '{file.name}' SETTINGS {settings} FORMAT Parquet"
            self.inserts += 1
            self.execute(statement.replace("FORMAT Parquet", source))

    def deed(self):
        """What to do with this INSERT."""
        with self.lock:
            if self.times == 0:
                return "well"
            self.times -= 1
            return self.mode


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        parameters = dict(urllib.parse.parse_qsl(self.path.partition("?")[2]))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        engine = self.server.engine
        if self.path.startswith("/behave"):
            engine.mode, engine.times = parameters["mode"], int(parameters["times"])
            return self.answer(200, b"")
        if self.path.startswith("/inserts"):
            return self.answer(200, str(engine.inserts).encode())
        statement = parameters["query"]
        if not statement.startswith("INSERT"):
            return self.told(lambda: engine.execute(statement))
        user = self.headers.get("X-ClickHouse-User", "default")
        if (user, self.headers.get("X-ClickHouse-Key", "")) != self.server.user:
            return self.failed(REFUSED.format(user))
        settings = [pair for pair in parameters.items() if pair[0] not in OF_THE_INTERFACE]
        return self.spoiled(engine.deed(), lambda: engine.insert(statement, settings, body) or b"")

    def spoiled(self, deed, insert):
        if deed == "well":
            return self.told(insert)
        if deed == "fail":
            return self.failed("Code: 241. DB::Exception: Memory limit exceeded. (MEMORY_LIMIT_EXCEEDED)")
        if deed == "fail_late":
            # After an answer has begun, nothing but its body can tell.
            return self.answer(200, b"Code: 241. DB::Exception: Memory limit exceeded.\n")
        if deed == "fail_late_in_headers":
            return self.answer(200, b"", {"X-ClickHouse-Exception-Code": "241"})
        if deed == "stranger":
            return self.answer(200, b"", of_clickhouse=False)
        if deed == "proxy":
            return self.answer(503, b"<html>no server</html>", of_clickhouse=False)
        if deed == "store_and_cut":
            insert()
        if deed == "hang":
            threading.Event().wait(60)
        if deed == "garbage":
            self.wfile.write(b"\x00\x01 what is this\r\n\r\n" * 10)
        if deed == "half":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-ClickHouse-Query-Id: 1\r\nContent-Length: 100\r\n\r\nCode")
        # `cut` does no more than this.
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def told(self, execute):
        try:
            self.answer(200, execute())
        except RuntimeError as error:
            self.failed(str(error))

    def failed(self, text):
        code = int(re.search(r"Code: (\d+)", text)[1])
        headers = {"X-ClickHouse-Exception-Code": str(code)}
        self.answer(STATUS.get(code, 500), text.encode(), headers)

    def answer(self, status, body, headers={}, of_clickhouse=True):
        self.send_response(status)
        if of_clickhouse:
            headers = {"X-ClickHouse-Query-Id": "1", "X-ClickHouse-Format": "JSONEachRow", **headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(arguments):
    engine = Engine(arguments.folder, arguments.database, arguments.schema)
    user, _, password = arguments.user.partition(":")
    listening = [listen(arguments.port, engine, (user, password))]
    if arguments.tls:
        port, certificate, key = arguments.tls.split(":")
        secured = listen(int(port), engine, (user, password))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        secured.socket = context.wrap_socket(secured.socket, server_side=True)
        threading.Thread(target=secured.serve_forever, daemon=True).start()
        listening.append(secured)
    print("ready", flush=True)
    listening[0].serve_forever()


def listen(port, engine, user):
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.engine, server.user = engine, user
    return server


def post(port, path, **parameters):
    url = f"http://127.0.0.1:{port}/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60) as answer:
        print(answer.read().decode(), end="")


parser = argparse.ArgumentParser()
commands = parser.add_subparsers(required=True)
command = commands.add_parser("serve")
command.add_argument("port", type=int)
command.add_argument("folder")
command.add_argument("database")
command.add_argument("schema", nargs="*")
command.add_argument("--user", default="default:")
command.add_argument("--tls")
command.set_defaults(run=serve)
command = commands.add_parser("ask")
command.add_argument("port", type=int)
command.add_argument("statement")
command.set_defaults(run=lambda told: post(told.port, "", query=told.statement))
command = commands.add_parser("behave")
command.add_argument("port", type=int)
command.add_argument("mode")
command.add_argument("times", type=int)
command.set_defaults(run=lambda told: post(told.port, "behave", mode=told.mode, times=told.times))
command = commands.add_parser("inserts")
command.add_argument("port", type=int)
command.set_defaults(run=lambda told: post(told.port, "inserts"))
arguments = parser.parse_args()
arguments.run(arguments)
