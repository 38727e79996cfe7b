//! Every language in which a client can send expressions: regular expressions and rules of definitions, paths of
//! columns, selectors, names with `*`. An evaluation costs at most what a request may cost, whatever the expression.

use http::Method;
use serde_json::{Value, json};

use crate::meter::{BODY_BYTES, MeteredApi};

const JSON: &str = "application/json";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/cost.example.com/v1/namespaces/default/things";

fn definition(spec: &Value, columns: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "things.cost.example.com" },
        "spec": {
            "group": "cost.example.com", "scope": "Namespaced",
            "names": { "plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "additionalPrinterColumns": columns,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": spec } } } }],
        },
    })
}

fn thing(spec: &Value) -> Value {
    json!({ "apiVersion": "cost.example.com/v1", "kind": "Thing", "metadata": { "name": "a" }, "spec": spec })
}

/// Zeros and ones that repeat nothing.
fn bits(count: usize) -> String {
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        if random.is_multiple_of(2) { '0' } else { '1' }
    };
    (0..count).map(|_| next()).collect()
}

/// Makes the definition, and an object of it. Both are answered within the bounds; what the answer to the object says.
async fn try_thing(spec: &Value, value: &Value, about: &str) -> (u16, String) {
    let api = MeteredApi::start().await;
    let body = definition(spec, &json!([])).to_string();
    let made = api.ask((Method::POST, DEFINITIONS), JSON, body, about).await;
    match made.0 {
        201 => api.ask((Method::POST, THINGS), JSON, thing(value).to_string(), about).await,
        _ => made,
    }
}

/// Texts of 100 KB: one match of the first pattern took 3.4 s, optimized, at 1 MB.
#[tokio::test]
async fn patterns_of_a_schema_are_bounded_by_steps() {
    let text = bits(BODY_BYTES);
    let budget = "validation against the schema takes more than 5000000 comparisons";
    for (pattern, value, expected) in [
        ("[01]*1[01]{100}2", json!(text), (422, budget)),
        ("[01]*1[01]{1000}2", json!(text), (422, budget)),
        ("(?:.{0,200}1){3}x", json!(text), (422, budget)),
        ("(a?){100}a{100}b", json!("a".repeat(BODY_BYTES)), (422, "should match")),
        ("\\pL{20}\\d", json!("a".repeat(BODY_BYTES)), (422, "should match")),
        ("^(([a-z])+.)+[A-Z]([a-z])+$", json!("a".repeat(BODY_BYTES)), (422, "should match")),
        ("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", json!("a".repeat(BODY_BYTES)), (201, "")),
        ("\\pL{1000}", json!("a"), (422, "bytes compiled")),
        ("(?i)\\pL", json!("a"), (201, "")),
    ] {
        let (code, answer) = try_thing(&json!({ "type": "string", "pattern": pattern }), &value, pattern).await;
        assert!(
            code == expected.0 && answer.contains(expected.1),
            "{pattern}: {code} {}",
            &answer[..300.min(answer.len())]
        );
        assert!(expected.1 != budget || answer.contains("\"field\":\"spec\""), "{pattern}: {answer}");
    }
    let short = bits(2_000);
    let many: Vec<&str> = (0..BODY_BYTES / 100).map(|at| &short[at % 1_900..at % 1_900 + 97]).collect();
    let spec = json!({ "type": "array", "items": { "type": "string", "pattern": "[01]*1[01]{300}2" } });
    assert_eq!(try_thing(&spec, &json!(many), "many short texts").await.0, 422);
    let branches: Vec<Value> = (0..2_000).map(|n| json!({ "pattern": format!("^b{n}") })).collect();
    let spec = json!({ "type": "string", "anyOf": branches });
    assert_eq!(try_thing(&spec, &json!("a".repeat(BODY_BYTES)), "many branches").await.0, 422);
    let spec = json!({ "type": "array", "items": {
        "type": "string", "anyOf": [{ "enum": ["x".repeat(BODY_BYTES)] }, { "pattern": "." }] } });
    assert_eq!(try_thing(&spec, &json!(vec!["a"; BODY_BYTES / 4]), "a long word").await.0, 422);
}

