"""A small Hadoop for the tests: HDFS of one DataNode and YARN of one NodeManager in a JVM of its own, gone with the test run."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from pipelines.errors import JarsError
from pipelines.spark.jar_sets import Jar, JarSet
from pipelines.spark.jars import resolve, set_paths
from pipelines.spark.java import find_java

MINICLUSTER = JarSet(
    "Hadoop's minicluster",
    (
        Jar("org.apache.hadoop", "hadoop-client-minicluster", "3.5.0", 56006450,
            "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c"),
        # What its classes name: asserts, and the certificates of YARN's proxy.
        Jar("org.junit.jupiter", "junit-jupiter-api", "5.13.4", 240237,
            "d1bb81abfd9e03418306b4e6a3390c8db52c58372e749c2980ac29f0c08278f1"),
        Jar("org.junit.platform", "junit-platform-commons", "1.13.4", 158512,
            "1c25ca641ebaae44ff3ad21ca1b2ef68d0dd84bfeb07c4805ba7840899b77408"),
        Jar("org.opentest4j", "opentest4j", "1.3.0", 14304,
            "48e2df636cab6563ced64dcdff8abb2355627cb236ef0bf37598682ddf742f1b"),
        Jar("org.bouncycastle", "bcpkix-jdk18on", "1.82", 1151390,
            "bdc723e20834832ac6af136cb5b5ff05e43b71d4fa151cc6510d9212ee086e63"),
        Jar("org.bouncycastle", "bcprov-jdk18on", "1.82", 8451859,
            "14cde2fdfaa8890480a8e5b67aceef0c90f96682c1e23c133bafdc9e0b3255ce"),
        Jar("org.bouncycastle", "bcutil-jdk18on", "1.82", 706248,
            "4420691958ad1c0ba275a6d6d8a6317adbdbdc9277055b6a72aa89c88cda8c7d"),
    ),
    ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime", "org.apiguardian:*", "org.slf4j:*"),
)  # fmt: skip
_SPARKS_OWN = ("hadoop-client-", "slf4j-", "log4j-", "jcl-over", "commons-", "py4j-")
_FIFO = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"


@dataclass(frozen=True)
class Hdfs:
    """An HDFS that answers.

    Attributes:
        name: of its NameNode, `host:port`.
        configuration: a folder for HADOOP_CONF_DIR, in which it is the default file system; with YARN its scheduler too.
    """

    name: str
    configuration: Path
    client: Any

    def empty(self) -> str:
        """Remove all files. Return the NameNode."""
        for status in list(self.client.list_status("/", False)):
            self.client.delete(status.path, True)
        return self.name

    def files(self) -> list[str]:
        """Return the paths of all files."""
        return [status.path for status in self.client.list_status("/", True) if not status.isdir]


def hadoop_jars() -> list[Path]:
    """Return the jars of a small Hadoop, fetched once; none where they cannot be."""
    try:
        resolve(sets=(MINICLUSTER,))
        return set_paths((MINICLUSTER,))
    except JarsError:
        return []


@contextlib.contextmanager
def hdfs_server(jars: list[Path], folder: Path, *, yarn: bool = False) -> Iterator[Hdfs]:
    """Start HDFS, with `yarn` YARN beside it. It takes some twenty seconds."""
    from hdfs_native import Client

    own = [path for path in (Path(pyspark.__file__).parent / "jars").iterdir() if path.name.startswith(_SPARKS_OWN)]
    port = launch_gateway(
        classpath=":".join(map(str, [*jars, *own])),
        javaopts=["-Xmx1g", f"-Dhadoop.log.dir={folder / 'logs'}", f"-Dtest.build.data={folder}", "-Dlog4j2.level=OFF"],
        java_path=str(find_java().home / "bin" / "java"),
        die_on_exit=True,
        cwd=str(folder),
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        hadoop = gateway.jvm.org.apache.hadoop
        settings = hadoop.yarn.conf.YarnConfiguration(hadoop.conf.Configuration())
        settings.set("hdfs.minidfs.basedir", str(folder / "dfs"))
        # The user who runs the tests is the one who may write.
        settings.set(f"hadoop.proxyuser.{getpass.getuser()}.hosts", "*")
        cluster = hadoop.hdfs.MiniDFSCluster.Builder(settings).numDataNodes(1).build()
        cluster.waitActive()
        name = cluster.getURI().getAuthority()
        if yarn:
            settings = _with_yarn(hadoop, settings)
        # A class of the tests' jar, which nobody else has.
        settings.unset("net.topology.node.switch.mapping.impl")
        configuration = folder / "configuration"
        configuration.mkdir()
        stream = gateway.jvm.java.io.FileOutputStream(str(configuration / "core-site.xml"))
        settings.writeXml(stream)
        stream.close()
        if yarn:
            (configuration / "yarn-site.xml").write_bytes((configuration / "core-site.xml").read_bytes())
        yield Hdfs(name, configuration, Client(f"hdfs://{name}"))
    finally:
        gateway.shutdown()


def _with_yarn(hadoop: Any, settings: Any) -> Any:
    for name, value in {
        "yarn.resourcemanager.scheduler.class": _FIFO,
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.scheduler.minimum-allocation-mb": "256",
        "yarn.nodemanager.resource.memory-mb": "6144",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
    }.items():
        settings.set(name, value)
    cluster = hadoop.yarn.server.MiniYARNCluster("tests", 1, 1, 1)
    cluster.init(settings)
    cluster.start()
    return cluster.getConfig()
