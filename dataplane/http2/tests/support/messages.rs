//! Messages that both implementations exchange.

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use sluicegate_http2::FieldBlock;

pub(crate) type Fields = Vec<(String, Vec<u8>)>;

/// One side of an exchange.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Message {
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<Fields>,
}

pub(crate) fn fields_of(block: &FieldBlock) -> Fields {
    block.fields().map(|(name, value)| (String::from_utf8(name.to_vec()).unwrap(), value.to_vec())).collect()
}

/// As `h2` orders them: by name.
pub(crate) fn grouped(map: &HeaderMap) -> Fields {
    map.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect()
}

pub(crate) fn map_of(fields: &Fields) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(value).unwrap());
    }
    map
}

pub(crate) fn any_fields() -> impl Strategy<Value = Fields> {
    let names = vec!["accept", "cookie", "x-a", "x-b", "set-cookie", "content-type", "user-agent", "etag"];
    let value = prop_oneof![
        "[ -~]{0,20}".prop_map(String::into_bytes),
        proptest::collection::vec(proptest::sample::select(vec![b'a', b'0', 0x80, 0xff, b'~']), 0..700),
    ];
    // Values without blanks around them, which are a matter of another layer.
    let value = value.prop_map(|value| value.trim_ascii().to_vec());
    proptest::collection::vec((proptest::sample::select(names), value), 0..10)
        .prop_map(|fields| fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

pub(crate) fn any_message() -> impl Strategy<Value = Message> {
    let body = proptest::sample::select(vec![0, 1, 100, 4_999, 20_000, 100_000]);
    (any_fields(), body, any::<u8>(), proptest::option::weighted(0.3, any_fields())).prop_map(
        |(fields, length, byte, trailers)| Message {
            fields,
            body: (0..length).map(|at| byte.wrapping_add((at % 251) as u8)).collect(),
            trailers: trailers.filter(|trailers| !trailers.is_empty()),
        },
    )
}

pub(crate) fn sorted(mut message: Message) -> Message {
    message.fields = grouped(&map_of(&message.fields));
    message.trailers = message.trailers.map(|trailers| grouped(&map_of(&trailers)));
    message.fields.sort();
    message.trailers.iter_mut().for_each(|trailers| trailers.sort());
    message
}
