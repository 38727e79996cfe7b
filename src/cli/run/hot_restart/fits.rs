//! Whether a successor would serve what the running process serves. Sockets are handed over unchanged, so
//! addresses and the number of cores cannot change.

use std::net::SocketAddr;

use anyhow::{Result, bail, ensure};

use super::super::sockets::SocketDescriptors;
use super::{HandoverRequest, ListenerName, PROTOCOL};

/// # Errors The first setting that differs, by its flag, with both values.
pub(super) fn check(hello: &HandoverRequest, kept: &SocketDescriptors) -> Result<()> {
    ensure!(
        hello.protocol == PROTOCOL,
        "the new process speaks version {} of the handover, this one version {PROTOCOL}; stop this one and start the new one",
        hello.protocol
    );
    let workers = kept.workers();
    ensure!(
        hello.workers == workers,
        "the new process has --workers {}, this one has {workers}; give it --workers {workers}",
        hello.workers
    );
    for (name, wanted) in &hello.addresses {
        check_address(*name, *wanted, kept.address(*name))?;
    }
    for (name, _) in kept.all() {
        if !hello.addresses.iter().any(|(wanted, _)| *wanted == name) {
            let (flag, at) = (name.flag(), kept.address(name).map(|at| format!(" {at}")).unwrap_or_default());
            bail!("the new process has no {flag}, this one listens on {flag}{at}; give it the same");
        }
    }
    Ok(())
}

fn check_address(name: ListenerName, wanted: SocketAddr, have: Option<SocketAddr>) -> Result<()> {
    let flag = name.flag();
    let Some(have) = have else {
        bail!("the new process has {flag} {wanted}, this one has no {flag}; a hot restart adds no listener");
    };
    let same = wanted.ip() == have.ip() && (wanted.port() == 0 || wanted.port() == have.port());
    ensure!(same, "the new process has {flag} {wanted}, this one listens on {have}; give it {flag} {have}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejection_names_flag_and_both_addresses() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let refusal = |wanted, have| check_address(ListenerName::EventsHttps, wanted, have).unwrap_err().to_string();
        let other = refusal(at("127.0.0.1:1"), Some(at("127.0.0.1:2")));
        assert!(
            ["--events-https 127.0.0.1:1", "--events-https 127.0.0.1:2"].iter().all(|text| other.contains(text)),
            "{other}"
        );
        assert!(refusal(at("127.0.0.1:1"), None).contains("no --events-https"));
        check_address(ListenerName::Api, at("127.0.0.1:0"), Some(at("127.0.0.1:2"))).unwrap();
    }
}
