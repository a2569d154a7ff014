"""A Spark declarative pipeline that reads a stream and writes one, with ``dp.create_sink``.

Needs ``pip install "pyspark[pipelines]"``. Run it: python examples/spark/declarative_pipeline.py
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from jetspark import StreamConfig, blocking
from jetspark.server import Server


def main() -> None:
    with (
        Server() as server,
        blocking.connect(server.url) as nc,
        tempfile.TemporaryDirectory() as folder,
    ):
        js = nc.jetstream()
        js.create_stream(StreamConfig(name="ORDERS", subjects=["orders.>"]))
        large = js.create_stream(StreamConfig(name="LARGE", subjects=["large.>"]))
        with js.publisher() as publisher:
            for number in range(120):
                publisher.publish("orders.new", json.dumps({"id": number, "amount": number}).encode())

        # The pipeline keeps its tables and checkpoints where it runs: a folder of its own.
        shutil.copytree(Path(__file__).parent / "declarative_pipeline", folder, dirs_exist_ok=True)
        spec = Path(folder, "spark-pipeline.yml")
        spec.write_text(spec.read_text().replace("/tmp/jetspark-pipeline-example", f"{folder}/storage"))
        subprocess.run(
            [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"), "run", "--spec", str(spec)],
            cwd=folder,
            env={
                **os.environ,
                "NATS_URL": server.url,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_HOME": os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent),
            },
            check=True,
        )
        print(f"large orders: {[message.subject for message in large.get_msgs(seq=1)][:3]} ...")
        print(f"{large.info().state.messages} in all")


if __name__ == "__main__":
    main()
