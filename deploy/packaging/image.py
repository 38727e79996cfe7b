#!/usr/bin/env python3
"""Writes a container image of the staged files as an OCI layout in a tar archive, without a daemon and without a base image.

    image.py ROOT OUT        writes OUT/sluicegate-VERSION-MACHINE-linux.oci.tar
    sluicegate image import FILE        adds it as ghcr.io/sluicegate/sluicegate:VERSION

The one layer has the programs, the shared libraries that they load (copied from this host), the certificate authorities of this
host, and a user 65532. Two runs with the same files and SOURCE_DATE_EPOCH write the same bytes.
"""

import datetime
import gzip
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile

PROGRAMS = ["usr/bin/sluicegate", "usr/bin/sluicegate-adapters"]
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
NAME = "ghcr.io/sluicegate/sluicegate"
USER = 65532
FILES = {
    "etc/passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nsluicegate:x:{USER}:{USER}:Sluicegate:/data:/usr/sbin/nologin\n",
    "etc/group": f"root:x:0:\nsluicegate:x:{USER}:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def libraries(program):
    """The shared libraries of a program and its loader, by the paths at which it looks for them."""
    for line in subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout.splitlines():
        path = next((word for word in reversed(line.split()) if word.startswith("/")), None)
        if path:
            yield path


def add(archive, name, data, mode=0o644, owner=0, kind=tarfile.REGTYPE):
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime, entry.uid, entry.gid = kind, mode, EPOCH, owner, owner
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def layer(root):
    """The layer, not compressed."""
    files = {name: (text.encode(), 0o644) for name, text in FILES.items()}
    for program in PROGRAMS:
        path = os.path.join(root, program)
        files[program] = (read(path), 0o755)
        for library in libraries(path):
            files[library.lstrip("/")] = (read(library), 0o755)
    if os.path.exists(AUTHORITIES):
        files[AUTHORITIES.lstrip("/")] = (read(AUTHORITIES), 0o644)
    folders = {parent for name in files for parent in parents(name)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for folder in sorted(folders):
            add(archive, folder, b"", 0o755, kind=tarfile.DIRTYPE)
        add(archive, "data", b"", 0o700, owner=USER, kind=tarfile.DIRTYPE)
        add(archive, "tmp", b"", 0o1777, kind=tarfile.DIRTYPE)
        for name, (data, mode) in sorted(files.items()):
            add(archive, name, data, mode)
    return buffer.getvalue()


def parents(name):
    parts = name.split("/")[:-1]
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def version_of(program):
    output = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    lines = dict(line.split(": ", 1) for line in output.splitlines() if ": " in line)
    return output.splitlines()[0].split()[1], lines["commit"].split()[0]


def main(root, out):
    version, commit = version_of(os.path.join(root, PROGRAMS[0]))
    plain = layer(root)
    packed = gzip.compress(plain, 6, mtime=0)
    created = datetime.datetime.fromtimestamp(EPOCH, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {
        "org.opencontainers.image.title": "sluicegate",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.revision": commit,
        "org.opencontainers.image.source": "https://github.com/sluicegate/sluicegate",
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
    }
    config = {
        "created": created,
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ["PATH=/usr/bin:/bin"],
            "Entrypoint": ["/usr/bin/sluicegate"],
            # The API and the admin listener stay on the container's loopback: they have no authentication.
            "Cmd": ["run", "--data", "/data", "--http", "0.0.0.0:8080", "--events", "0.0.0.0:8081"],
            "ExposedPorts": {"8080/tcp": {}, "8081/tcp": {}},
            "Volumes": {"/data": {}},
            "WorkingDir": "/data",
            "StopSignal": "SIGTERM",
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(plain).hexdigest()]},
        "history": [{"created": created, "created_by": "deploy/packaging/image.py"}],
    }
    blobs = {}

    def blob(data, media_type):
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": "sha256:" + digest, "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config, sort_keys=True).encode(), "config.v1+json"),
        "layers": [blob(packed, "layer.v1.tar+gzip")],
        "annotations": labels,
    }
    described = blob(json.dumps(manifest, sort_keys=True).encode(), "manifest.v1+json")
    described["annotations"] = {
        "io.containerd.image.name": f"{NAME}:{version}",
        "org.opencontainers.image.ref.name": version,
    }
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [described]}

    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, f"sluicegate-{version}-{platform.machine()}-linux.oci.tar")
    with tarfile.open(path, mode="w", format=tarfile.GNU_FORMAT) as archive:
        add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        add(archive, "index.json", json.dumps(index, sort_keys=True).encode())
        for digest, data in sorted(blobs.items()):
            add(archive, f"blobs/sha256/{digest}", data)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
