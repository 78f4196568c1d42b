"""A Spark session on this machine that works without any setting."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.errors import EnvironmentProblem

_OLDEST_JAVA = 17


def java_version() -> int:
    """The major version of the Java that Spark will use; raises where there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME is {home}, but there is no bin/java in it" if home else "there is no java on the PATH"
        raise EnvironmentProblem(f"Spark needs Java {_OLDEST_JAVA} or newer, and {where}; install a JDK and try again")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None:
        raise EnvironmentProblem(f"{java} -version does not tell a version: {said.strip()[:200]}")
    if int(found.group(1)) < _OLDEST_JAVA:
        raise EnvironmentProblem(
            f"Spark needs Java {_OLDEST_JAVA} or newer, and {java} is version {found.group(1)}; "
            f"install a newer JDK or point JAVA_HOME to one"
        )
    return int(found.group(1))


def local_session(app: str = "headrace", cores: str | int = "*", **conf: str) -> SparkSession:
    """A local session with quiet logs. `conf` keys use __ for dots: spark__sql__shuffle__partitions="4"."""
    java_version()
    # The workers must be this very Python: the first python3 on the path may not know headrace.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
    }
    settings.update({key.replace("__", "."): value for key, value in conf.items()})
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
