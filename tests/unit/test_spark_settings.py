"""Spark's settings as mappings, and the file in which a JVM gets them."""

from __future__ import annotations

from pathlib import Path

from headgate.spark.conf import catalog_conf, jvm_conf
from headgate.spark.gateway import Launch, properties_text, spark_environ
from headgate.spark.jars import ICEBERG, ICEBERG_S3, coordinates_for


def test_jvm_conf_with_extensions_of_the_user_keeps_icebergs() -> None:
    conf = jvm_conf(
        jars=[Path("/cache/iceberg.jar")],
        extra={"spark.sql.extensions": "mine.Extension", "spark.jars": "mine.jar"},
    )
    assert conf["spark.sql.extensions"].startswith("mine.Extension,org.apache.iceberg")
    assert conf["spark.jars"] == "mine.jar,file:///cache/iceberg.jar"


def test_jvm_conf_of_a_users_setting_lets_it_win() -> None:
    conf = jvm_conf(
        jars=[], extra={"spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "3"}
    )
    assert (conf["spark.ui.enabled"], conf["spark.sql.shuffle.partitions"]) == ("true", "3")


def test_jvm_conf_for_a_cluster_keeps_its_shuffle_partitions() -> None:
    conf = jvm_conf(jars=[], master="spark://host:7077")
    assert "spark.sql.shuffle.partitions" not in conf


def test_catalog_conf_of_a_context_is_rest_uncached_and_current() -> None:
    conf = catalog_conf(uri="http://127.0.0.1:1", warehouse="feature>master", token="t")
    prefix = "spark.sql.catalog.headgate"
    assert conf[f"{prefix}.type"] == "rest"
    assert conf[f"{prefix}.warehouse"] == "feature>master"
    assert conf[f"{prefix}.token"] == "t"
    assert conf[f"{prefix}.cache-enabled"] == "false"
    assert conf["spark.sql.defaultCatalog"] == "headgate"


def test_catalog_conf_without_token_sends_none() -> None:
    conf = catalog_conf(uri="http://127.0.0.1:1", warehouse="master", s3={"s3.region": "x"})
    assert "spark.sql.catalog.headgate.token" not in conf
    assert conf["spark.sql.catalog.headgate.s3.region"] == "x"


def test_properties_text_of_awkward_values_escapes_them() -> None:
    assert properties_text({"a": " b=c:d\\e\nf#"}) == "a=\\ b\\=c\\:d\\\\e\\nf\\#\n"


def test_spark_environ_of_a_local_master_listens_on_loopback_only() -> None:
    def environ(master: str) -> dict[str, str]:
        conf = {"spark.master": master}
        given = {"PYSPARK_SUBMIT_ARGS": "--bad", "KEPT": "1"}
        request = Launch(java_home=Path("/j"), conf=conf, environ=given, log_path=Path("/l"))
        return spark_environ(request, Path("/spark"))

    local = environ("local[2]")
    assert (local["SPARK_LOCAL_IP"], local["KEPT"]) == ("127.0.0.1", "1")
    assert "PYSPARK_SUBMIT_ARGS" not in local
    assert "SPARK_LOCAL_IP" not in environ("spark://host:7077")


def test_coordinates_for_a_warehouse_on_s3_include_its_client() -> None:
    assert coordinates_for("s3://bucket/w") == (ICEBERG, ICEBERG_S3)
    assert coordinates_for("/data/w") == (ICEBERG,)
