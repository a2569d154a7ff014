"""docs/spark.md, 'On a cluster': the commands that ship an environment, run as they stand there.

On a real cluster: a driver in client mode, a master and a worker with an executor of its own. One command is
replaced, because tests download nothing: what ``pip install "jetspark[arrow]"`` would install is copied from
the environment of the tests.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from packaging.requirements import Requirement

import jetspark
from jetspark import StreamConfig, blocking

if TYPE_CHECKING:
    from jetspark.server import Server

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
PIP = 'env/bin/pip install "jetspark[arrow]"'
JOB = """
import sys
from pyspark.sql import SparkSession

def where(rows):
    import importlib.util, os
    yield [sys.executable, importlib.util.find_spec("jetspark").origin, os.path.realpath(".")]

spark = SparkSession.builder.getOrCreate()
orders = spark.read.format("jetstream").options(servers=sys.argv[1], stream=sys.argv[2]).load()
print("ROWS", orders.selectExpr("count(*)", "count(DISTINCT sequence)").first()[:])
[(python, module, folder)] = spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect()
print("EXECUTOR", python, module, folder)
spark.stop()
"""


def commands() -> list[str]:
    """Those of the block under 'On a cluster', with continued lines joined."""
    section = PAGE.read_text().split("## On a cluster", 1)[1].split("\n## ", 1)[0]
    block = re.search(r"```sh\n(.*?)```", section, re.S)
    assert block is not None
    text = re.sub(r"\\\n\s*", "", block[1])
    return [line.strip() for line in text.splitlines() if line.strip()]


def install(site: Path, name: str, extras: set[str], seen: set[str]) -> None:
    """Copy a distribution and what it requires into the packages of another environment."""
    if name in seen:
        return
    seen.add(name)
    found = importlib.metadata.distribution(name)
    for text in found.requires or []:
        wanted = Requirement(text)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras | {""}):
            install(site, wanted.name, set(wanted.extras), seen)
    if name == "jetspark":
        # Installed as a link to its source.
        shutil.copytree(Path(jetspark.__file__).parent, site / "jetspark", dirs_exist_ok=True)
        return
    for file in found.files or []:
        source = Path(str(found.locate_file(file)))
        if ".." not in file.parts and source.is_file():
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, site / file)


def spark_home(folder: Path) -> Path:
    """Spark as it was installed; a cluster writes into the folder."""
    original = Path(pyspark.__file__).parent
    folder.mkdir()
    for name in ("bin", "jars", "sbin", "python"):
        (folder / name).symlink_to(original / name)
    return folder


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_slim_archive_in_client_mode(server: Server, tmp_path: Path) -> None:
    """Before, the command of the docs ended with 'Cannot run program "./env/bin/python"'."""
    with blocking.connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(StreamConfig(name="ARCHIVED", subjects=["archived"]))
        for number in range(100):
            js.publish("archived", b"%d" % number)
    (tmp_path / "job.py").write_text(JOB)
    kept = ("HOME", "LANG", "JAVA_HOME", "TMPDIR")
    env = {name: value for name, value in os.environ.items() if name in kept}
    # The driver's Python is the first one in PATH.
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env["SPARK_HOME"] = str(spark_home(tmp_path / "spark"))
    said = ""
    try:
        for line in commands():
            if line == PIP:
                [site] = (tmp_path / "env" / "lib").glob("python3*/site-packages")
                install(site, "jetspark", {"arrow"}, set())
                continue
            command = shlex.split(line)
            if command[0] == "spark-submit":
                cluster = ["--master", "local-cluster[1,1,1024]", "--conf", "spark.ui.enabled=false"]
                cluster += ["--conf", "spark.driver.host=127.0.0.1"]
                command = [command[0], *cluster, *command[1:], server.url, "ARCHIVED"]
            ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500)
            assert ran.returncode == 0, f"{line}\n{ran.stdout}\n{ran.stderr[-4000:]}"
            said = ran.stdout
    finally:
        with blocking.connect(server.url) as nc:
            nc.jetstream().delete_stream("ARCHIVED")
    assert "ROWS (100, 100)" in said
    [_, python, module, folder] = re.findall(r"^(EXECUTOR) (\S+) (\S+) (\S+)$", said, re.M)[0]
    # The executor ran what it was sent, in a folder of its own.
    assert Path(module).is_relative_to(folder)
    assert "env/bin/python" in python
    assert not Path(folder).is_relative_to(Path(jetspark.__file__).parents[2])
    # Slim: no PySpark in it.
    assert not list((tmp_path / "env").rglob("pyspark"))


def test_the_block_is_the_one_that_is_tested() -> None:
    assert PIP in commands()
    assert [line.split()[0] for line in commands()] == ["python3", "env/bin/pip", "tar", "spark-submit"]
