//! W3C trace context: continues the trace of an event with a new span, or starts a trace.

use crate::event::Event;

/// The `traceparent` for the next hop of `event`: a child of the one that came, else a new trace.
pub fn child_of(event: &Event) -> String {
    let attribute = event.text("traceparent");
    let parent = event.traceparent.as_deref().filter(|text| is_valid(text));
    let parent = parent.or(Some(attribute.as_str()).filter(|text| is_valid(text)));
    let span = fastrand::u64(1..);
    match parent {
        Some(parent) => format!("{}-{span:016x}-{}", &parent[..35], &parent[53..55]),
        None => format!("00-{:032x}-{span:016x}-01", fastrand::u128(1..)),
    }
}

fn is_valid(text: &str) -> bool {
    let fields: Vec<&str> = text.split('-').collect();
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    text.is_ascii()
        && fields.len() >= 4
        && fields.iter().zip([2, 32, 16, 2]).all(|(field, length)| field.len() == length && hex(field))
        && fields[1].bytes().any(|byte| byte != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_continues_with_a_new_span() {
        let mut event = Event::new("t", "/s", "1");
        event.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
        let child = child_of(&event);
        assert!(child.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && child.ends_with("-01"), "{child}");
        assert!(!child.contains("b7ad6b7169203331") && is_valid(&child), "{child}");
    }

    #[test]
    fn malformed_trace_begins_a_new_one() {
        let mut event = Event::new("t", "/s", "1");
        for text in ["", "00-zz-1-01", "é", "00-00000000000000000000000000000000-b7ad6b7169203331-01"] {
            event.traceparent = Some(text.to_owned());
            assert!(is_valid(&child_of(&event)));
        }
    }
}
