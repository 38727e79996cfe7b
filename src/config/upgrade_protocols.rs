//! `--upgrade-protocols`: what clients may switch to besides WebSocket.

use std::str::FromStr;

use dataplane::http::limits::UPGRADE_PROTOCOLS_MAX;
use serde::Deserialize;

use super::ManyValues;

/// Names with commas between them, as `Upgrade` has them: `NAME` or `NAME/VERSION` (RFC 9110 7.8).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct UpgradeProtocolList(Vec<String>);

impl FromStr for UpgradeProtocolList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(|name| protocol(name.trim())).collect::<Result<_, _>>().map(Self)
    }
}

fn protocol(text: &str) -> Result<String, String> {
    let (name, version) = text.split_once('/').unwrap_or((text, "0"));
    if !is_token(name) || !is_token(version) {
        return Err(format!("{text:?} is not a protocol like tailscale-control-protocol or SPDY/3.1"));
    }
    if ["h2c", "http"].iter().any(|http| name.eq_ignore_ascii_case(http)) {
        // Requests inside the tunnel would pass by the routes, the target policy and the forwarding headers of this proxy.
        return Err(format!("{text:?} is HTTP, whose requests would bypass the routes; remove it from the list"));
    }
    Ok(text.to_owned())
}

/// RFC 9110 5.6.2.
fn is_token(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_part)
}

impl TryFrom<String> for UpgradeProtocolList {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The names of all lists, for as long as the process lives: they are read once, at the start.
pub(super) fn all(lists: &[ManyValues<UpgradeProtocolList>]) -> Result<&'static [&'static str], String> {
    let names = lists.iter().flat_map(|ManyValues(lists)| lists).flat_map(|list| &list.0);
    // WebSocket may always be asked for.
    let mut distinct: Vec<String> = Vec::new();
    for name in names.filter(|name| !name.eq_ignore_ascii_case("websocket")) {
        if !distinct.iter().any(|one| one.eq_ignore_ascii_case(name)) {
            distinct.push(name.clone());
        }
    }
    let names = distinct;
    if names.len() > UPGRADE_PROTOCOLS_MAX {
        return Err(format!("upgrade-protocols: {} names are given, limit {UPGRADE_PROTOCOLS_MAX}", names.len()));
    }
    Ok(Vec::leak(names.into_iter().map(|name| &*String::leak(name)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upgrade_protocols_are_names_with_versions() {
        let list: UpgradeProtocolList = "derp, SPDY/3.1,websocket,DERP".parse().unwrap();
        assert_eq!(all(&[ManyValues(vec![list])]).unwrap(), ["derp", "SPDY/3.1"]);
        for bad in ["", "a,", "a b", "*/", "a/", "a:b", "ü", "h2c", "H2C", "HTTP/2.0"] {
            assert!(bad.parse::<UpgradeProtocolList>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn upgrade_protocols_beyond_the_limit_are_refused() {
        let many = (0..=UPGRADE_PROTOCOLS_MAX).map(|number| format!("p{number}")).collect::<Vec<_>>().join(",");
        let why = all(&[ManyValues(vec![many.parse().unwrap()])]).unwrap_err();
        assert!(why.contains("limit 32"), "{why}");
    }
}
