//! Texts in objects with their own grammar: durations, names, image references.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use sluicegate_control::kinds::duration;
use sluicegate_control::names;

/// A hundred years and a day: nothing longer may come out.
const LONGEST: Duration = Duration::from_secs(101 * 366 * 86_400);

fuzz_target!(|text: &str| {
    for parsed in [duration::parse(text), duration::parse_go(text)].into_iter().flatten() {
        assert!(parsed <= LONGEST, "{text:?} is {parsed:?}");
    }
    if let Some(parsed) = duration::parse(text) {
        assert!(text.starts_with(['P', 'p', '+', '-']), "{text:?} is {parsed:?}");
    }
    if let Some(parsed) = duration::parse_go(text) {
        // Written out in nanoseconds it is the same; f64 holds 2^53 of them exactly.
        let nanos = parsed.as_nanos();
        if nanos < 1 << 53 {
            assert_eq!(duration::parse_go(&format!("{nanos}ns")), Some(parsed), "{text:?}");
        }
    }

    let label = names::is_dns1123_label(text);
    assert!(!names::is_dns1035_label(text) || label);
    assert!(!label || names::is_dns_subdomain(text));
    assert!(!label || (text.len() <= 63 && !text.contains(['.', '/', '_'])));
    if names::is_image_reference(text) {
        assert!(!text.is_empty() && text.is_ascii() && !text.contains(char::is_whitespace));
    }
    let _ = names::is_attribute(text);
});
