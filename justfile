# Everyday commands; `just` lists them.

default:
    @just --list

# start the appliance with examples and real traffic
demo:
    cargo run --release -- demo

test:
    cargo test --workspace

# the programs for packages, with their debug info in files beside them (needs objcopy)
dist:
    cargo build --locked --profile dist -p sluicegate -p sluicegate-transports
    for program in sluicegate sluicegate-adapters; do objcopy --only-keep-debug target/dist/$program target/dist/$program.debug || exit 1; done
    deploy/packaging/stage.sh target/dist target/dist/root

# .deb and .rpm in target/dist/files (needs cargo-deb and cargo-generate-rpm)
package: dist
    mkdir -p target/dist/files
    cargo deb --no-build --no-strip --no-dbgsym --locked --profile dist --output target/dist/files/
    cargo generate-rpm --profile dist --payload-compress xz --output target/dist/files/

# the files of the packages below one folder, in target/dist/files
tarball: dist
    deploy/packaging/tarball.sh target/dist/root target/dist/files

# a container image as an OCI archive in target/dist/files, without a daemon (needs python3)
image: dist
    deploy/packaging/image.py target/dist/root target/dist/files

# the bill of materials of both programs in target/dist/files (needs python3)
sbom:
    deploy/packaging/sbom.py target/dist/files

# all files of a release, with their checksums; the release workflow runs the same
release: package tarball image sbom
    cd target/dist/files && sha256sum -- *.deb *.rpm *.tar.gz *.oci.tar *.cdx.json > SHA256SUMS

# what the gate runs
check:
    bash .ci/run

fmt:
    cargo fmt --all

# criterion benches; see benches/README.md
bench *names:
    cargo bench --workspace {{ names }}

# licences, advisories and duplicate crates (needs cargo-deny)
deny:
    cargo deny check

# the log's tests under the address sanitizer (needs a nightly toolchain), fewer seeds
wal-asan:
    RUSTFLAGS=-Zsanitizer=address SLUICEGATE_SEEDS=100 cargo +nightly test -p sluicegate-wal --target x86_64-unknown-linux-gnu --lib --tests

# what of the log runs under Miri (needs nightly with miri): all but the map itself, which Miri cannot make
wal-miri:
    MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 cargo +nightly miri test -p sluicegate-wal --lib -- --skip map:: --skip log:: --skip segment:: --skip recovery:: --skip index::

# how many power cuts, lies and kills you like: `just wal-seeds 100000 200`
wal-seeds seeds kills:
    SLUICEGATE_SEEDS={{ seeds }} cargo test --release -p sluicegate-wal --test power_cut -- --nocapture
    SLUICEGATE_KILL_ROUNDS={{ kills }} cargo test --test durability -- --nocapture however_often
