//! Texts with their own grammar in the data plane and in the configuration: authorities, host
//! names, and the `--route` and `--image` rules.
#![no_main]

// By these names the program's own file knows them.
extern crate sluicegate_control as control;
extern crate sluicegate_dataplane as dataplane;

use libfuzzer_sys::fuzz_target;
use sluicegate_dataplane::codec::http::{has_token, is_authority, tokens};
use sluicegate_dataplane::table::{RoutingTable, host_name};

#[path = "../../src/config/route.rs"]
#[allow(dead_code, unreachable_pub)]
mod route;
#[path = "../../src/config/value.rs"]
#[allow(dead_code, unreachable_pub)]
mod value;

fuzz_target!(|bytes: &[u8]| {
    for token in tokens(bytes) {
        assert!(!token.is_empty() && !token.contains(&b','));
        if let Ok(text) = std::str::from_utf8(token) {
            assert!(has_token(bytes, text));
        }
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        assert!(!is_authority(bytes));
        return;
    };
    let name = host_name(text);
    assert!(text.starts_with(name));
    let _ = RoutingTable::default().route(text);
    if is_authority(bytes) {
        authority(text, name);
    }

    if let Ok(rule) = text.parse::<route::RouteRule>() {
        assert!(!rule.targets.is_empty());
        let host = rule.host.strip_prefix("*.").unwrap_or(&rule.host);
        assert!(rule.host == "*" || is_authority(host.as_bytes()), "{rule:?}");
        assert!(!rule.host.contains(|c: char| c.is_ascii_uppercase()));
    }
    if let Ok(rule) = text.parse::<value::ImageRule>() {
        assert!(!rule.image.is_empty() && !rule.command.is_empty());
    }
});

/// What an authority may hold, read a second time by the standard library.
fn authority(text: &str, name: &str) {
    assert!(
        !text.contains(|c: char| c.is_ascii_control() || c.is_whitespace() || "/@,;?#\\\"'<>".contains(c))
    );
    let host = name.strip_suffix('.').unwrap_or(name);
    match host.strip_prefix('[') {
        Some(inside) => {
            let inside = inside.strip_suffix(']').expect("brackets close");
            assert!(inside.parse::<std::net::Ipv6Addr>().is_ok(), "{text}");
        }
        None => assert!(!host.contains(':'), "{text}"),
    }
    let rest = text.strip_prefix(name).unwrap_or_default();
    let port = rest.strip_prefix('.').unwrap_or(rest);
    assert!(port.is_empty() || port.strip_prefix(':').is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit())));
}