/// What takes long to read is refused with its definition.
#[tokio::test]
async fn patterns_that_take_long_to_read_are_refused() {
    let folded = (0..200)
        .map(|n| (format!("p{n}"), json!({ "type": "string", "pattern": format!("(?i){}{n}", "\\pL".repeat(150)) })));
    let properties: Value = Value::Object(folded.collect());
    let rules: Vec<Value> =
        (0..1_000).map(|n| json!({ "rule": format!("self.matches('(?i){}{n}')", "\\\\pL".repeat(10)) })).collect();
    for (spec, expected) in [
        (json!({ "type": "string", "pattern": "a".repeat(BODY_BYTES) }), "limit is 8192"),
        (json!({ "type": "string", "pattern": format!("(?i){}", "\\pL".repeat(1_000)) }), "limit is 8192"),
        (
            json!({ "type": "object", "properties": properties }),
            "all patterns together take more than 65536 bytes of text",
        ),
        (
            json!({ "type": "string", "maxLength": 1, "x-kubernetes-validations": rules }),
            "all patterns together take more",
        ),
    ] {
        let (code, answer) = try_thing(&spec, &json!("a"), expected).await;
        assert!(code == 422 && answer.contains(expected), "{code} {}", &answer[..300.min(answer.len())]);
    }
}

/// Functions of CEL whose cost grows with two values, and with what they make.
#[tokio::test]
async fn rules_of_a_definition_are_bounded_by_steps() {
    let long =
        json!({ "text": bits(BODY_BYTES / 2), "list": vec!["a"; 1_000], "map": { "k".repeat(BODY_BYTES / 3): "v" } });
    let short = |max: u32| json!({ "type": "string", "maxLength": max });
    let spec = |rule: &str| {
        json!({ "type": "object", "x-kubernetes-validations": [{ "rule": rule }], "properties": {
            "text": short(60_000), "list": { "type": "array", "maxItems": 1_000, "items": short(2) },
            "map": { "type": "object", "maxProperties": 1, "additionalProperties": short(2) } } })
    };
    for rule in [
        "self.text.matches('[01]*1[01]{300}2')",
        "self.text.find('[01]*1[01]{300}2') == ''",
        "self.text.findAll('.*2|[01]').size() == 0",
        "self.text.findAll('').size() == 0",
        "self.list.all(x, x.indexOf(self.text) == 0)",
        "self.list.all(x, x.lastIndexOf(self.text) < 0)",
        "self.list.all(x, x.split(self.text).size() == 1)",
        "self.list.all(x, x.replace(self.text, 'b') == 'a')",
        "self.list.all(x, self.map == self.map)",
        "self.list.all(x, self.list.all(y, self.list.exists(z, z != y || x != z)))",
        "self.list.all(x, self.list == self.list)",
        "self.text.split('').size() == 0",
        "self.text.replace('', self.text) == ''",
        "self.list.map(x, self.text + self.text).join('') == ''",
        "self.list.all(x, self.text in self.list)",
        "sets.contains(self.list, self.list) && self.list.isSorted()",
        "'%s %s'.format([self.list, self.text]) == ''",
        "self.list.all(x, bytes(self.text) == bytes(self.text))",
        "self.list.all(x, 'a'.matches(self.text + x))",
        "self.list.all(x, ip('::1').family() == 4 || cidr('::/0').containsIP(self.text))",
        "self.list.all(x, duration(self.text) == duration('1s') || true)",
    ] {
        let (code, answer) = try_thing(&spec(rule), &long, rule).await;
        let refused = code == 422 && answer.contains("cost budget") || answer.contains("exceeds budget");
        assert!(code == 201 || code == 422 && (refused || answer.contains("rule")), "{rule}: {code} {answer}");
    }
}

