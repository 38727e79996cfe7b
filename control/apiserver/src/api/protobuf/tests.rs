#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::json;

use super::*;

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap());
    bytes
}

fn field(number: u64, content: &[u8]) -> Vec<u8> {
    [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

/// A ConfigMap `m` with one entry, as a typed client writes it.
fn config_map() -> Vec<u8> {
    let type_meta = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
    let metadata = [field(1, b"m"), field(2, b""), field(8, b""), vec![7 << 3, 0]].concat();
    let entry = [field(1, b"a"), field(2, b"b")].concat();
    let raw = [field(1, &metadata), field(2, &entry), vec![4 << 3, 1]].concat();
    [MAGIC.to_vec(), field(1, &type_meta), field(2, &raw), field(3, b""), field(4, b"")].concat()
}

#[test]
fn an_enveloped_message_becomes_its_json() {
    let expected = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m" },
        "data": { "a": "b" }, "immutable": true });
    assert_eq!(decode("ConfigMap", &config_map()), Ok(expected));
    assert_eq!(decode("Widget", &config_map()), Err(ProtobufError::UnknownKind));
}

/// A Role of the core group, as kubectl writes it: without the empty name it would grant nothing.
#[test]
fn what_is_empty_in_a_list_stays_in_it() {
    let type_meta = [field(1, b"rbac.authorization.k8s.io/v1"), field(2, b"Role")].concat();
    let rule = [field(1, b"get"), field(2, b""), field(3, b"pods")].concat();
    let raw = [field(1, &field(1, b"r")), field(2, &rule), field(2, b"")].concat();
    let body = [MAGIC.to_vec(), field(1, &type_meta), field(2, &raw)].concat();
    let rule = json!({ "verbs": ["get"], "apiGroups": [""], "resources": ["pods"] });
    assert_eq!(decode("Role", &body).unwrap()["rules"], json!([rule, {}]));
}

/// A Service whose status a load balancer's controller writes.
#[test]
fn statuses_are_read() {
    let body = |kind: &[u8], raw: &[u8]| {
        let type_meta = [field(1, b"v1"), field(2, kind)].concat();
        [MAGIC.to_vec(), field(1, &type_meta), field(2, raw)].concat()
    };
    let stamp = vec![1 << 3, 0xe8, 0x07];
    let port = [vec![1 << 3, 80], field(2, b"TCP")].concat();
    let ingress = [field(1, b"10.0.0.1"), field(2, b""), field(4, &port)].concat();
    let condition = [field(1, b"A"), field(2, b"True"), field(4, &stamp), field(5, b"R")].concat();
    let status = [field(1, &field(1, &ingress)), field(2, &condition)].concat();
    let expected = json!({
        "loadBalancer": { "ingress": [{ "ip": "10.0.0.1", "ports": [{ "port": 80, "protocol": "TCP" }] }] },
        "conditions": [{ "type": "A", "status": "True", "reason": "R",
            "lastTransitionTime": "1970-01-01T00:16:40Z" }],
    });
    assert_eq!(decode("Service", &body(b"Service", &field(3, &status))).unwrap()["status"], expected);
    let condition = [field(1, b"A"), field(2, b"True"), field(4, &stamp), field(6, b"M")].concat();
    let status = [field(1, b"Active"), field(2, &condition)].concat();
    let expected = json!({ "phase": "Active", "conditions": [{ "type": "A", "status": "True",
        "lastTransitionTime": "1970-01-01T00:16:40Z", "message": "M" }] });
    assert_eq!(decode("Namespace", &body(b"Namespace", &field(3, &status))).unwrap()["status"], expected);
}

