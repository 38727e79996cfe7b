//! Field names that a proxy acts on, and lists of tokens.

/// Prefix of internal headers towards instances; a client's fields with this prefix are not forwarded (RT-HDR-03).
const INTERNAL_PREFIX: &[u8] = b"sluicegate-";

/// Prefix of what proxies say about their clients.
const FORWARDED_PREFIX: &[u8] = b"x-forwarded-";

/// What a field means to a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldName {
    /// Forwarded unchanged.
    Other,
    Host,
    /// Of a response.
    Date,
    ContentLength,
    TransferEncoding,
    Connection,
    Upgrade,
    Expect,
    /// How many proxies may still forward an OPTIONS or TRACE.
    MaxForwards,
    Forwarded,
    ForwardedFor,
    ForwardedHost,
    ForwardedProto,
    /// What else a proxy says about its client: `X-Real-IP` and every other `X-Forwarded-…`.
    ForwardedOther,
    TraceParent,
    TraceState,
    /// Belongs to one connection: `Keep-Alive`, `Proxy-Connection`, `Proxy-Authenticate`, `Proxy-Authorization`, `TE`.
    HopByHop,
    /// Reserved for the gateway.
    Internal,
    /// `K-Network-Probe`: asks which route would answer (X-KI-16).
    NetworkProbe,
    /// `K-Network-Hash`: belongs to probes.
    NetworkHash,
    /// `Knative-Serving-Revision`, `Knative-Serving-Namespace`, `K-Original-Host`, `K-Proxy-Request`: set by the
    /// platform for instances, never accepted from clients.
    Platform,
    /// `Content_Length`, `Transfer_Encoding`: not HTTP fields, but the same as the real ones to servers that pass
    /// fields as CGI variables.
    UnderscoreVariant,
}

impl FieldName {
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        let begins = |wanted: &[u8]| name.first().is_some_and(|first| first | 0x20 == wanted[0]);
        let is = |wanted: &[u8]| begins(wanted) && name.eq_ignore_ascii_case(wanted);
        // By length and first letter: most names of a usual request are decided after one comparison.
        match name.len() {
            2 if is(b"te") => Self::HopByHop,
            4 if is(b"host") => Self::Host,
            4 if is(b"date") => Self::Date,
            6 if is(b"expect") => Self::Expect,
            7 if is(b"upgrade") => Self::Upgrade,
            9 if is(b"forwarded") => Self::Forwarded,
            9 if is(b"x-real-ip") => Self::ForwardedOther,
            10 if is(b"connection") => Self::Connection,
            10 if is(b"keep-alive") => Self::HopByHop,
            10 if is(b"tracestate") => Self::TraceState,
            11 if is(b"traceparent") => Self::TraceParent,
            12 if is(b"max-forwards") => Self::MaxForwards,
            14 if is(b"content-length") => Self::ContentLength,
            14 if is(b"k-network-hash") => Self::NetworkHash,
            14 if is(b"content_length") => Self::UnderscoreVariant,
            15 if is(b"x-forwarded-for") => Self::ForwardedFor,
            15 if is(b"k-network-probe") => Self::NetworkProbe,
            15 if is(b"k-original-host") || is(b"k-proxy-request") => Self::Platform,
            16 if is(b"x-forwarded-host") => Self::ForwardedHost,
            16 if is(b"proxy-connection") => Self::HopByHop,
            17 if is(b"transfer-encoding") => Self::TransferEncoding,
            17 if is(b"transfer_encoding") => Self::UnderscoreVariant,
            17 if is(b"x-forwarded-proto") => Self::ForwardedProto,
            18 if is(b"proxy-authenticate") => Self::HopByHop,
            19 if is(b"proxy-authorization") => Self::HopByHop,
            24 if is(b"knative-serving-revision") => Self::Platform,
            25 if is(b"knative-serving-namespace") => Self::Platform,
            length if length > INTERNAL_PREFIX.len() => {
                if begins(INTERNAL_PREFIX) && name[..INTERNAL_PREFIX.len()].eq_ignore_ascii_case(INTERNAL_PREFIX) {
                    Self::Internal
                } else if begins(FORWARDED_PREFIX)
                    && length > FORWARDED_PREFIX.len()
                    && name[..FORWARDED_PREFIX.len()].eq_ignore_ascii_case(FORWARDED_PREFIX)
                {
                    Self::ForwardedOther
                } else if is_underscored_forwarding(name) {
                    Self::Platform
                } else {
                    Self::Other
                }
            }
            9 if is(b"x_real_ip") => Self::Platform,
            _ => Self::Other,
        }
    }
}

/// Whether it is an `X-Forwarded-` name with underscores, which CGI and WSGI servers take for the one with hyphens.
fn is_underscored_forwarding(name: &[u8]) -> bool {
    let is_same = |(byte, wanted): (&u8, &u8)| byte.eq_ignore_ascii_case(wanted) || (*byte == b'_' && *wanted == b'-');
    name.contains(&b'_') && name.len() > FORWARDED_PREFIX.len() && name.iter().zip(FORWARDED_PREFIX).all(is_same)
}

/// The tokens of a comma-separated value, without the blanks around them; empty ones are skipped.
pub fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim).filter(|token| !token.is_empty())
}

/// Whether `wanted` (any case) is one of the tokens.
#[must_use]
pub fn has_token(value: &[u8], wanted: &str) -> bool {
    tokens(value).any(|token| token.eq_ignore_ascii_case(wanted.as_bytes()))
}

/// Without the spaces and tabs around it; other control bytes are not white space here.
pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_match_in_any_case_but_not_by_prefix() {
        for (name, kind) in [
            ("Host", FieldName::Host),
            ("hOsT", FieldName::Host),
            ("Hosts", FieldName::Other),
            ("TRANSFER-ENCODING", FieldName::TransferEncoding),
            ("Transfer_Encoding", FieldName::UnderscoreVariant),
            ("x-forwarded-for", FieldName::ForwardedFor),
            ("Sluicegate-Anything", FieldName::Internal),
            ("Sluicegate-", FieldName::Other),
            ("k-network-probe", FieldName::NetworkProbe),
            ("K-Network-Hash", FieldName::NetworkHash),
            ("Knative-Serving-Revision", FieldName::Platform),
            ("KNATIVE-SERVING-NAMESPACE", FieldName::Platform),
            ("Knative-Serving-Tag", FieldName::Other),
            ("X_Forwarded_For", FieldName::Platform),
            ("x-forwarded_for", FieldName::Platform),
            ("X_Real_IP", FieldName::Platform),
            ("x_forwards", FieldName::Other),
            ("k-original-host", FieldName::Platform),
            ("K-Proxy-Request", FieldName::Platform),
            ("K-Kubelet-Probe", FieldName::Other),
            ("x", FieldName::Other),
        ] {
            assert_eq!(FieldName::of(name.as_bytes()), kind, "{name}");
        }
    }

    #[test]
    fn tokens_are_trimmed_of_blanks_only() {
        let found: Vec<_> = tokens(b" a ,,\tb\x0b, c").collect();
        assert_eq!(found, [b"a".as_slice(), b"b\x0b", b"c"]);
        assert!(has_token(b"close, TE", "te"));
        assert!(!has_token(b"closed", "close"));
    }
}
