# Everyday commands; `just` lists them.

default:
    @just --list

# start the appliance with examples and real traffic
demo:
    cargo run --release -- demo

test:
    cargo test --workspace

# the program for packages, and its debug info in a file beside it (needs objcopy)
dist:
    cargo build --locked --profile dist
    mkdir -p target/dist/package
    objcopy --only-keep-debug target/dist/sluicegate target/dist/package/sluicegate.debug
    objcopy --strip-all --add-gnu-debuglink=target/dist/package/sluicegate.debug target/dist/sluicegate target/dist/package/sluicegate

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
