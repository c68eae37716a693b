"""The pod that bench itself runs in: its node, its rights, and its ownership of the pods that it opens.

``provisioning.batch.kubernetes`` sends the variables; elsewhere they are not set, and nothing of this holds.
"""

import json
import os
from pathlib import Path
from typing import Any

POD, UID, NODE = "VIRTBENCH_POD", "VIRTBENCH_POD_UID", "VIRTBENCH_NODE"
FIELDS = {POD: "metadata.name", UID: "metadata.uid", NODE: "spec.nodeName"}
"""The variables, by the fields of the pod that they hold."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def node() -> str | None:
    """Return the node of this pod; None where bench runs in no pod."""
    return os.environ.get(NODE)


def owners() -> list[dict[str, str]]:
    """Return the owner of the pods that are opened from here: with it the cluster removes them, however it ends."""
    if POD not in os.environ:
        return []
    return [{"apiVersion": "v1", "kind": "Pod", "name": os.environ[POD], "uid": os.environ[UID]}]


def use_account(directory: Path) -> None:
    """Reach the cluster with the rights of this pod's service account, by a kubeconfig that is written for it."""
    if POD not in os.environ:
        return
    server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    context = {"cluster": "own", "user": "own", "namespace": (ACCOUNT / "namespace").read_text()}
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "own", "cluster": {"server": server, "certificate-authority": f"{ACCOUNT}/ca.crt"}}],
        "users": [{"name": "own", "user": {"tokenFile": f"{ACCOUNT}/token"}}],
        "contexts": [{"name": "own", "context": context}],
        "current-context": "own",
    }
    path = directory / ".kubeconfig"
    path.write_text(json.dumps(config))
    os.environ["KUBECONFIG"] = str(path)
