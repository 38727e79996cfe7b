//! Annotations of a template for the idle timeouts of its instances' streams.

use contract::table::{OwnTimeout, RequestTimeouts};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::duration;
use crate::field_errors::FieldErrors;
use crate::shared::annotation;

/// Timeout of a request's body without new bytes while there is no response; `0`: unlimited.
pub const REQUEST_BODY_TIMEOUT: &str = "sluicegate.dev/request-body-timeout";
/// Idle timeout of a stream in both directions; `0`: unlimited.
pub const STREAM_IDLE_TIMEOUT: &str = "sluicegate.dev/stream-idle-timeout";

/// The timeouts in the annotations; the limits in the spec do not count here.
#[must_use]
pub fn stream_timeouts(meta: &ObjectMeta) -> RequestTimeouts {
    let wait = |key| annotation(meta, key).and_then(duration::parse_go);
    RequestTimeouts {
        request_body: OwnTimeout::new(wait(REQUEST_BODY_TIMEOUT)),
        stream_idle: OwnTimeout::new(wait(STREAM_IDLE_TIMEOUT)),
        ..RequestTimeouts::NONE
    }
}

pub(super) fn validate(meta: &ObjectMeta, at: &str, problems: &mut FieldErrors) {
    for key in [REQUEST_BODY_TIMEOUT, STREAM_IDLE_TIMEOUT] {
        if let Some(text) = annotation(meta, key)
            && duration::parse_go(text).is_none()
        {
            let why = format!("invalid value: {text}: a duration like 90s, 5m or 0 is needed");
            problems.add(format!("{at}[{key}]"), why);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn annotated(value: &str) -> ObjectMeta {
        let pairs = [REQUEST_BODY_TIMEOUT, STREAM_IDLE_TIMEOUT].map(|key| (key.to_owned(), value.to_owned()));
        ObjectMeta { annotations: Some(pairs.into()), ..ObjectMeta::default() }
    }

    #[test]
    fn timeout_that_is_no_duration_is_refused() {
        for (value, good) in [("5m", true), ("0", true), ("5", false), ("-1s", false), ("", false)] {
            let mut problems = FieldErrors::default();
            validate(&annotated(value), "metadata.annotations", &mut problems);
            assert_eq!(problems.into_list().is_empty(), good, "{value:?}");
        }
    }

    #[test]
    fn timeouts_are_those_of_the_annotations() {
        let timeouts = stream_timeouts(&annotated("90s"));
        let ninety = Some(Duration::from_secs(90));
        assert_eq!((timeouts.request_body.get(), timeouts.stream_idle.get()), (ninety, ninety));
        assert_eq!(stream_timeouts(&ObjectMeta::default()), RequestTimeouts::NONE);
    }
}
