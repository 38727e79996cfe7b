//! What a stream connects to: an internet address or a Unix socket of this host.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

/// `sun_path` has 108 bytes, of which the last ends the text.
pub const UNIX_PATH_BYTES_MAX: usize = 107;

/// Where a stream connects to. As large as a [`SocketAddr`], and copied as freely: a table holds one for each endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointAddress {
    Ip(SocketAddr),
    Unix(UnixPath),
}

/// The path of a Unix socket. The text is interned and lives as long as the process, so that an address can be copied:
/// paths come from the configuration, so their number is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixPath(&'static str);

/// Why a text is not the path of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnixPathError {
    #[error("it is not absolute; write it from the root, like /run/app.sock")]
    Relative,
    #[error("it has {bytes} bytes, and the kernel takes at most {UNIX_PATH_BYTES_MAX}; use a shorter path")]
    TooLong { bytes: usize },
    #[error("it contains a NUL byte")]
    Nul,
}

impl UnixPath {
    /// # Errors
    /// The text is not an absolute path that fits into a socket address.
    pub fn new(text: &str) -> Result<Self, UnixPathError> {
        if !text.starts_with('/') {
            return Err(UnixPathError::Relative);
        }
        if text.len() > UNIX_PATH_BYTES_MAX {
            return Err(UnixPathError::TooLong { bytes: text.len() });
        }
        if text.contains('\0') {
            return Err(UnixPathError::Nul);
        }
        static INTERNED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let mut interned = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
        let text = match interned.get(text) {
            Some(known) => known,
            None => {
                let text: &'static str = Box::leak(text.into());
                interned.insert(text);
                text
            }
        };
        Ok(Self(text))
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl EndpointAddress {
    /// The internet address, if it is one.
    #[must_use]
    pub fn socket_addr(self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(address),
            Self::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for EndpointAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

impl PartialEq<SocketAddr> for EndpointAddress {
    fn eq(&self, other: &SocketAddr) -> bool {
        *self == Self::Ip(*other)
    }
}

impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix(path) => path.fmt(f),
        }
    }
}

impl fmt::Display for UnixPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix:{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table holds an address for each endpoint, and a connection some: a Unix path makes none of them larger.
    #[test]
    fn endpoint_address_is_as_small_as_a_socket_address() {
        assert_eq!(size_of::<EndpointAddress>(), size_of::<SocketAddr>());
        assert_eq!(size_of::<Option<EndpointAddress>>(), size_of::<SocketAddr>());
    }

    #[test]
    fn unix_path_that_no_socket_can_have_is_refused() {
        let longest = format!("/{}", "a".repeat(UNIX_PATH_BYTES_MAX - 1));
        assert_eq!(UnixPath::new(&longest).unwrap().as_str(), longest);
        for (text, why) in [
            ("", UnixPathError::Relative),
            ("run/app.sock", UnixPathError::Relative),
            ("@abstract", UnixPathError::Relative),
            (&*format!("{longest}a"), UnixPathError::TooLong { bytes: UNIX_PATH_BYTES_MAX + 1 }),
            ("/run/a\0b", UnixPathError::Nul),
        ] {
            assert_eq!(UnixPath::new(text), Err(why), "{text:?}");
        }
    }

    #[test]
    fn unix_path_of_the_same_text_is_interned_once() {
        let [one, two] = [(); 2].map(|()| UnixPath::new("/run/interned.sock").unwrap());
        assert!(std::ptr::eq(one.as_str(), two.as_str()));
        assert_eq!(EndpointAddress::Unix(one).to_string(), "unix:/run/interned.sock");
    }
}