/// A lease as a leader's election writes it.
#[test]
fn a_lease_keeps_its_times_to_the_microsecond() {
    let type_meta = [field(1, b"coordination.k8s.io/v1"), field(2, b"Lease")].concat();
    // 1,000 s and 5 ms.
    let stamp = [vec![1 << 3, 0xe8, 0x07], vec![2 << 3, 0xc0, 0x96, 0xb1, 0x02]].concat();
    let spec = [field(1, b"me"), vec![2 << 3, 15], field(4, &stamp), field(3, b"")].concat();
    let raw = [field(1, &field(1, b"l")), field(2, &spec)].concat();
    let body = [MAGIC.to_vec(), field(1, &type_meta), field(2, &raw)].concat();
    let expected = json!({ "holderIdentity": "me", "leaseDurationSeconds": 15,
        "renewTime": "1970-01-01T00:16:40.005000Z" });
    assert_eq!(decode("Lease", &body).unwrap()["spec"], expected);
    let far = [vec![1 << 3], vec![0xff; 9], vec![1]].concat();
    assert!(time(&far, "%Y").is_ok(), "one second before 1970");
    let never = [vec![1 << 3], vec![0xff; 8], vec![0x7f]].concat();
    assert_eq!(time(&never, "%Y"), Err(ProtobufError::Malformed));
}

/// The two groups have one kind's name and different numbers: the envelope says which it is.
#[test]
fn an_event_of_either_group_keeps_its_fields() {
    let body = |version: &[u8], fields: &[Vec<u8>]| {
        let type_meta = [field(1, version), field(2, b"Event")].concat();
        [MAGIC.to_vec(), field(1, &type_meta), field(2, &fields.concat())].concat()
    };
    let about = [field(1, b"Service"), field(3, b"hello"), field(7, b"")].concat();
    let stamp = [vec![1 << 3, 0xe8, 0x07], vec![2 << 3, 0xc0, 0x96, 0xb1, 0x02]].concat();
    let series = [vec![1 << 3, 2], field(2, &stamp)].concat();
    let new = [
        field(1, &field(1, b"e")),
        field(2, &stamp),
        field(3, &series),
        field(4, b"example.com/c"),
        field(6, b"Start"),
        field(7, b"Failed"),
        field(8, &about),
        field(10, b"why"),
        field(11, b"Warning"),
        vec![15 << 3, 3],
    ];
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": "e" },
        "eventTime": "1970-01-01T00:16:40.005000Z", "reportingController": "example.com/c", "action": "Start",
        "series": { "count": 2, "lastObservedTime": "1970-01-01T00:16:40.005000Z" }, "reason": "Failed",
        "regarding": { "kind": "Service", "name": "hello" }, "note": "why", "type": "Warning",
        "deprecatedCount": 3,
    });
    assert_eq!(decode("Event", &body(b"events.k8s.io/v1", &new)), Ok(expected));
    let old = [
        field(2, &about),
        field(3, b"Ready"),
        field(4, b"is ready"),
        field(6, &stamp),
        vec![8 << 3, 3],
        field(9, b"Normal"),
        field(14, b"c"),
    ];
    let expected = json!({
        "apiVersion": "v1", "kind": "Event", "involvedObject": { "kind": "Service", "name": "hello" },
        "reason": "Ready", "message": "is ready", "firstTimestamp": "1970-01-01T00:16:40Z", "count": 3,
        "type": "Normal", "reportingComponent": "c",
    });
    assert_eq!(decode("Event", &body(b"v1", &old)), Ok(expected));
}

/// An access review as kubectl's `auth can-i` writes it.
#[test]
fn a_review_keeps_what_is_asked() {
    let type_meta = [field(1, b"authorization.k8s.io/v1"), field(2, b"SelfSubjectAccessReview")].concat();
    let asked = [field(1, b"default"), field(2, b"create"), field(5, b"services")].concat();
    let raw = [field(1, &field(1, b"")), field(2, &field(1, &asked)), field(3, &[1 << 3, 0])].concat();
    let body = [MAGIC.to_vec(), field(1, &type_meta), field(2, &raw)].concat();
    let review = decode("SelfSubjectAccessReview", &body).unwrap();
    let attributes = json!({ "namespace": "default", "verb": "create", "resource": "services" });
    assert_eq!(review["spec"], json!({ "resourceAttributes": attributes }));
}

