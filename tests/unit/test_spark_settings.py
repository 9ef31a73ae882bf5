"""Settings of Spark as mappings, and the file that passes them to a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import Invalid
from headgate.settings import Settings, load_settings, split_endpoint
from headgate.spark.java import ICEBERG, ICEBERG_S3, coordinates_for
from headgate.spark.jvm import Launch, properties_text, spark_environ
from headgate.spark.session import catalog_conf, jvm_conf


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
    conf = catalog_conf(uri="http://127.0.0.1:1", warehouse="master")
    assert "spark.sql.catalog.headgate.token" not in conf


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


def _settings(root: Path, text: str, **variables: str) -> Settings:
    (root / "headgate.toml").write_text(text)
    return load_settings(root, {"HOME": str(root), **variables})


def test_settings_with_master_and_remote_are_refused_but_a_variable_decides(tmp_path: Path) -> None:
    text = '[spark]\nmaster = "spark://h:7077"\n'
    with pytest.raises(Invalid, match=r"spark\.master and spark\.remote"):
        _settings(tmp_path, f'{text}remote = "sc://h"\n')
    spark = _settings(tmp_path, text, HEADGATE_SPARK_REMOTE="sc://h").spark
    assert (spark.remote, spark.master) == ("sc://h", "local[*]")


@pytest.mark.parametrize("endpoint", ["host:8181", "ftp://host", "http://", "http://h:x"])
def test_settings_with_an_endpoint_that_is_no_url_are_refused(
    tmp_path: Path, endpoint: str
) -> None:
    with pytest.raises(Invalid, match=r"spark\.endpoint"):
        _settings(tmp_path, f'[spark]\nendpoint = "{endpoint}"\n')


def test_endpoint_of_port_0_asks_for_a_free_one() -> None:
    assert split_endpoint("http://10.0.0.5:0") == ("10.0.0.5", 0)
    assert split_endpoint("https://host/iceberg") == ("host", None)


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("HEADGATE_STORE_CATALOGUE", "HEADGATE_STORE_CATALOG"),
        ("HEADGATE_STOR_CATALOG", "HEADGATE_STORE_CATALOG"),
        ("HEADGATE_BUILDS_FALLBACKS", "HEADGATE_BUILDS_FALLBACK"),
        ("HEADGATE_SPARK_CONF", "HEADGATE_SPARK_REMOTE"),
    ],
)
def test_settings_with_a_variable_that_would_be_ignored_name_the_nearest(
    tmp_path: Path, variable: str, nearest: str
) -> None:
    with pytest.raises(Invalid, match=f"{variable} is unknown") as refused:
        _settings(tmp_path, "", **{variable: "x"})
    assert refused.value.facts["nearest"] == nearest
    _settings(tmp_path, "", HEADGATE_LAKEFS_ACCESS_KEY_ID="x", HEADGATE_TEST_ROUNDS="1")


def test_settings_of_a_server_set_the_limits_of_scripts(tmp_path: Path) -> None:
    text = "[server]\nstatement_seconds = 5\nscript_depth = 7\nstatements = 2\n"
    found = _settings(tmp_path, text, HEADGATE_SERVER_SCRIPT_DEPTH="9").server
    assert (found.statement_seconds, found.script_depth, found.statements) == (5, 9, 2)
    assert found.script_bytes == 1024**2
    for line in ("script_depth = 1.5", "statement_memory_bytes = 0", 'script_bytes = "1 MiB"'):
        with pytest.raises(Invalid, match=line.split()[0]):
            _settings(tmp_path, f"[server]\n{line}\n")
