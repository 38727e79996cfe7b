//! Where the requests of a route go.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use dataplane::table::UnixPath;

use super::value::is_domain;

/// Where requests go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RouteTarget {
    Address(SocketAddr),
    /// A host name, which is resolved at the start and periodically.
    Name(String, u16),
    /// A Unix socket of this host: `unix:/path` or `unix:///path`.
    Unix(UnixPath),
}

impl fmt::Display for RouteTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
            Self::Unix(path) => path.fmt(f),
        }
    }
}

impl FromStr for RouteTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return UnixPath::new(path)
                .map(Self::Unix)
                .map_err(|why| format!("{path:?} is not a valid Unix socket path: {why}"));
        }
        match (text.parse::<SocketAddr>(), text.rsplit_once(':')) {
            (Ok(address), _) if address.port() != 0 => return Ok(Self::Address(address)),
            (Err(_), Some((name, port))) if is_domain(name) && !is_number(name) => match port.parse() {
                Ok(port) if port != 0 => return Ok(Self::Name(name.to_ascii_lowercase(), port)),
                _ => {}
            },
            _ => {}
        }
        Err(format!("{text:?} is not an address like 127.0.0.1:9100, localhost:9100 or unix:/run/app.sock"))
    }
}

/// A name that ends in a number is an address with a mistake in it, like 127.0.0.256.
fn is_number(name: &str) -> bool {
    name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()))
}
