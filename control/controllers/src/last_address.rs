//! The last address of a destination that was lost. A status must not report an address that leads nowhere, and yet a restart must not
//! forget it: it is stored in the status's annotations, with the destination that it belongs to.

use crate::destination_resolver::DestinationAddress;
use support::sha256;
use types::shared::{Destination, Status};

/// Digits of a fingerprint that tell destinations of one object apart.
const FINGERPRINT_DIGITS: usize = 16;
/// In a fingerprint's place: the destination had been changed when it was lost.
const DESTINATION_CHANGED: &str = "another";

/// The annotations of one address.
#[derive(Debug)]
pub struct LastAddressAnnotations {
    pub url: &'static str,
    pub audience: &'static str,
    pub ca_certs: &'static str,
    /// The destination that was found there, by its fingerprint. Versions before this one wrote none.
    pub destination: &'static str,
}

pub const SUBSCRIBER: LastAddressAnnotations = LastAddressAnnotations {
    url: "sluicegate.dev/last-subscriber-uri",
    audience: "sluicegate.dev/last-subscriber-audience",
    ca_certs: "sluicegate.dev/last-subscriber-ca-certs",
    destination: "sluicegate.dev/last-subscriber-of",
};

pub const DEAD_LETTER_SINK: LastAddressAnnotations = LastAddressAnnotations {
    url: "sluicegate.dev/last-dead-letter-sink-uri",
    audience: "sluicegate.dev/last-dead-letter-sink-audience",
    ca_certs: "sluicegate.dev/last-dead-letter-sink-ca-certs",
    destination: "sluicegate.dev/last-dead-letter-sink-of",
};

/// An address from before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastAddress {
    pub address: DestinationAddress,
    /// It is of the destination that the spec names now.
    pub is_current: bool,
}

impl LastAddressAnnotations {
    /// The address for a status: `shown` where it is found, or else the one recorded when it was lost. `generation` is the
    /// object's now, and `named` what its spec names.
    #[must_use]
    pub fn read(
        &self,
        status: &Status,
        shown: Option<DestinationAddress>,
        generation: Option<i64>,
        named: &Destination,
    ) -> Option<LastAddress> {
        let is_current = status.observed_generation == generation;
        if let Some(address) = shown {
            return Some(LastAddress { address, is_current });
        }
        let noted = |key: &str| status.annotations.get(key).cloned();
        let address = DestinationAddress {
            url: noted(self.url)?,
            audience: noted(self.audience),
            ca_certs: noted(self.ca_certs),
        };
        let is_same = noted(self.destination).map_or(is_current, |of| of == destination_fingerprint(named));
        Some(LastAddress { address, is_current: is_same })
    }

    /// Notes it, or takes the note away.
    pub fn record(&self, status: &mut Status, known: Option<LastAddress>, named: &Destination) {
        let of = known.as_ref().map(|known| {
            if known.is_current { destination_fingerprint(named) } else { DESTINATION_CHANGED.to_owned() }
        });
        let DestinationAddress { url, audience, ca_certs } = known.map(|known| known.address).unwrap_or_default();
        let url = of.is_some().then_some(url);
        for (key, value) in
            [(self.url, url), (self.audience, audience), (self.ca_certs, ca_certs), (self.destination, of)]
        {
            match value {
                Some(value) => status.annotations.insert(key.to_owned(), value),
                None => status.annotations.remove(key),
            };
        }
    }
}

fn destination_fingerprint(named: &Destination) -> String {
    let json = serde_json::to_vec(named).unwrap_or_default(); // strings, which can all be written
    sha256::hex_digest(&json).chars().take(FINGERPRINT_DIGITS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(uri: &str) -> Destination {
        Destination { uri: Some(uri.to_owned()), ..Destination::default() }
    }

    /// EV-TRG-08, EV-TRG-11: an address counts for as long as the same destination is named, whatever else changes.
    #[test]
    fn an_address_is_of_the_destination_that_was_found_there() {
        let (mut status, shown) = (Status { observed_generation: Some(1), ..Status::default() }, "http://s/");
        let read = |status: &Status, shown: Option<&str>, generation, named| {
            SUBSCRIBER.read(status, shown.map(DestinationAddress::from), Some(generation), &at(named))
        };
        let is_same = |known: &Option<LastAddress>| known.as_ref().map(|known| known.is_current);
        assert_eq!(read(&status, None, 1, "a"), None);
        assert_eq!(is_same(&read(&status, Some(shown), 2, "a")), Some(false), "it may be another one");

        let lost = read(&status, Some(shown), 1, "a");
        assert_eq!(is_same(&lost), Some(true));
        SUBSCRIBER.record(&mut status, lost.clone(), &at("a"));
        assert_eq!(read(&status, None, 2, "a"), lost, "something else was changed");
        let turned = read(&status, None, 3, "b");
        assert_eq!(is_same(&turned), Some(false));
        SUBSCRIBER.record(&mut status, turned, &at("b"));
        status.observed_generation = Some(3);
        assert_eq!(is_same(&read(&status, None, 3, "b")), Some(false));

        status.annotations.remove(SUBSCRIBER.destination);
        assert_eq!(is_same(&read(&status, None, 3, "b")), Some(true), "noted by a version before this one");
        SUBSCRIBER.record(&mut status, None, &at("b"));
        assert!(status.annotations.is_empty());
    }
}
