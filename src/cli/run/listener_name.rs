//! The listening sockets of the appliance by their purpose.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// The purpose of a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum ListenerName {
    Http,
    Https,
    Private,
    PrivateHttps,
    Events,
    EventsHttps,
    Api,
    Admin,
    Console,
    /// A listener that a Gateway opened at run time.
    Gateway {
        address: SocketAddr,
        is_datagram: bool,
    },
}

impl ListenerName {
    /// The flag of its address.
    pub(super) const fn flag(self) -> &'static str {
        match self {
            Self::Http => "--http",
            Self::Https => "--https",
            Self::Private => "--cluster-local",
            Self::PrivateHttps => "--cluster-local-https",
            Self::Events => "--events",
            Self::EventsHttps => "--events-https",
            Self::Api => "--api",
            Self::Admin => "--admin",
            Self::Console => "--console",
            Self::Gateway { .. } => "a Gateway",
        }
    }

    /// The key of its address in the configuration file.
    pub(super) fn key(self) -> &'static str {
        self.flag().trim_start_matches('-')
    }
}
