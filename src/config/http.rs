//! Timeouts and sizes of HTTP messages, checked against the limits of the cores.

use std::time::Duration;

use dataplane::http::limits::{FIELDS_CEILING, HEAD_BYTES_CEILING, HttpLimits};

use super::{ByteSize, Settings, Wait, upgrade_protocols};

/// Minimum fields of a head: a browser's request has some 20.
const FIELDS_MIN: u16 = 32;
/// Smallest head, in bytes: RFC 9112 3 asks for request lines of 8,000.
const HEAD_BYTES_MIN: u32 = 8 * 1024;
/// Shortest timeout of bodies: packets that are lost are sent again after a second or so.
const BODY_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// The limits that the cores apply to clients and instances.
pub(super) fn limits(given: &Settings, file: &Settings) -> Result<HttpLimits, String> {
    let mut limits = HttpLimits::default();
    if let Some(Wait(wait)) = given.request_body_timeout.or(file.request_body_timeout) {
        if wait < BODY_TIMEOUT_MIN {
            return Err(format!("request-body-timeout: {wait:?} is less than {BODY_TIMEOUT_MIN:?}"));
        }
        limits.stall_max = wait;
    }
    if let Some(Wait(wait)) = given.stream_idle_timeout.or(file.stream_idle_timeout) {
        limits.stream_idle_timeout = wait;
    }
    if let Some(Wait(wait)) = given.half_close_timeout.or(file.half_close_timeout) {
        limits.half_closed_silence_max = wait;
    }
    if let Some(fields) = given.max_header_fields.or(file.max_header_fields) {
        limits.head.fields_max = u16::try_from(fields)
            .ok()
            .filter(|most| (FIELDS_MIN..=FIELDS_CEILING).contains(most))
            .ok_or_else(|| format!("max-header-fields: {fields} is not between {FIELDS_MIN} and {FIELDS_CEILING}"))?;
    }
    if let Some(ByteSize(bytes)) = given.max_header_bytes.or(file.max_header_bytes) {
        limits.head.bytes_max =
            u32::try_from(bytes).ok().filter(|most| (HEAD_BYTES_MIN..=HEAD_BYTES_CEILING).contains(most)).ok_or_else(
                || format!("max-header-bytes: {bytes} is not between {HEAD_BYTES_MIN} and {HEAD_BYTES_CEILING}"),
            )?;
    }
    let lists = [&given.upgrade_protocols, &file.upgrade_protocols];
    if let Some(lists) = lists.into_iter().find(|lists| !lists.is_empty()) {
        limits.upgrade_protocols = upgrade_protocols::all(lists)?;
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_limits_are_checked_and_flags_override_file() {
        let wait = |text: &str| Some(text.parse().unwrap());
        let file = Settings {
            request_body_timeout: wait("2m"),
            stream_idle_timeout: wait("0"),
            max_header_bytes: Some(ByteSize(128 * 1024)),
            ..Settings::default()
        };
        let given = Settings { request_body_timeout: wait("90s"), ..Settings::default() };
        let limits = limits(&given, &file).unwrap();
        assert_eq!(limits.stall_max, Duration::from_secs(90));
        assert_eq!(limits.stream_idle_timeout, Duration::ZERO);
        assert_eq!((limits.head.bytes_max, limits.head.fields_max), (128 * 1024, 256));
    }

    #[test]
    fn limit_out_of_range_is_rejected_by_name() {
        for (settings, name) in [
            (
                Settings { request_body_timeout: Some(Wait(Duration::ZERO)), ..Settings::default() },
                "request-body-timeout",
            ),
            (Settings { max_header_fields: Some(5), ..Settings::default() }, "max-header-fields"),
            (Settings { max_header_bytes: Some(ByteSize(1 << 30)), ..Settings::default() }, "max-header-bytes"),
        ] {
            let why = limits(&settings, &Settings::default()).unwrap_err();
            assert!(why.starts_with(&format!("{name}: ")), "{why}");
        }
        assert!("5".parse::<Wait>().is_err() && "".parse::<Wait>().is_err());
    }
}
