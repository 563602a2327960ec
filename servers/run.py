#!/usr/bin/env python3
"""Runs a command beside a real Kafka broker, a real registry of schemas and a real S3 server.

    servers/run.py [--kafka] [--registry] [--s3] [--long] -- cargo test --release ...

The servers are installed once, into target/servers. They are started only for this run, on free
loopback ports, with a temporary folder. The command finds them in its environment:

    SERVERS_KAFKA          host:port of the broker, in clear text, without authentication
    SERVERS_KAFKA_SASL     host:port with authentication (PLAIN, SCRAM-SHA-256), in clear text
    SERVERS_KAFKA_TLS      host:port in TLS, without authentication
    SERVERS_KAFKA_SASL_TLS host:port in TLS with authentication
    SERVERS_KAFKA_MUTUAL   host:port in TLS with client certificates
    SERVERS_KAFKA_USER, SERVERS_KAFKA_PASSWORD
                           the login
    SERVERS_KAFKA_KEYS     a folder: authority.pem has signed the broker's certificate and that in
                           client.pem, whose key is in client.key; other.pem has signed nothing
    SERVERS_KAFKA_CONTROL  a folder: creating the file `kill`, `stop`, `go` or `start` there kills,
                           suspends, resumes or starts the broker; the file is removed afterwards
    SERVERS_REGISTRY       the URL of the registry of schemas (Apicurio's, by Confluent's API)
    SERVERS_REGISTRY_TLS   its URL by HTTPS
    SERVERS_REGISTRY_AUTHORITY
                           a file: the authority that has signed the registry's certificate
    SERVERS_REGISTRY_CONTROL
                           a folder like that of the broker
    SERVERS_S3_ENDPOINT    http://host:port
    SERVERS_S3_BUCKET      an existing bucket
    SERVERS_S3_CONTROL     a folder like that of the broker, for the store
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL

The exit status is that of the command. Only the standard library is used.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import hmac
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

KAFKA = "4.3.1"
# The newest version for Java 17.
REGISTRY = "2.6.13.Final"
MINIO = "v0.0.0-20260212201848-7aac2a2c5b7c"
INSTALLED = Path(__file__).resolve().parent.parent / "target" / "servers"
BUCKET = "tidemill"
USER, PASSWORD, REGION = "tidemill", "tidemill-secret", "us-east-1"

#: Options of a broker that runs for seconds: a fast start matters, throughput does not.
QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
#: Options of a broker that runs for minutes, for benchmarks.
LONG = ["-Xmx1g"]
#: The servers, with their descriptions.
SERVERS = {"kafka": "a Kafka broker", "registry": "a registry of schemas", "s3": "an S3 server"}

#: The broker's listeners, with their protocols.
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SASL": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "SASL_TLS": "SASL_SSL",
    "MUTUAL": "SSL",
}

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidemill</groupId><artifactId>servers</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{KAFKA}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""


class Failed(Exception):
    """An error with a message for users."""


def need(tool: str, package: str) -> str:
    """Returns the path of a program."""
    path = shutil.which(tool)
    if path is None:
        raise Failed(f"{tool} is missing: apt-get install {package}")
    return path


def install_kafka() -> Path:
    """Installs the broker; returns the folder with its jars."""
    home = INSTALLED / f"kafka-{KAFKA}"
    libs = home / "libs"
    if libs.is_dir():
        return libs
    mvn = need("mvn", "maven")
    print(f"servers: installing Kafka {KAFKA} (once, 54 MB)", file=sys.stderr)
    home.mkdir(parents=True, exist_ok=True)
    (home / "pom.xml").write_text(POM)
    # Into another folder first, so that an incomplete download does not count as complete.
    fetched = home / "libs.part"
    shutil.rmtree(fetched, ignore_errors=True)
    command = [mvn, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={fetched}"], cwd=home, timeout=900, stdout=sys.stderr
    )
    if done.returncode != 0:
        raise Failed(f"maven could not fetch Kafka {KAFKA}: see its messages above")
    fetched.rename(libs)
    return libs


def remember_classes(libs: Path) -> Path:
    """Returns a file from which Java loads the broker's classes. It halves the start time.

    If the file is of another version of Java, Java ignores it.
    """
    remembered = libs.parent / "classes.jsa"
    if not remembered.is_file():
        print("servers: starting Kafka once, to remember its classes", file=sys.stderr)
        part = libs.parent / "classes.part"
        with tempfile.TemporaryDirectory(prefix="tidemill-servers-") as folder:
            flags = [*QUICK, f"-XX:ArchiveClassesAtExit={part}"]
            kafka, port, _ = make_kafka(Path(folder), libs, *flags)
            kafka.start()
            try:
                kafka.wait_until(lambda: listens(port))
            finally:
                kafka.end(120)
        if part.is_file():
            part.rename(remembered)
    return remembered


def install_registry() -> Path:
    """Installs the registry; returns the folder with its jars."""
    home = INSTALLED / f"registry-{REGISTRY}"
    app = home / "app"
    if app.is_dir():
        return app
    mvn = need("mvn", "maven")
    print(f"servers: installing the registry {REGISTRY} (once, 142 MB)", file=sys.stderr)
    # Into another folder first, as above.
    shutil.rmtree(home, ignore_errors=True)
    (part := home / "app.part").mkdir(parents=True)
    artifact = f"io.apicurio:apicurio-registry-app:{REGISTRY}:tar.gz:all"
    done = subprocess.run(
        [mvn, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={home}"],
        cwd=home, timeout=1800, stdout=sys.stderr,
    )  # fmt: skip
    if done.returncode != 0:
        raise Failed(f"maven could not fetch the registry {REGISTRY}: see its messages above")
    (packed,) = home.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(part, filter="data")
    packed.unlink()
    part.rename(app)
    return app


def install_minio() -> Path:
    """Builds the S3 server; returns its path."""
    home = INSTALLED / f"minio-{MINIO}"
    binary = home / "minio"
    if binary.is_file():
        return binary
    go = need("go", "golang-go (1.24 or newer; from backports, or from go.dev)")
    print("servers: installing MinIO (once, some minutes)", file=sys.stderr)
    environment = {**os.environ, "GOBIN": str(home)}
    done = subprocess.run(
        [go, "install", f"github.com/minio/minio@{MINIO}"],
        env=environment, cwd=tempfile.gettempdir(), timeout=1800, stdout=sys.stderr,
    )  # fmt: skip
    if done.returncode != 0:
        raise Failed("go could not build MinIO: see its messages above")
    return binary


def free_ports(count: int) -> list[int]:
    """Returns free ports. All are held at once, so that no port is returned twice."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Server:
    """A server's process."""

    def __init__(self, name: str, command: list[str], folder: Path, **environment: str) -> None:
        self.name, self.command, self.folder = name, command, folder
        self.environment = {**os.environ, **environment}
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process; its output goes to its log."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                # An interrupt from the keyboard is for this script, which ends the servers itself.
                start_new_session=True,
            )  # fmt: skip

    def wait_until(self, is_ready, seconds: float = 60) -> None:
        """Waits until the server is ready or has ended."""
        deadline = time.monotonic() + seconds
        while not is_ready():
            ended = self.process is None or self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                why = "has ended" if ended else f"was not ready after {seconds:.0f} s"
                tail = self.log.read_text(errors="replace")[-3000:]
                raise Failed(f"{self.name} {why}; the end of its log:\n{tail}")
            time.sleep(0.1)

    def signal(self, number: int) -> None:
        """Sends a signal to the process, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def end(self, seconds: float = 10) -> None:
        """Ends the process, by force if it takes too long."""
        if self.process is None:
            return
        # A suspended process does not receive SIGTERM.
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends the process by force."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def listens(port: int) -> bool:
    """Whether a server listens on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def make_keys(folder: Path) -> None:
    """Creates two authorities, and certificates of one of them for the broker and for a client."""
    openssl = need("openssl", "openssl")

    def run(*args: str) -> None:
        done = subprocess.run(
            [openssl, *args], cwd=folder, capture_output=True, text=True, timeout=60
        )
        if done.returncode != 0:
            raise Failed(f"openssl {' '.join(args)}:\n{done.stderr}")

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for name in ("authority", "other"):
        run("req", "-x509", *new, "-days", "2", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.pem")  # fmt: skip
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    signed = ["-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial"]
    signed += ["-extfile", "names"]
    for name in ("broker", "client"):
        run("req", *new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        run("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", "-days", "2", *signed)
    both = (folder / "broker.key").read_text() + (folder / "broker.pem").read_text()
    (folder / "broker.both").write_text(both)


def make_kafka(folder: Path, libs: Path, *flags: str) -> tuple[Server, int, dict[str, str]]:
    """Returns a broker with an empty log, not yet started, and its further addresses."""
    java = need("java", "openjdk-17-jre-headless")
    (keys := folder / "keys").mkdir()
    make_keys(keys)
    controller, *ports = free_ports(1 + len(LISTENERS))
    port = ports[0]
    places = {name: f"127.0.0.1:{at}" for name, at in zip(LISTENERS, ports, strict=True)}
    listeners = ",".join(f"{name}://{at}" for name, at in places.items())
    kinds = ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items())
    module = "org.apache.kafka.common.security.{0}.{1}LoginModule required"
    plain = module.format("plain", "Plain") + f' user_{USER}="{PASSWORD}";'
    scram = module.format("scram", "Scram") + ";"
    logins = "".join(
        f"listener.name.{name}.{mechanism}.sasl.jaas.config={config}\n"
        for name in ("sasl", "sasl_tls")
        for mechanism, config in (("plain", plain), ("scram-sha-256", scram))
    )
    properties = folder / "server.properties"
    # A broker that was killed can't register again before its session has expired.
    properties.write_text(
        f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map={kinds},CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
{logins}ssl.keystore.type=PEM
ssl.keystore.location={keys / "broker.both"}
ssl.truststore.type=PEM
ssl.truststore.location={keys / "authority.pem"}
listener.name.mutual.ssl.client.auth=required
log.dirs={folder / "data"}
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=300
controller.quorum.election.timeout.ms=200
auto.create.topics.enable=false
"""
    )
    done = subprocess.run(
        [java, *QUICK, "-cp", f"{libs}/*", "kafka.tools.StorageTool", "format",
         "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(properties),
         "--add-scram", f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"],
        cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if done.returncode != 0:
        raise Failed(f"Kafka's folder could not be formatted:\n{done.stdout}{done.stderr}")
    command = [java, *flags, "-cp", f"{libs}/*", "kafka.Kafka", str(properties)]
    found = {f"SERVERS_KAFKA_{name}": at for name, at in places.items() if name != "PLAINTEXT"}
    found |= {"SERVERS_KAFKA": places["PLAINTEXT"], "SERVERS_KAFKA_KEYS": str(keys)}
    found |= {"SERVERS_KAFKA_USER": USER, "SERVERS_KAFKA_PASSWORD": PASSWORD}
    return Server("Kafka", command, folder), port, found


def make_registry(folder: Path) -> tuple[Server, int, dict[str, str]]:
    """Returns an empty registry of schemas, not yet started, and its addresses."""
    java = need("java", "openjdk-17-jre-headless")
    app = install_registry()
    (keys := folder / "keys").mkdir()
    make_keys(keys)
    port, tls = free_ports(2)
    (jar,) = app.glob("*-runner.jar")
    command = [java, "-Xmx400m", "-XX:TieredStopAtLevel=1", "-jar", str(jar)]
    server = Server(
        "The registry", command, folder,
        QUARKUS_HTTP_HOST="127.0.0.1", QUARKUS_HTTP_PORT=str(port), QUARKUS_HTTP_SSL_PORT=str(tls),
        QUARKUS_HTTP_SSL_CERTIFICATE_FILES=str(keys / "broker.pem"),
        QUARKUS_HTTP_SSL_CERTIFICATE_KEY_FILES=str(keys / "broker.key"),
        # Schemas survive when the registry is killed.
        REGISTRY_DATASOURCE_URL=f"jdbc:h2:file:{folder / 'data'}",
    )  # fmt: skip
    path = "/apis/ccompat/v7"
    found = {
        "SERVERS_REGISTRY": f"http://127.0.0.1:{port}{path}",
        "SERVERS_REGISTRY_TLS": f"https://127.0.0.1:{tls}{path}",
        "SERVERS_REGISTRY_AUTHORITY": str(keys / "authority.pem"),
    }
    return server, port, found


def answers(port: int) -> bool:
    """Whether the registry is ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/apis/ccompat/v7/subjects")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def make_minio(folder: Path) -> tuple[Server, int]:
    """Returns an empty S3 server, not yet started."""
    binary = install_minio()
    (port,) = free_ports(1)
    command = [str(binary), "server", "--quiet", "--address", f"127.0.0.1:{port}", "data"]
    server = Server("MinIO", command, folder, MINIO_ROOT_USER=USER, MINIO_ROOT_PASSWORD=PASSWORD,
                    MINIO_BROWSER="off", MINIO_UPDATE="off")  # fmt: skip
    return server, port


def s3(port: int, method: str, path: str) -> int:
    """Sends a request without a body, signed (version 4), and returns the status."""
    now = datetime.datetime.now(datetime.UTC)
    time_, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    empty = hashlib.sha256(b"").hexdigest()
    headers = {"host": f"127.0.0.1:{port}", "x-amz-content-sha256": empty, "x-amz-date": time_}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = hashlib.sha256(f"{method}\n{path}\n\n{lines}\n{names}\n{empty}".encode()).hexdigest()
    scope = f"{day}/{REGION}/s3/aws4_request"
    key = f"AWS4{PASSWORD}".encode()
    for part in [*scope.split("/"), f"AWS4-HMAC-SHA256\n{time_}\n{scope}\n{request}"]:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={USER}/{scope},SignedHeaders={names},Signature={key.hex()}"
    )
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def has_bucket(port: int) -> bool:
    """Creates the bucket; returns whether the server is ready."""
    try:
        return s3(port, "PUT", f"/{BUCKET}") in (200, 409)
    except (OSError, http.client.HTTPException):
        return False


def obey(control: Path, server: Server, is_ready, is_over: threading.Event) -> None:
    """Executes the command's requests for a server, until the command ends."""
    deeds = {
        "kill": server.kill,
        "stop": lambda: server.signal(signal.SIGSTOP),
        "go": lambda: server.signal(signal.SIGCONT),
        "start": lambda: (server.start(), server.wait_until(is_ready)),
    }
    while not is_over.wait(0.05):
        for name, do in deeds.items():
            if (control / name).exists():
                try:
                    do()
                except Failed as failed:
                    print(f"servers: {failed}", file=sys.stderr)
                (control / name).unlink()


def run(command: list[str], servers: set[str], is_long: bool) -> int:
    """Starts the servers, runs the command, ends the servers."""
    with contextlib.ExitStack() as stack:
        # Callbacks run in reverse order: the servers end before their folder is removed.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemill-servers-")))
        environment = dict(os.environ)
        is_over = threading.Event()
        # The servers that the command may control, each with its name and a check of its readiness.
        controlled = []
        if "kafka" in servers:
            (folder / "kafka").mkdir()
            libs = install_kafka()
            share = f"-XX:SharedArchiveFile={remember_classes(libs)}"
            flags = LONG if is_long else QUICK
            kafka, port, found = make_kafka(folder / "kafka", libs, *flags, share)
            controlled.append((kafka, "KAFKA", lambda: listens(port)))
            environment |= found
        if "registry" in servers:
            (folder / "registry").mkdir()
            registry, registry_port, found = make_registry(folder / "registry")
            controlled.append((registry, "REGISTRY", lambda: answers(registry_port)))
            environment |= found
        if "s3" in servers:
            (folder / "minio" / "data").mkdir(parents=True)
            minio, s3_port = make_minio(folder / "minio")
            controlled.append((minio, "S3", lambda: has_bucket(s3_port)))
            environment |= {
                "SERVERS_S3_ENDPOINT": f"http://127.0.0.1:{s3_port}",
                "SERVERS_S3_BUCKET": BUCKET,
                "AWS_ACCESS_KEY_ID": USER,
                "AWS_SECRET_ACCESS_KEY": PASSWORD,
                "AWS_REGION": REGION,
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3_port}",
            }
        for server, _, _ in controlled:
            stack.callback(server.end)
            server.start()
        for server, name, is_ready in controlled:
            server.wait_until(is_ready)
            (control := folder / f"control-{name.lower()}").mkdir()
            environment[f"SERVERS_{name}_CONTROL"] = str(control)
            obeying = threading.Thread(target=obey, args=(control, server, is_ready, is_over))
            obeying.start()
            stack.callback(obeying.join)
        stack.callback(is_over.set)
        process = subprocess.Popen(command, env=environment)
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise


def main() -> int:
    """Runs the servers and the command that the arguments ask for."""
    parser = argparse.ArgumentParser(
        description="Runs a command beside servers that are started for it: by default all."
    )
    for name, what in SERVERS.items():
        parser.add_argument(
            f"--{name}", action="store_true", help=f"start {what}; by default, all servers start"
        )
    parser.add_argument(
        "--long", action="store_true", help="a broker with a slower start and higher throughput"
    )
    parser.add_argument("command", nargs="+", help="the command, after --")
    chosen = parser.parse_args()
    servers = {name for name in SERVERS if getattr(chosen, name)} or set(SERVERS)
    # An ended terminal or a `kill` must end the servers, too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        status = run(chosen.command, servers, chosen.long)
    except Failed as failed:
        print(f"servers: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
