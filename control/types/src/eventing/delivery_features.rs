//! Fields of destinations and delivery options that the operator's features must enable.

use crate::delivery::names_group;
use crate::field_errors::{FieldErrors, MUST_NOT_SET};
use crate::settings::{CROSS_NAMESPACE, EventingFeatures, REFERENCE_BY_GROUP};
use crate::shared::{DeliverySpec, Destination, KReference};

/// A reference by group alone is a feature that the operator has to enable (X-FEA-01).
pub fn check_reference_features(
    reference: &KReference,
    at: &str,
    features: &EventingFeatures,
    problems: &mut FieldErrors,
) {
    if names_group(reference) && !features.is_enabled(REFERENCE_BY_GROUP) {
        let why = format!("{MUST_NOT_SET}: feature {REFERENCE_BY_GROUP} is off, see ConfigMap config-features");
        problems.add(format!("{at}.group"), why);
    }
}

/// So is a reference to another namespace (X-FEA-10).
pub fn check_cross_namespace_link(
    reference: &KReference,
    at: &str,
    features: &EventingFeatures,
    problems: &mut FieldErrors,
) {
    if reference.explicit_namespace().is_some() && !features.is_enabled(CROSS_NAMESPACE) {
        let why = format!(
            "{MUST_NOT_SET}: only name, apiVersion and kind are supported fields; feature {CROSS_NAMESPACE} is off, see ConfigMap config-features"
        );
        problems.add(format!("{at}.namespace"), why);
    }
}

pub fn check_destination_features<'a>(
    destination: impl Into<Option<&'a Destination>>,
    at: &str,
    features: &EventingFeatures,
    problems: &mut FieldErrors,
) {
    if let Some(reference) = destination.into().and_then(|destination| destination.reference.as_ref()) {
        check_reference_features(reference, &format!("{at}.ref"), features, problems);
    }
}

/// Options that the operator's features have to enable (X-DLV-01, X-DLV-02, X-FEA-01).
pub fn check_delivery_features(
    delivery: Option<&DeliverySpec>,
    at: &str,
    features: &EventingFeatures,
    problems: &mut FieldErrors,
) {
    let Some(delivery) = delivery else { return };
    check_destination_features(&delivery.dead_letter_sink, &format!("{at}.deadLetterSink"), features, problems);
    for (field, is_set, feature) in [
        ("timeout", delivery.timeout.is_some(), "delivery-timeout"),
        ("retryAfterMax", delivery.retry_after_max.is_some(), "delivery-retryafter"),
    ] {
        if is_set && !features.is_enabled(feature) {
            let why = format!("{MUST_NOT_SET}: feature {feature} is off, see ConfigMap config-features");
            problems.add(format!("{at}.{field}"), why);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::delivery::validate_reference;
    use crate::settings::ConfigMapSetting as _;

    /// X-FEA-01: an empty group is ignored.
    #[test]
    fn an_empty_group_is_no_group() {
        let reference: KReference =
            serde_json::from_value(json!({"kind": "A", "name": "a", "apiVersion": "v1", "group": ""})).unwrap();
        let mut problems = FieldErrors::default();
        validate_reference(&reference, "r", &mut problems);
        check_reference_features(&reference, "r", &EventingFeatures::default(), &mut problems);
        assert_eq!(problems.list, []);
    }

    /// X-DLV-01, X-DLV-02: what the operator switches off is refused by name.
    #[test]
    fn options_need_their_features() {
        let delivery: DeliverySpec =
            serde_json::from_value(json!({"timeout": "PT1S", "retryAfterMax": "PT1M"})).unwrap();
        let refused = |flags: &[(&str, &str)]| {
            let data = flags.iter().map(|(flag, word)| ((*flag).to_owned(), (*word).to_owned())).collect();
            let features = EventingFeatures::parse(&data, &mut FieldErrors::default());
            let mut problems = FieldErrors::default();
            check_delivery_features(Some(&delivery), "d", &features, &mut problems);
            problems.list.into_iter().map(|problem| problem.field).collect::<Vec<_>>()
        };
        assert_eq!(refused(&[]), ["d.retryAfterMax"]);
        assert!(refused(&[("delivery-retryafter", "enabled")]).is_empty());
        assert_eq!(refused(&[("delivery-timeout", "disabled"), ("delivery-retryafter", "enabled")]), ["d.timeout"]);
    }
}
