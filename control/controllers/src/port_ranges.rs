//! The ports that objects may open listeners on.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The first port that programs of other users may listen on. Below are those of the system's services, such as 22 and 53.
const UNPRIVILEGED_PORT_MIN: u16 = 1024;
const PORT_MAX: u16 = u16::MAX;

/// Ports, written as `any`, `none`, or `80,443,8000-9000`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRanges(Vec<RangeInclusive<u16>>);

/// The ports of HTTP and HTTPS, and those that need no privilege: an API user must not take the port of a system's service.
impl Default for PortRanges {
    fn default() -> Self {
        Self(vec![80..=80, 443..=443, UNPRIVILEGED_PORT_MIN..=PORT_MAX])
    }
}

impl PortRanges {
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(&port))
    }
}

impl FromStr for PortRanges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "any" => Ok(Self(vec![1..=PORT_MAX])),
            "none" => Ok(Self(Vec::new())),
            _ => text.split(',').map(|part| range(part.trim())).collect::<Result<_, _>>().map(Self),
        }
    }
}

fn range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.trim().parse().ok().filter(|port: &u16| *port > 0);
    match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => {
            Err(format!("{text:?} is neither a port nor a range of ports, like 80 or 8000-9000; nor is it any or none"))
        }
    }
}

impl fmt::Display for PortRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (at, range) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges_contain_what_they_name() {
        for (text, within, outside) in [
            ("any", &[1, 22, 65535][..], &[][..]),
            ("none", &[], &[1, 80, 65535]),
            ("80, 443,8000-9000", &[80, 443, 8000, 9000], &[81, 7999, 9001]),
        ] {
            let ranges: PortRanges = text.parse().unwrap();
            assert!(within.iter().all(|port| ranges.contains(*port)), "{text}");
            assert!(!outside.iter().any(|port| ranges.contains(*port)), "{text}");
        }
        let default = PortRanges::default();
        assert!([80, 443, 1024, 65535].iter().all(|port| default.contains(*port)));
        assert!(![22, 53, 1023].iter().any(|port| default.contains(*port)));
        assert_eq!(default.to_string(), "80,443,1024-65535");
    }

    #[test]
    fn invalid_port_ranges_are_refused() {
        for text in ["", "0", "x", "80-", "90-80", "65536", "80,,443"] {
            assert!(text.parse::<PortRanges>().is_err(), "{text:?}");
        }
    }
}