/// Columns of a table: paths that multiply, and many of them.
#[tokio::test]
async fn paths_of_columns_are_bounded_by_steps() {
    let api = MeteredApi::start().await;
    let paths = [
        "..a".repeat(20),
        format!(".spec.list[{}]", vec!["*"; 2_000].join(",")),
        format!(".spec.list[?(@=='{}')]", "a".repeat(10_000)),
        ".spec.list[*]".to_owned() + &"[?(@.a)]".repeat(8),
        ".spec".repeat(10_000),
        "..".to_owned(),
    ];
    let column = |path: &String| json!({ "name": "c", "type": "string", "jsonPath": path });
    let columns: Value = paths.iter().cycle().take(100).map(column).collect();
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let body = |columns: &Value| definition(&schema, columns).to_string();
    let too_many: Value = paths.iter().cycle().take(101).map(|_| column(&".spec".to_owned())).collect();
    let (code, answer) = api.ask((Method::POST, DEFINITIONS), JSON, body(&too_many), "columns").await;
    assert!(code == 422 && answer.contains("must have at most 100 items"), "{code} {answer}");
    assert_eq!(api.ask((Method::POST, DEFINITIONS), JSON, body(&columns), "columns").await.0, 201);
    let deep = (0..60).fold(json!({}), |inner, _| json!({ "a": inner }));
    let spec = json!({ "list": vec![json!({ "a": "a" }); 5_000], "deep": deep });
    assert_eq!(api.ask((Method::POST, THINGS), JSON, thing(&spec).to_string(), "object").await.0, 201);
    let (code, table) = api.table(THINGS).await;
    assert_eq!(code, 200, "{table}");
}

/// Selectors of requests and of objects, labels, and names with `*`.
#[tokio::test]
async fn selectors_and_names_are_bounded_by_steps() {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let api = MeteredApi::start().await;
    let number = |n: usize| format!("l{n:05}");
    let labels: Value = Value::Object((0..BODY_BYTES / 20).map(|n| (number(n), "v".into())).collect());
    let object = json!({ "metadata": { "name": "a", "labels": labels } });
    assert_eq!(api.ask((Method::POST, MAPS), JSON, object.to_string(), "labels").await.0, 201);
    let parts = |part: &str, count: usize| vec![part; count].join(",");
    for (query, expected) in [
        (format!("labelSelector={}", parts("l00001", 256)), 200),
        (format!("labelSelector={}", parts("l00001", 257)), 400),
        (format!("labelSelector=a%20in%20({})", parts("b", 10_000)), 200),
        (format!("labelSelector={}", "(".repeat(10_000)), 400),
        (format!("fieldSelector={}", parts("metadata.name!=b", 256)), 200),
        (format!("fieldSelector={}", parts("metadata.name!=b", 257)), 400),
    ] {
        let about = &query[..30];
        let asked = api.ask((Method::GET, &format!("{MAPS}?{query}")), JSON, String::new(), about).await;
        assert_eq!(asked.0, expected, "{about}");
    }
    let expressions = vec![json!({ "key": "a", "operator": "In", "values": ["b"] }); 257];
    let policy = json!({ "apiVersion": "eventing.knative.dev/v1alpha1", "kind": "EventPolicy", "metadata": { "name": "a" },
        "spec": { "from": [{ "sub": format!("{}*", "a*".repeat(20_000)) }],
            "to": [{ "selector": { "apiVersion": "v1", "kind": "Broker", "matchExpressions": expressions } }] } });
    let policies = "/apis/eventing.knative.dev/v1alpha1/namespaces/default/eventpolicies";
    let (code, answer) = api.ask((Method::POST, policies), JSON, policy.to_string(), "policy").await;
    assert!(code == 422 || code == 400, "{code}");
    assert!(answer.contains("must have at most 256 items"), "{}", &answer[..300.min(answer.len())]);
    let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "nonResourceAttributes": { "path": "/a*".repeat(30_000), "verb": "*" } } });
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(api.ask((Method::POST, reviews), JSON, review.to_string(), "review").await.0, 201);
}
