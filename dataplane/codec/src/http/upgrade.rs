//! What a request asks to switch to by `Upgrade`.

use super::{FieldName, RequestHead, RequestView, UpgradeRequest, tokens};

impl RequestHead {
    /// Whether the instance is asked for another protocol.
    #[inline]
    #[must_use]
    pub fn is_upgrade(&self) -> bool {
        matches!(self.upgrade, UpgradeRequest::WebSocket | UpgradeRequest::Admitted { .. })
    }

    /// Admits the first protocol of an [offered](UpgradeRequest::Offered) upgrade that is among `protocols`. Of more than
    /// one, the client likes the first best.
    pub fn admit_upgrade(&mut self, bytes: &[u8], protocols: &[&str]) {
        if self.upgrade != UpgradeRequest::Offered || protocols.is_empty() {
            return;
        }
        let listed = |token: &[u8]| protocols.iter().position(|one| token.eq_ignore_ascii_case(one.as_bytes()));
        let admitted = (0..=u8::MAX).zip(self.view(bytes).upgrades()).find_map(|(offered, token)| {
            let listed = listed(token).and_then(|listed| u8::try_from(listed).ok())?;
            Some(UpgradeRequest::Admitted { offered, listed })
        });
        self.upgrade = admitted.unwrap_or(UpgradeRequest::Offered);
    }
}

impl<'a> RequestView<'a> {
    /// The protocols that `Upgrade` names, in the client's order.
    pub fn upgrades(self) -> impl Iterator<Item = &'a [u8]> {
        self.values(FieldName::Upgrade).flat_map(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Parsed, parse_request};

    /// The protocols that an operator who lists these two enables.
    fn asked(first_lines: &str, upgrade: &str) -> UpgradeRequest {
        let text = format!("{first_lines}\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: {upgrade}\r\n\r\n");
        let mut head = RequestHead::default();
        assert!(matches!(parse_request(text.as_bytes(), &mut head), Parsed::Head { .. }), "{text}");
        head.admit_upgrade(text.as_bytes(), &["derp", "SPDY/3.1"]);
        head.upgrade
    }

    /// RFC 9110 7.8: by `Connection`, in HTTP/1.1, the client's first that is listed.
    #[test]
    fn listed_upgrade_is_admitted() {
        use UpgradeRequest::{Admitted, None, Offered, WebSocket};
        for (first, upgrade, wanted) in [
            ("GET / HTTP/1.1", "derp", Admitted { offered: 0, listed: 0 }),
            ("POST / HTTP/1.1", "DERP", Admitted { offered: 0, listed: 0 }),
            ("GET / HTTP/1.1", "a, spdy/3.1,derp", Admitted { offered: 1, listed: 1 }),
            ("GET / HTTP/1.1", "a\r\nUpgrade: b, derp", Admitted { offered: 2, listed: 0 }),
            ("GET / HTTP/1.1", "SPDY/3", Offered),
            ("GET / HTTP/1.1", "h2c", Offered),
            ("GET / HTTP/1.1", "derp, websocket", WebSocket),
            ("POST / HTTP/1.1", "websocket", None),
            ("GET / HTTP/1.0", "derp", None),
            ("CONNECT a:1 HTTP/1.1", "derp", None),
        ] {
            assert_eq!(asked(first, upgrade), wanted, "{first} {upgrade}");
        }
    }

    #[test]
    fn upgrade_without_connection_is_none() {
        let text = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: derp\r\n\r\n";
        let mut head = RequestHead::default();
        assert!(matches!(parse_request(text, &mut head), Parsed::Head { .. }));
        head.admit_upgrade(text, &["derp"]);
        assert!(head.upgrade == UpgradeRequest::None && !head.is_upgrade());
    }
}
