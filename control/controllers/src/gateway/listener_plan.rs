//! Which listeners have to be opened and closed: values in, values out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use contract::listener_sockets::ListenerSpec;

use super::conditions::ConditionRefusal;

/// Listeners that are opened at run time, in all. Each has a socket for each core, a TLS state, and a share of the table.
pub(super) const LISTENERS_MAX: usize = 256;

/// The listeners that Gateways want, each with the first Gateway that wants it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WantedListeners<'a> {
    by_address: BTreeMap<(SocketAddr, bool), (ListenerSpec, &'a str)>,
}

/// What has to happen so that those listeners are open that are wanted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ListenerPlan {
    /// In this order: what is closed may have the address of what is opened.
    pub(super) close: Vec<ListenerSpec>,
    pub(super) open: Vec<ListenerSpec>,
    pub(super) keep: Vec<ListenerSpec>,
}

impl<'a> WantedListeners<'a> {
    /// From the listeners of Gateways, the Gateway with the highest precedence first. An address has one protocol.
    pub(super) fn of(claims: impl IntoIterator<Item = (&'a str, ListenerSpec)>) -> Self {
        let mut by_address = BTreeMap::new();
        for (gateway, spec) in claims {
            let key = (spec.address, spec.protocol.is_datagram());
            if by_address.len() < LISTENERS_MAX || by_address.contains_key(&key) {
                by_address.entry(key).or_insert((spec, gateway));
            }
        }
        Self { by_address }
    }

    pub(super) fn specs(&self) -> BTreeSet<ListenerSpec> {
        self.by_address.values().map(|(spec, _)| *spec).collect()
    }

    /// Why a listener is not among them: another Gateway has its address for another protocol, or there are too many.
    pub(super) fn refusal(&self, spec: ListenerSpec) -> Option<ConditionRefusal> {
        let ListenerSpec { address, protocol } = spec;
        match self.by_address.get(&(address, protocol.is_datagram())) {
            Some((first, _)) if *first == spec => None,
            Some((first, gateway)) => {
                let why = format!("The Gateway {gateway} has {address} for {} already.", first.protocol.name());
                Some(ConditionRefusal::new("ProtocolConflict", why))
            }
            None => {
                let why = format!("Gateways have opened {LISTENERS_MAX} listeners already, and there cannot be more.");
                Some(ConditionRefusal::new("TooManyListeners", why))
            }
        }
    }
}

/// Compares what is wanted with what is open.
pub(super) fn plan(wanted: &BTreeSet<ListenerSpec>, open: &BTreeSet<ListenerSpec>) -> ListenerPlan {
    ListenerPlan {
        close: open.difference(wanted).copied().collect(),
        open: wanted.difference(open).copied().collect(),
        keep: open.intersection(wanted).copied().collect(),
    }
}

#[cfg(test)]
mod tests {
    use contract::listener_sockets::ListenerProtocol::{self, Http, Https, Udp};

    use super::*;

    fn spec(port: u16, protocol: ListenerProtocol) -> ListenerSpec {
        ListenerSpec { address: SocketAddr::from(([127, 0, 0, 1], port)), protocol }
    }

    #[test]
    fn plan_opens_what_is_wanted_and_closes_the_rest() {
        let (a, b, c) = (spec(1, Http), spec(2, Http), spec(3, Https));
        for (wanted, open, expected) in [
            (&[][..], &[][..], (&[][..], &[][..], &[][..])),
            (&[a, b], &[], (&[], &[a, b], &[])),
            (&[a, c], &[a, b], (&[b], &[c], &[a])),
            (&[], &[a, b], (&[a, b], &[], &[])),
            (&[spec(1, Https)], &[a], (&[a], &[spec(1, Https)], &[])),
        ] {
            let plan = plan(&wanted.iter().copied().collect(), &open.iter().copied().collect());
            assert_eq!((&plan.close[..], &plan.open[..], &plan.keep[..]), expected, "{wanted:?} with {open:?} open");
        }
    }

    #[test]
    fn address_has_the_protocol_of_the_first_gateway() {
        let claims = [("ns/old", spec(1, Http)), ("ns/new", spec(1, Https)), ("ns/new", spec(1, Udp))];
        let wanted = WantedListeners::of(claims);
        assert_eq!(wanted.specs(), [spec(1, Http), spec(1, Udp)].into());
        let refusal = wanted.refusal(spec(1, Https)).unwrap();
        assert_eq!(refusal.reason, "ProtocolConflict");
        assert!(refusal.message.contains("ns/old") && refusal.message.contains("127.0.0.1:1"), "{}", refusal.message);
        assert_eq!(wanted.refusal(spec(1, Http)), None);
    }

    #[test]
    fn listeners_beyond_the_limit_are_refused() {
        let ports = 1..=u16::try_from(LISTENERS_MAX + 1).unwrap();
        let wanted = WantedListeners::of(ports.clone().map(|port| ("ns/a", spec(port, Http))));
        assert_eq!(wanted.specs().len(), LISTENERS_MAX);
        assert_eq!(wanted.refusal(spec(*ports.end(), Http)).unwrap().reason, "TooManyListeners");
        assert_eq!(wanted.refusal(spec(1, Http)), None);
    }
}
