"""The cluster's certificates, and a kubeconfig with a token for each of its parts."""

import json
import secrets
import subprocess
from pathlib import Path

from tests.kubernetes_cluster.layout import API_SERVER, FIRST_SERVICE, HOST_ADDRESS, KUBECONFIG, NODES, RUN

KEYS = RUN / "keys"
CA = KEYS / "ca.crt"
TOKENS = KEYS / "tokens.csv"
SERVED_AS = (
    f"IP:{HOST_ADDRESS},IP:127.0.0.1,IP:{FIRST_SERVICE},"
    "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
)
# The names are those to which the roles that every cluster begins with are bound.
USERS = {
    KUBECONFIG: ("admin", "system:masters"),
    RUN / "kube-controller-manager.kubeconfig": ("system:kube-controller-manager", ""),
    RUN / "kube-scheduler.kubeconfig": ("system:kube-scheduler", ""),
    RUN / "kube-proxy.kubeconfig": ("system:kube-proxy", ""),
    **{RUN / f"{node.name}.kubeconfig": (f"system:node:{node.name}", "system:nodes") for node in NODES},
}


def issue() -> None:
    """Write all keys, certificates and kubeconfigs of a new cluster."""
    KEYS.mkdir(mode=0o700)
    _key("ca")
    _openssl("req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=virtbench-tests", "-days", "30", "-out", "ca.crt")
    _certificate("server", "/CN=kube-apiserver", f"subjectAltName={SERVED_AS}\nextendedKeyUsage=serverAuth\n")
    client = "/O=system:masters/CN=apiserver-kubelet-client"
    _certificate("kubelet-client", client, "extendedKeyUsage=clientAuth\n")
    _openssl("genrsa", "-out", "service-accounts.key", "2048")
    tokens = []
    for path, (user, group) in USERS.items():
        token = secrets.token_hex(16)
        tokens.append(f'{token},{user},{user},"{group}"\n')
        _write_kubeconfig(path, token)
    TOKENS.write_text("".join(tokens))


def _write_kubeconfig(path: Path, token: str) -> None:
    path.touch(mode=0o600)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": API_SERVER, "certificate-authority": str(CA)}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "virtbench-tests", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "virtbench-tests",
    }
    path.write_text(json.dumps(config, indent=2))


def _key(name: str) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")


def _certificate(name: str, subject: str, extensions: str) -> None:
    _key(name)
    (KEYS / f"{name}.ext").write_text(extensions)
    _openssl("req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30", "-extfile", f"{name}.ext"]
    _openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.crt")


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, cwd=KEYS, capture_output=True)
