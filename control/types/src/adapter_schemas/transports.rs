//! The types of the fields of the built-in transports, so that a wrong value is refused when the object is written (TRN-45).
//! The transport itself checks all else when it starts.

use serde_json::{Map, Value, json};

/// One section of one transport: `FIELD:TYPE`, with `!` after a field that is needed. Types: `s` string, `i` integer, `b`
/// boolean, `l` list of strings, `a` list of objects, `o` object, `f` file of a Secret.
const SECTIONS: [(&str, &str, &str); 22] = [
    ("timer", "source", "message!:s period:i contentType:s repeatCount:i"),
    ("http", "source", "servicePorts!:a secret:f host:s hmac:o plain:o"),
    ("file", "source", "path:s follow:b checkpoint:s"),
    ("file", "sink", "path:s"),
    (
        "nats",
        "source",
        "servers!:l subject:s queue:s stream:s consumer:s deliverPolicy:s ordering:s user:s password:f token:f credentials:f nkey:f tls:o",
    ),
    (
        "nats",
        "sink",
        "servers!:l subject!:s jetstream:b contentMode:s user:s password:f token:f credentials:f nkey:f tls:o",
    ),
    ("redis", "source", "address!:s stream!:s group!:s consumer:s startId:s user:s password:f tls:o"),
    ("redis", "sink", "address!:s stream!:s user:s password:f tls:o"),
    ("mqtt", "source", "host!:s port:i version:s topics!:l clientId:s user:s password:f tls:o"),
    ("mqtt", "sink", "host!:s port:i version:s topic!:s contentMode:s clientId:s user:s password:f tls:o"),
    (
        "amqp",
        "source",
        "host!:s port:i vhost:s queue!:s queueType:s exchange:s predeclared:b prefetch:i deadLetterExchange:b user:s password:f tls:o",
    ),
    ("amqp", "sink", "host!:s port:i vhost:s exchange:s routingKey!:s predeclared:b user:s password:f tls:o"),
    (
        "amqp10",
        "source",
        "host!:s port:i hostname:s address!:s credit:i containerId:s deadLetterQueue:b user:s password:f tls:o",
    ),
    ("amqp10", "sink", "host!:s port:i hostname:s address!:s contentMode:s user:s password:f tls:o"),
    (
        "kafka",
        "source",
        "bootstrapServers!:l topics!:l consumerGroup:s initialOffset:s ordering:s net:o keyType:s sessionTimeoutMs:i",
    ),
    ("kafka", "sink", "bootstrapServers!:l topic!:s contentMode:s net:o"),
    ("postgresql", "source", "host!:s port:i database!:s user!:s password:f tls:o channels:l replication:o"),
    ("postgresql", "sink", "host!:s port:i database!:s user!:s password:f tls:o channel:s table:s"),
    (
        "s3",
        "source",
        "arn!:s region:s uriEndpointOverride:s forcePathStyle:b accessKey:f secretKey:f sessionToken:f secret:f tls:o autoCreateBucket:b prefix:s deleteAfterRead:b ignoreBody:b delay:i",
    ),
    (
        "s3",
        "sink",
        "arn!:s region:s uriEndpointOverride:s forcePathStyle:b accessKey:f secretKey:f sessionToken:f secret:f tls:o autoCreateBucket:b prefix:s keyName:s contentMode:s",
    ),
    (
        "sqs",
        "source",
        "arn!:s region:s uriEndpointOverride:s accessKey:f secretKey:f sessionToken:f secret:f tls:o autoCreateQueue:b visibilityTimeout:i waitTimeSeconds:i maxMessagesPerPoll:i",
    ),
    (
        "sqs",
        "sink",
        "arn!:s region:s uriEndpointOverride:s accessKey:f secretKey:f sessionToken:f secret:f tls:o autoCreateQueue:b body:s",
    ),
];

/// The schema of a section (`source` or `sink`) of a built-in transport. Fields that it does not name are allowed.
pub(super) fn schema(transport: &str, section: &str) -> Option<Value> {
    let (_, _, fields) = SECTIONS.iter().find(|(name, part, _)| (*name, *part) == (transport, section))?;
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for field in fields.split(' ') {
        let (name, kind) = field.split_once(':')?;
        let plain = name.trim_end_matches('!');
        if plain != name {
            required.push(plain);
        }
        properties.insert(plain.to_owned(), type_of(kind));
    }
    Some(json!({
        "type": "object", "properties": properties, "required": required,
        "x-kubernetes-preserve-unknown-fields": true,
    }))
}

fn type_of(kind: &str) -> Value {
    let any_object = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    match kind {
        "i" => json!({ "type": "integer" }),
        "b" => json!({ "type": "boolean" }),
        "l" => json!({ "type": "array", "items": { "type": "string" } }),
        "a" => json!({ "type": "array", "items": any_object }),
        "o" => any_object,
        _ => json!({ "type": "string" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_schema_of_a_known_transport() {
        for (transport, section, _) in SECTIONS {
            assert!(crate::adapter_program::TRANSPORTS.contains(&transport), "{transport}");
            assert_eq!(schema(transport, section).unwrap()["type"], "object", "{transport} {section}");
        }
        assert_eq!(schema("timer", "sink"), None);
    }
}
