# Everyday commands; `just` lists them.

default:
    @just --list

# start the appliance with examples and real traffic
demo:
    cargo run --release -- demo

test:
    cargo test --workspace

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
