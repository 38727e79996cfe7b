//! Destinations and delivery options: their defaults and rules.

use contract::tls::CertificateAuthorities;
use rustls::RootCertStore;

use crate::duration;
use crate::field_errors::{FieldErrors, MISSING, MUST_NOT_SET};
use crate::shared::{DeliverySpec, Destination, KReference};

/// A reference without a namespace means the referrer's (EV-ADR-12).
pub fn default_destination(destination: &mut Destination, namespace: &str) {
    if let Some(reference) = &mut destination.reference {
        default_reference(reference, namespace);
    }
}

pub fn default_reference(reference: &mut KReference, namespace: &str) {
    if reference.explicit_namespace().is_none() && !namespace.is_empty() {
        reference.namespace = Some(namespace.to_owned());
    }
}

pub fn default_delivery(delivery: &mut DeliverySpec, namespace: &str) {
    if let Some(sink) = &mut delivery.dead_letter_sink {
        default_destination(sink, namespace);
    }
}

pub fn validate_destination(destination: &Destination, at: &str, problems: &mut FieldErrors) {
    let uri = destination.uri.as_deref().filter(|uri| !uri.is_empty());
    match (&destination.reference, uri) {
        (None, None) => problems.add(at, "expected at least one, got none: ref, uri"),
        (Some(reference), uri) => {
            validate_group_reference(reference, &format!("{at}.ref"), problems);
            if uri.is_some_and(is_absolute) {
                problems.add(at, "Absolute URI is not allowed when Ref or [apiVersion, kind, name] is present");
            }
        }
        (None, Some(uri)) if !has_host(uri) => problems.add(
            format!("{at}.uri"),
            format!(
                "invalid value: {uri}: Relative URI is not allowed when Ref and [apiVersion, kind, name] is absent"
            ),
        ),
        (None, Some(_)) => {}
    }
    if let Some(certificates) = &destination.ca_certs
        && let Err(why) = CertificateAuthorities::read(certificates.as_bytes(), &mut RootCertStore::empty())
    {
        problems.add(format!("{at}.CACerts"), format!("CA Cert provided is invalid: {why}"));
    }
}

/// A reference with a version.
pub fn validate_reference(reference: &KReference, at: &str, problems: &mut FieldErrors) {
    validate_group_reference(&KReference { group: None, ..reference.clone() }, at, problems);
    if names_group(reference) {
        problems.add(format!("{at}.group"), MUST_NOT_SET);
    }
}

/// A reference that may leave the version open (X-FEA-01), if the operator's features allow it.
pub fn validate_group_reference(reference: &KReference, at: &str, problems: &mut FieldErrors) {
    for (field, value) in [("name", &reference.name), ("kind", &reference.kind)] {
        if value.is_empty() {
            problems.add(format!("{at}.{field}"), MISSING);
        }
    }
    let (version, group) = (&reference.api_version, reference.group.as_deref().unwrap_or_default());
    if version.is_empty() && group.is_empty() {
        problems.add(format!("{at}.apiVersion"), MISSING);
    }
    let of_version = version.split_once('/').map_or("", |(group, _)| group);
    if !version.is_empty() && !group.is_empty() && group != of_version {
        let why = "both apiVersion and group are specified and they refer to different API groups";
        problems.add(format!("{at}.group"), why);
    }
}

/// An empty value is ignored.
pub(crate) fn names_group(reference: &KReference) -> bool {
    reference.group.as_deref().is_some_and(|group| !group.is_empty())
}

pub fn validate_delivery(delivery: &DeliverySpec, at: &str, problems: &mut FieldErrors) {
    if let Some(sink) = &delivery.dead_letter_sink {
        validate_destination(sink, &format!("{at}.deadLetterSink"), problems);
    }
    if let Some(retry) = delivery.retry
        && retry < 0
    {
        problems.add(format!("{at}.retry"), format!("invalid value: {retry}"));
    }
    one_of(delivery.backoff_policy.as_deref(), &["linear", "exponential"], at, "backoffPolicy", problems);
    one_of(delivery.format.as_deref(), &["json", "binary"], at, "format", problems);
    period(delivery.backoff_delay.as_deref(), false, at, "backoffDelay", problems);
    period(delivery.timeout.as_deref(), true, at, "timeout", problems);
    period(delivery.retry_after_max.as_deref(), false, at, "retryAfterMax", problems);
}

