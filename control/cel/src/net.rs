//! IP addresses, CIDR ranges and URLs: the functions that Kubernetes adds for them.

use std::net::IpAddr;

use crate::value::{CelValue, no_matching_overload};
use crate::{EvalBudget, EvalError, mismatch};

/// An address that has one way of being written: no IPv4 in IPv6.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    let address = text.parse::<IpAddr>().ok()?;
    let mapped = matches!(address, IpAddr::V6(six) if six.to_ipv4_mapped().is_some());
    (!mapped).then_some(address)
}

/// `10.0.0.0/8`
pub(crate) fn range(text: &str) -> Option<(IpAddr, u8)> {
    let (start, bits) = text.split_once('/')?;
    let start = address(start)?;
    let plain = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
    let bits: u8 = bits.parse().ok().filter(|bits| plain && *bits <= width(start))?;
    Some((start, bits))
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address with what is after its first `bits` cleared.
fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(four) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((four.to_bits() & mask).into())
        }
        IpAddr::V6(six) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((six.to_bits() & mask).into())
        }
    }
}

pub(crate) fn of_address(name: &str, of: IpAddr) -> Result<CelValue, EvalError> {
    let local = match of {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    };
    let truth = match name {
        "family" => return Ok(CelValue::Int(if of.is_ipv4() { 4 } else { 6 })),
        "isUnspecified" => of.is_unspecified(),
        "isLoopback" => of.is_loopback(),
        "isLinkLocalUnicast" => local,
        "isLinkLocalMulticast" => match of {
            IpAddr::V4(four) => four.octets()[..3] == [224, 0, 0],
            IpAddr::V6(six) => six.segments()[0] & 0xff0f == 0xff02,
        },
        "isGlobalUnicast" => {
            let all = matches!(of, IpAddr::V4(four) if four.is_broadcast());
            !(all || local || of.is_unspecified() || of.is_loopback() || of.is_multicast())
        }
        _ => return no_matching_overload(name, &CelValue::Ip(of)),
    };
    Ok(CelValue::Bool(truth))
}

pub(crate) fn of_range(name: &str, (start, bits): (IpAddr, u8), given: &[CelValue]) -> Result<CelValue, EvalError> {
    let holds = |other: IpAddr| other.is_ipv4() == start.is_ipv4() && masked(other, bits) == masked(start, bits);
    match (name, given) {
        ("ip", []) => Ok(CelValue::Ip(start)),
        ("masked", []) => Ok(CelValue::Cidr(masked(start, bits), bits)),
        ("prefixLength", []) => Ok(CelValue::Int(bits.into())),
        ("containsIP", [CelValue::Ip(other)]) => Ok(CelValue::Bool(holds(*other))),
        ("containsIP", [CelValue::String(text)]) => match address(text) {
            Some(other) => Ok(CelValue::Bool(holds(other))),
            None => mismatch(format!("{text:?} is not an ip")),
        },
        ("containsCIDR", [CelValue::Cidr(other, length)]) => Ok(CelValue::Bool(*length >= bits && holds(*other))),
        ("containsCIDR", [CelValue::String(text)]) => match range(text) {
            Some((other, length)) => Ok(CelValue::Bool(length >= bits && holds(other))),
            None => mismatch(format!("{text:?} is not a cidr")),
        },
        _ => no_matching_overload(name, &CelValue::Cidr(start, bits)),
    }
}

/// A part of a text that is a URL.
pub(crate) fn of_url(name: &str, url: &str, steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
    steps.spend_text(url.len())?;
    let (scheme, rest) = if url.starts_with('/') { ("", url) } else { url.split_once("://").unwrap_or(("", url)) };
    let end = if scheme.is_empty() { 0 } else { rest.find(['/', '?', '#']).unwrap_or(rest.len()) };
    let (authority, rest) = rest.split_at(end);
    let host = authority.rsplit('@').next().unwrap_or("");
    // A colon within brackets is part of the address.
    let colon = host.rfind(':').filter(|colon| !host[*colon..].contains(']')).unwrap_or(host.len());
    let (hostname, port) = host.split_at(colon);
    Ok(CelValue::text(match name {
        "getScheme" => scheme,
        "getHost" => host,
        "getHostname" => hostname.trim_matches(['[', ']']),
        "getPort" => port.trim_start_matches(':'),
        "getEscapedPath" => rest.split(['?', '#']).next().unwrap_or(""),
        _ => return no_matching_overload(name, &CelValue::Url(url.into())),
    }))
}
