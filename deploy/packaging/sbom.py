#!/usr/bin/env python3
"""Writes the bill of materials of both programs (CycloneDX 1.5, JSON) from cargo's own metadata and Cargo.lock.

    sbom.py OUT [TARGET]       writes OUT/sluicegate-VERSION-MACHINE-linux.cdx.json; TARGET is, for example, aarch64-unknown-linux-gnu

It lists what is compiled into the programs, not what only builds or tests them.
"""

import datetime
import json
import os
import subprocess
import sys
import tomllib

PROGRAMS = ["sluicegate", "sluicegate-transports"]
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def main(out, target):
    words = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    metadata = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    uses = {
        node["id"]: sorted(dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"]))
        for node in metadata["resolve"]["nodes"]
    }
    # The metadata unite the features of all packages of the workspace; a program has only those that it asks for itself.
    tree = ["cargo", "tree", "--locked", "--target", target, "-e", "normal", "--prefix", "none", "-f", "{p}"]
    tree += [word for program in PROGRAMS for word in ("-p", program)]
    lines = subprocess.run(tree, check=True, capture_output=True, text=True).stdout.splitlines()
    compiled = {tuple(line.split()[:2]) for line in lines if line}
    is_compiled = lambda package: (package["name"], f"v{package['version']}") in compiled
    uses = {user: [used for used in all_used if is_compiled(packages[used])] for user, all_used in uses.items()}
    waiting = [package["id"] for package in packages.values() if package["name"] in PROGRAMS]
    linked = set()
    while waiting:
        package = waiting.pop()
        if package not in linked:
            linked.add(package)
            waiting += uses[package]

    with open(os.path.join(metadata["workspace_root"], "Cargo.lock"), "rb") as lock:
        checksums = {(entry["name"], entry["version"]): entry.get("checksum") for entry in tomllib.load(lock)["package"]}

    def reference(package):
        return f"pkg:cargo/{package['name']}@{package['version']}"

    def component(package):
        entry = {
            "type": "library",
            "bom-ref": reference(package),
            "name": package["name"],
            "version": package["version"],
            "purl": reference(package),
        }
        if package["license"]:
            entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        checksum = checksums.get((package["name"], package["version"]))
        if checksum:
            entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        if package["repository"]:
            entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        return entry

    listed = sorted((packages[package] for package in linked), key=reference)
    main_package = next(package for package in listed if package["name"] == PROGRAMS[0])
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(EPOCH, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {**component(main_package), "type": "application"},
            "properties": [{"name": "cargo:target", "value": target}],
        },
        "components": [component(package) for package in listed if package is not main_package],
        "dependencies": [
            {"ref": reference(package), "dependsOn": sorted({reference(packages[used]) for used in uses[package["id"]]})}
            for package in listed
        ],
    }
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, f"sluicegate-{main_package['version']}-{target.split('-')[0]}-linux.cdx.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(bom, file, indent=1)
        file.write("\n")
    print(path)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else f"{os.uname().machine}-unknown-linux-gnu")