fn one_of(value: Option<&str>, allowed: &[&str], at: &str, field: &str, problems: &mut FieldErrors) {
    if let Some(value) = value
        && !allowed.contains(&value)
    {
        problems.add(format!("{at}.{field}"), format!("invalid value: {value}"));
    }
}

fn period(value: Option<&str>, positive: bool, at: &str, field: &str, problems: &mut FieldErrors) {
    let Some(text) = value else { return };
    if duration::parse(text).is_none_or(|length| positive && length.is_zero()) {
        problems.add(format!("{at}.{field}"), format!("invalid value: {text}"));
    }
}

/// It has a scheme (RFC 3986, 3.1), with any rest.
fn is_absolute(uri: &str) -> bool {
    let Some((scheme, _)) = uri.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

/// It is absolute and names a host. Whether its scheme is supported is checked when an event is sent.
fn has_host(uri: &str) -> bool {
    uri.parse::<http::Uri>().is_ok_and(|uri| uri.scheme().is_some() && uri.host().is_some_and(|host| !host.is_empty()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn destination(json: Value) -> Vec<String> {
        let destination: Destination = serde_json::from_value(json).unwrap();
        let mut problems = FieldErrors::default();
        validate_destination(&destination, "spec.subscriber", &mut problems);
        problems.list.into_iter().map(|p| p.field).collect()
    }

    /// EV-ADR-04, EV-OBJ-36, EV-OBJ-50, EV-OBJ-51, EV-OBJ-53, AMB-24, AMB-25.
    #[test]
    fn a_destination_names_an_object_or_an_absolute_url() {
        let reference = json!({"kind": "Service", "name": "a", "apiVersion": "v1"});
        assert!(destination(json!({"ref": reference})).is_empty());
        assert!(destination(json!({"ref": reference, "uri": "/x"})).is_empty());
        assert!(destination(json!({"uri": "http://198.51.100.1:81/x"})).is_empty());

        assert_eq!(destination(json!({})), ["spec.subscriber"]);
        assert_eq!(destination(json!({"ref": reference, "uri": "http://a/x"})), ["spec.subscriber"]);
        for uri in ["http:/x", "foo:bar", "urn:x:y", "mailto:a@b", "http:x", "http://", "HTTP+x.1:"] {
            assert_eq!(destination(json!({"ref": reference, "uri": uri})), ["spec.subscriber"], "{uri}");
        }
        for uri in ["x/a:b", "?a:b", "#a:b", "//a:80/b", ":x", "1a:b"] {
            assert!(destination(json!({"ref": reference, "uri": uri})).is_empty(), "{uri}");
        }
        assert_eq!(destination(json!({"uri": "/relative"})), ["spec.subscriber.uri"]);
        assert!(destination(json!({"uri": "bad://uri"})).is_empty(), "as upstream; its deliveries fail");
        assert_eq!(destination(json!({"uri": "http:///x"})), ["spec.subscriber.uri"]);
        assert_eq!(
            destination(json!({"ref": {}})),
            ["spec.subscriber.ref.name", "spec.subscriber.ref.kind", "spec.subscriber.ref.apiVersion"]
        );
    }

    /// EV-OBJ-47, EV-OBJ-48, EV-OBJ-49: each option out of its range is refused by name.
    #[test]
    fn delivery_options_have_their_ranges() {
        let found = |json: Value| {
            let delivery: DeliverySpec = serde_json::from_value(json).unwrap();
            let mut problems = FieldErrors::default();
            validate_delivery(&delivery, "spec.delivery", &mut problems);
            problems.list.into_iter().map(|p| p.field).collect::<Vec<_>>()
        };
        assert!(
            found(json!({"retry": 0, "backoffPolicy": "linear", "backoffDelay": "PT0.5S", "timeout": "PT10S"}))
                .is_empty()
        );
        for (field, value) in [
            ("retry", json!(-1)),
            ("backoffPolicy", json!("quadratic")),
            ("backoffDelay", json!("1s")),
            ("timeout", json!("PT0S")),
            ("format", json!("xml")),
            ("retryAfterMax", json!("1s")),
        ] {
            assert_eq!(found(json!({field: value})), [format!("spec.delivery.{field}")]);
        }
    }
}
