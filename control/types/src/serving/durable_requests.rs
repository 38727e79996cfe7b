//! Requests that are stored before they are answered: an annotation of Services and Routes, off by default.
//!
//! `sluicegate.dev/durable-requests: async` stores each request that is not safe; `respond-async` those alone whose client sends
//! `Prefer: respond-async` (RFC 7240).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::field_errors::FieldErrors;
use crate::shared::annotation;

pub const DURABLE_REQUESTS: &str = "sluicegate.dev/durable-requests";

/// Which requests are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurableRequests {
    /// All POST, PUT, PATCH and DELETE.
    Always,
    /// Those of them that ask for it.
    WhenPreferred,
}

/// The annotation's value; an invalid one is ignored, because admission has rejected it.
#[must_use]
pub fn durable_requests(meta: &ObjectMeta) -> Option<DurableRequests> {
    parse(annotation(meta, DURABLE_REQUESTS)?).ok()
}

pub fn validate(meta: &ObjectMeta, problems: &mut FieldErrors) {
    if let Some(Err(why)) = annotation(meta, DURABLE_REQUESTS).map(parse) {
        problems.add(format!("metadata.annotations[{DURABLE_REQUESTS}]"), why);
    }
}

fn parse(text: &str) -> Result<DurableRequests, String> {
    match text {
        "async" => Ok(DurableRequests::Always),
        "respond-async" => Ok(DurableRequests::WhenPreferred),
        _ => Err(format!("invalid value: {text}: expected async or respond-async")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotation_says_which_requests_are_stored() {
        for (text, wanted) in [
            ("async", Some(DurableRequests::Always)),
            ("respond-async", Some(DurableRequests::WhenPreferred)),
            ("sync", None),
            ("", None),
        ] {
            let annotations = Some([(DURABLE_REQUESTS.to_owned(), text.to_owned())].into());
            let meta = ObjectMeta { annotations, ..ObjectMeta::default() };
            let mut problems = FieldErrors::default();
            validate(&meta, &mut problems);
            assert_eq!(
                (durable_requests(&meta), problems.into_list().is_empty()),
                (wanted, wanted.is_some()),
                "{text}"
            );
        }
        assert_eq!(durable_requests(&ObjectMeta::default()), None);
    }
}
