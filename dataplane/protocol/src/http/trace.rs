//! W3C trace context for the gateway's own spans: reads `traceparent`, and puts the gateway's span into an outgoing
//! head. Not called when spans are off (see [`super::headers`]).

use codec::hex;
use codec::http::RequestView;
use contract::spans::TraceContext;

use super::headers::incoming_trace_parent;

/// `00-` before the trace id, its 32 digits, `-`, 16 digits of the span, `-`, two of the flags.
const TRACE: std::ops::Range<usize> = 3..35;
const SPAN: std::ops::Range<usize> = 36..52;
const FLAGS: std::ops::Range<usize> = 53..55;

/// The context of a request that came with one; `id` becomes the gateway's span in it.
#[must_use]
pub fn passed(request: RequestView<'_>, id: u64) -> Option<TraceContext> {
    let mut context = read(incoming_trace_parent(request)?)?;
    context.parent = std::mem::replace(&mut context.id, id);
    Some(context)
}

/// Makes the gateway's span the parent of the instance's spans. `known` is the received context; without one the head
/// has a trace that the gateway began, with its span.
#[must_use]
pub fn enter(head: &mut [u8], known: Option<TraceContext>) -> Option<TraceContext> {
    let at = value_at(head)?;
    let value = head.get_mut(at..at + FLAGS.end)?;
    let Some(context) = known else { return read(value) };
    hex::put(&mut value[SPAN], context.id.into());
    Some(context)
}

/// Parses a value that is known to be valid, or was written by the gateway.
fn read(value: &[u8]) -> Option<TraceContext> {
    let digits = |range| std::str::from_utf8(value.get(range)?).ok();
    Some(TraceContext {
        trace: u128::from_str_radix(digits(TRACE)?, 16).ok()?.to_be_bytes(),
        id: u64::from_str_radix(digits(SPAN)?, 16).ok()?,
        parent: 0,
        sampled: u8::from_str_radix(digits(FLAGS)?, 16).ok()? & 1 == 1,
    })
}

/// The start of the value of `traceparent`.
fn value_at(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"traceparent:";
    let begins = |line: usize| head.get(line..line + NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME));
    let line = memchr::memchr_iter(b'\n', head).map(|end| end + 1).find(|line| begins(*line))?;
    let value = line + NAME.len();
    Some(value + head[value..].iter().take_while(|byte| **byte == b' ').count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_span_is_between_client_and_instance() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let text = format!("GET / HTTP/1.1\r\nTraceParent: 00-{trace}-b7ad6b7169203331-01\r\nA: b\r\n\r\n");
        let known = TraceContext {
            trace: u128::from_str_radix(trace, 16).unwrap().to_be_bytes(),
            id: 0x0123_4567_89ab_cdef,
            parent: 0xb7ad_6b71_6920_3331,
            sampled: true,
        };
        let mut head = text.clone().into_bytes();
        assert_eq!(enter(&mut head, Some(known)), Some(known));
        let expected = text.replace("b7ad6b7169203331", "0123456789abcdef");
        assert_eq!(String::from_utf8(head.clone()).unwrap(), expected);
        // The head holds all of a trace that the gateway began.
        let begun = enter(&mut head, None).unwrap();
        assert_eq!((begun.trace, begun.id, begun.parent, begun.sampled), (known.trace, known.id, 0, true));
        assert_eq!(enter(&mut b"GET / HTTP/1.1\r\n\r\n".to_vec(), None), None);
        assert_eq!(enter(&mut b"GET / HTTP/1.1\r\ntraceparent: 00-12".to_vec(), None), None);
    }
}