#[test]
fn no_cut_and_no_flipped_byte_does_more_than_be_refused_or_read_differently() {
    let whole = config_map();
    for end in 0..whole.len() {
        let _ = decode("ConfigMap", &whole[..end]);
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[end] ^= 1 << bit;
            let _ = decode("ConfigMap", &flipped);
        }
    }
    for broken in
        [&b""[..], b"k8s", b"k8s\0\x12\xff", b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"k8s\0\x0b"]
    {
        assert_eq!(decode("ConfigMap", broken), Err(ProtobufError::Malformed), "{broken:?}");
    }
}

fn definition(raw: &[u8]) -> Vec<u8> {
    let type_meta = [field(1, b"apiextensions.k8s.io/v1"), field(2, b"CustomResourceDefinition")].concat();
    [MAGIC.to_vec(), field(1, &type_meta), field(2, raw)].concat()
}

/// The schema of a definition's one version, as it is read.
fn schema_of(raw: &[u8]) -> Result<Value, ProtobufError> {
    let version = [field(1, b"v1"), field(4, &field(1, raw))].concat();
    let read = decode("CustomResourceDefinition", &definition(&field(2, &field(7, &version))))?;
    Ok(read["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone())
}

/// Typed clients send definitions by protobuf; a schema in it is what it is in JSON.
#[test]
fn a_definition_keeps_what_its_schema_says() {
    let text = |text: &[u8]| field(5, text);
    let entry = |value: &[u8]| [field(1, b"a"), field(2, value)].concat();
    let json = |raw: &[u8]| field(1, raw);
    let half = [varint(9 << 3 | 1), 0.5_f64.to_le_bytes().to_vec()].concat();
    for (raw, expected) in [
        (vec![], json!({})),
        (text(b"object"), json!({ "type": "object" })),
        (half, json!({ "maximum": 0.5 })),
        ([varint(10 << 3), vec![1]].concat(), json!({ "exclusiveMaximum": true })),
        ([varint(10 << 3), vec![0]].concat(), json!({})),
        ([varint(14 << 3), vec![0]].concat(), json!({ "minLength": 0 })),
        ([varint(38 << 3), vec![0]].concat(), json!({ "x-kubernetes-preserve-unknown-fields": false })),
        (field(8, &json(b"[1,{\"a\":null}]")), json!({ "default": [1, { "a": null }] })),
        (
            [field(20, &json(b"\"x\"")), field(20, &json(b"0")), field(20, b"")].concat(),
            json!({ "enum": ["x", 0, null] }),
        ),
        (field(24, &field(1, &text(b"string"))), json!({ "items": { "type": "string" } })),
        (field(24, &field(1, b"")), json!({ "items": {} })),
        (
            field(24, &[field(2, &text(b"string")), field(2, b"")].concat()),
            json!({ "items": [{ "type": "string" }, {}] }),
        ),
        (field(28, b""), json!({ "not": {} })),
        (field(29, &entry(&text(b"string"))), json!({ "properties": { "a": { "type": "string" } } })),
        (field(29, &field(1, b"a")), json!({ "properties": { "a": {} } })),
        (
            field(30, &[vec![1 << 3, 1], field(2, &text(b"string"))].concat()),
            json!({ "additionalProperties": { "type": "string" } }),
        ),
        (field(30, &[1 << 3, 1]), json!({ "additionalProperties": true })),
        (field(30, &[1 << 3, 0]), json!({ "additionalProperties": false })),
        (field(32, &entry(&field(2, b"b"))), json!({ "dependencies": { "a": ["b"] } })),
        (field(32, &entry(&field(1, b""))), json!({ "dependencies": { "a": {} } })),
        (
            field(44, &[field(1, b"true"), vec![6 << 3, 1]].concat()),
            json!({ "x-kubernetes-validations": [{ "rule": "true", "optionalOldSelf": true }] }),
        ),
    ] {
        assert_eq!(schema_of(&raw), Ok(expected), "{raw:?}");
    }
    for broken in
        [field(8, &json(b"{")), [varint(9 << 3 | 1), f64::NAN.to_le_bytes().to_vec()].concat(), field(9, b"1")]
    {
        assert_eq!(schema_of(&broken), Err(ProtobufError::Malformed), "{broken:?}");
    }
    let subresources = field(5, &field(1, b""));
    let read = decode("CustomResourceDefinition", &definition(&field(2, &field(7, &subresources)))).unwrap();
    assert_eq!(read["spec"]["versions"][0]["subresources"], json!({ "status": {} }), "empty, and there");
}

#[test]
fn schemas_in_schemas_have_an_end() {
    let nested = |levels: usize, number: u64| {
        (1..levels).fold(Vec::new(), |inner, _| match number {
            29 => field(29, &[field(1, b"a"), field(2, &inner)].concat()),
            24 => field(24, &field(1, &inner)),
            30 => field(30, &field(2, &inner)),
            32 => field(32, &[field(1, b"a"), field(2, &field(1, &inner))].concat()),
            number => field(number, &inner),
        })
    };
    for number in [24, 25, 28, 29, 30, 32] {
        assert!(schema_of(&nested(SCHEMA_DEPTH_MAX, number)).is_ok(), "{number}");
        assert_eq!(schema_of(&nested(SCHEMA_DEPTH_MAX + 1, number)), Err(ProtobufError::TooDeep), "{number}");
        assert_eq!(schema_of(&nested(2000, number)), Err(ProtobufError::TooDeep), "{number}");
    }
}

/// A definition as client-go 1.34 encodes it, and the same as JSON.
const WIDGETS: &str = "\
    azhzAAozChdhcGlleHRlbnNpb25zLms4cy5pby92MRIYQ3VzdG9tUmVzb3VyY2VEZWZpbml0aW9uErcLCjEKGXdpZGdldHMucHJvdG8uZXhhbX\
    BsZS5jb20SABoAIgAqADIAOABCAFoGCgFhEgFiEvUKChFwcm90by5leGFtcGxlLmNvbRoeCgd3aWRnZXRzEgAaAndnIgZXaWRnZXQqADIDYWxs\
    IgpOYW1lc3BhY2VkOuwJCgJ2MRABGAEigQkK/ggKABIAIgAqBm9iamVjdDIAOgBQAGAAegCQAQDqAfEHCgRzcGVjEugHCgASACIAKgZvYmplY3\
    QyADoAUABgAHoAkAEA6gEuCgNhbnkSJwoAEgAiACoGb2JqZWN0MgA6AFAAYAB6AJABAKgCALACAbgCAMACAOoBrQIKBGxpc3QSpAIKABIAIgAq\
    BWFycmF5MgA6AFAAYAB6AJABAMIB8AEK7QEKABIAIgAqBm9iamVjdDIAOgBQAGAAegCQAQC6AQRuYW1l6gE+CgVjb2xvchI1CgASACIAKgZzdH\
    JpbmcyADoAUABgAHoAkAEAogEHCgUicmVkIqIBBAoCIiKoAgC4AgDAAgDqAT0KBG5hbWUSNQoAEgAiACoGc3RyaW5nMgA6AEIFCgMiYSJQAGAA\
    cAB6CF5bYS16XSokkAEAqAIAuAIAwAIA6gE+CgRzaXplEjYKABIAIgAqBm51bWJlcjIAOgBJAAAAAAAAI0BQAVkAAAAAAAAAAGAAegCQAQCoAg\
    C4AgDAAgCoAgC4AgDAAgCoAgC4AgDAAgDKAgRuYW1l0gIDbWFw6gFXCgNtYXASUAoAEgAiACoGb2JqZWN0MgA6AFAAYAB6AJABAPIBKQgBEiUK\
    ABIAIgAqB2ludGVnZXIyADoAUABgAHoAkAEAqAIBuAIAwAIAqAIAuAIAwAIA6gHOAQoDb25lEsYBCgASACIAKgZvYmplY3QyADoAUABgAHoAkA\
    EA0gEiCgASACIAKgAyADoAUABgAHoAkAEAugEBYagCALgCAMACANIBIgoAEgAiACoAMgA6AFAAYAB6AJABALoBAWKoAgC4AgDAAgDqASkKAWES\
    JAoAEgAiACoGc3RyaW5nMgA6AFAAYAB6AJABAKgCALgCAMACAOoBKQoBYhIkCgASACIAKgZzdHJpbmcyADoAUABgAHoAkAEAqAIAuAIAwAIAqA\
    IAuAIAwAIA6gF1CgRwb3J0Em0KABIAIgAqADIAOgBQAGAAegCQAQDaASUKABIAIgAqB2ludGVnZXIyADoAUABgAHoAkAEAqAIAuAIAwAIA2gEk\
    CgASACIAKgZzdHJpbmcyADoAUABgAHoAkAEAqAIAuAIAwAIAqAIAuAIAwAIB6gExCghyZXBsaWNhcxIlCgASACIAKgdpbnRlZ2VyMgA6AFAAYA\
    B6AJABAKgCALgCAMACAKgCALgCAMACAOICXwopIWhhcyhzZWxmLnJlcGxpY2FzKSB8fCBzZWxmLnJlcGxpY2FzID49IDASEm5vdCBsZXNzIHRo\
    YW4gbm9uZRoAIhFGaWVsZFZhbHVlSW52YWxpZCoJLnJlcGxpY2Fz4gIlChshb2xkU2VsZi5oYXNWYWx1ZSgpIHx8IHRydWUSABoAKgAwAeoBYg\
    oGc3RhdHVzElgKABIAIgAqBm9iamVjdDIAOgBQAGAAegCQAQDqATEKCHJlcGxpY2FzEiUKABIAIgAqB2ludGVnZXIyADoAUABgAHoAkAEAqAIA\
    uAIAwAIAqAIAuAIAwAIAqAIAuAIAwAIAKiYKABIiCg4uc3BlYy5yZXBsaWNhcxIQLnN0YXR1cy5yZXBsaWNhczIiCgFOEgdpbnRlZ2VyGgAiAC\
    gBMg4uc3BlYy5yZXBsaWNhczgAShAKDi5zcGVjLnJlcGxpY2FzOjsKCHYxYWxwaGExEAAYACIpCicKABIAIgAqBm9iamVjdDIAOgBQAGAAegCQ\
    AQCoAgCwAgG4AgDAAgA4AEoGCgROb25lUAAaChIICgASACIAKgAaACIA";
const WIDGETS_JSON: &str = "\
    {\"apiVersion\":\"apiextensions.k8s.io/v1\",\"kind\":\"CustomResourceDefinition\",\"metadata\":{\"labels\":{\"a\":\"b\"},\"na\
    me\":\"widgets.proto.example.com\"},\"spec\":{\"conversion\":{\"strategy\":\"None\"},\"group\":\"proto.example.com\",\"names\
    \":{\"categories\":[\"all\"],\"kind\":\"Widget\",\"plural\":\"widgets\",\"shortNames\":[\"wg\"]},\"scope\":\"Namespaced\",\"versio\
    ns\":[{\"additionalPrinterColumns\":[{\"jsonPath\":\".spec.replicas\",\"name\":\"N\",\"priority\":1,\"type\":\"integer\"}],\"n\
    ame\":\"v1\",\"schema\":{\"openAPIV3Schema\":{\"properties\":{\"spec\":{\"properties\":{\"any\":{\"type\":\"object\",\"x-kuberne\
    tes-preserve-unknown-fields\":true},\"list\":{\"items\":{\"properties\":{\"color\":{\"enum\":[\"red\",\"\"],\"type\":\"string\"\
    },\"name\":{\"default\":\"a\",\"minLength\":0,\"pattern\":\"^[a-z]*$\",\"type\":\"string\"},\"size\":{\"exclusiveMaximum\":true,\
    \"maximum\":9.5,\"minimum\":0,\"type\":\"number\"}},\"required\":[\"name\"],\"type\":\"object\"},\"type\":\"array\",\"x-kubernete\
    s-list-map-keys\":[\"name\"],\"x-kubernetes-list-type\":\"map\"},\"map\":{\"additionalProperties\":{\"nullable\":true,\"ty\
    pe\":\"integer\"},\"type\":\"object\"},\"one\":{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"properties\":{\"a\":{\"t\
    ype\":\"string\"},\"b\":{\"type\":\"string\"}},\"type\":\"object\"},\"port\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}\
    ],\"x-kubernetes-int-or-string\":true},\"replicas\":{\"type\":\"integer\"}},\"type\":\"object\",\"x-kubernetes-validation\
    s\":[{\"fieldPath\":\".replicas\",\"message\":\"not less than none\",\"reason\":\"FieldValueInvalid\",\"rule\":\"!has(self.r\
    eplicas) || self.replicas >= 0\"},{\"optionalOldSelf\":true,\"rule\":\"!oldSelf.hasValue() || true\"}]},\"status\":{\"\
    properties\":{\"replicas\":{\"type\":\"integer\"}},\"type\":\"object\"}},\"type\":\"object\"}},\"selectableFields\":[{\"jsonPa\
    th\":\".spec.replicas\"}],\"served\":true,\"storage\":true,\"subresources\":{\"scale\":{\"specReplicasPath\":\".spec.repli\
    cas\",\"statusReplicasPath\":\".status.replicas\"},\"status\":{}}},{\"name\":\"v1alpha1\",\"schema\":{\"openAPIV3Schema\":{\
    \"type\":\"object\",\"x-kubernetes-preserve-unknown-fields\":true}},\"served\":false,\"storage\":false}]}}";

/// ... as a typed client writes it.
#[test]
fn a_definition_of_a_typed_client_is_its_json() {
    let bytes = STANDARD.decode(WIDGETS).unwrap();
    let mut read = decode("CustomResourceDefinition", &bytes).unwrap();
    read.as_object_mut().unwrap().remove("status");
    assert_eq!(read, serde_json::from_str::<Value>(WIDGETS_JSON).unwrap());
    for end in 0..bytes.len() {
        let _ = decode("CustomResourceDefinition", &bytes[..end]);
        let mut flipped = bytes.clone();
        flipped[end] ^= 1 << (end % 8);
        let _ = decode("CustomResourceDefinition", &flipped);
    }
}

/// A kind of another group that has the name of one of the core's is not read as that one.
#[test]
fn a_group_has_its_own_kinds() {
    let body = |version: &[u8], raw: &[u8]| {
        let type_meta = [field(1, version), field(2, b"Service")].concat();
        [MAGIC.to_vec(), field(1, &type_meta), field(2, raw)].concat()
    };
    assert_eq!(decode("Service", &body(b"serving.knative.dev/v1", b"")), Err(ProtobufError::UnknownKind));
    assert!(decode("Service", &body(b"v1", b"")).is_ok());
}

/// A token that is asked for a Secret ends with it.
#[test]
fn a_request_for_a_token_names_what_it_is_bound_to() {
    let type_meta = [field(1, b"authentication.k8s.io/v1"), field(2, b"TokenRequest")].concat();
    let bound = [field(1, b"Secret"), field(2, b"v1"), field(3, b"s"), field(4, b"u")].concat();
    let raw = field(2, &[field(1, b"a"), field(3, &bound), vec![4 << 3, 60]].concat());
    let body = [MAGIC.to_vec(), field(1, &type_meta), field(2, &raw)].concat();
    let expected = json!({ "audiences": ["a"], "expirationSeconds": 60,
        "boundObjectRef": { "kind": "Secret", "apiVersion": "v1", "name": "s", "uid": "u" } });
    assert_eq!(decode("TokenRequest", &body).unwrap()["spec"], expected);
}

/// An empty message is two bytes here and an object in memory.
#[test]
fn body_of_too_many_messages_is_refused() {
    let ports = |count: usize| {
        let spec = field(1, b"").repeat(count);
        let type_meta = [field(1, b"v1"), field(2, b"Service")].concat();
        let raw = field(2, &spec);
        [MAGIC.to_vec(), field(1, &type_meta), field(2, &raw)].concat()
    };
    assert_eq!(decode("Service", &ports(MESSAGES_MAX)), Err(ProtobufError::TooMany));
    let few = decode("Service", &ports(100)).unwrap();
    assert_eq!(few["spec"]["ports"].as_array().map(Vec::len), Some(100));
}
