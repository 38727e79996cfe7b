#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::{Value, json};

use super::*;

fn cost(rule: &str, schema: &Value) -> u64 {
    let this = CelType::of(schema, false).unwrap();
    let program = CelProgram::parse(rule, &["self", "oldSelf"]).unwrap();
    program.check(&this, this.clone(), (schema, false), &SizeEstimator::default()).unwrap().1
}

/// A list, map or text of at most that much.
fn list(items: &Value, most: Option<u64>) -> Value {
    json!({ "type": "array", "items": items, "maxItems": most })
}

fn map(values: &Value, most: Option<u64>) -> Value {
    json!({ "type": "object", "additionalProperties": values, "maxProperties": most })
}

fn text(most: Option<u64>) -> Value {
    json!({ "type": "string", "maxLength": most })
}

/// APP-20: figures of Kubernetes' own estimates, without bounds and with them.
#[test]
fn a_rule_costs_what_kubernetes_estimates() {
    let number = json!({ "type": "number" });
    let moment = json!({ "type": "string", "format": "date-time" });
    let whole = json!({ "x-kubernetes-int-or-string": true });
    let any = "self.all(x, true)";
    for (schema, rule, expected) in [
        (list(&number, None), any, 4_718_591),
        (list(&number, Some(10)), any, 32),
        (list(&text(None), None), any, 3_145_727),
        (list(&json!({ "type": "boolean" }), Some(5)), any, 17),
        (list(&list(&number, None), None), any, 3_145_727),
        (list(&whole, None), any, 4_718_591),
        (list(&json!({ "type": "string", "format": "duration" }), None), any, 2_359_295),
        (list(&json!({ "type": "string", "format": "date" }), None), any, 725_936),
        (list(&moment, None), any, 428_963),
        (map(&number, None), any, 1_348_169),
        (map(&text(None), Some(3)), any, 11),
        (map(&moment, None), any, 349_526),
        (text(None), "self.contains('test')", 314_574),
        (text(Some(10)), "self.contains('test')", 5),
        (text(None), "self.startsWith('test')", 2),
        (text(None), r#"size(self + "hello") > size("hello")"#, 314_578),
        (text(Some(4)), r#"size(self + "hello") > size("hello")"#, 7),
        (list(&number, None), "self[1] == 0.0", 2),
        (list(&text(None), None), "self[1] == self[1]", 314_577),
        (list(&number, Some(10)), "self.all(x, self.all(y, true))", 352),
        (list(&number, Some(10)), "self.all(x, self.all(y, self.all(z, true)))", 3552),
        (text(None), r#"self.matches("x")"#, 314_574),
        (text(Some(50)), r#"self.matches("x")"#, 22),
        (text(None), r#""".matches("(((((((((())))))))))[0-9]")"#, 7),
        (text(None), r#"self.matches("")"#, 1),
        (map(&text(None), Some(10)), "self.all(x, x.contains(self[x]))", 72),
        (text(None), r#"self == "x""#, 2),
        (whole.clone(), "type(self) == int", 314_576),
        (json!({ "type": "object", "properties": { "a": whole } }), "type(self.a) == int", 4),
        (text(Some(0)), r#"self == "x""#, 1),
        (list(&number, None), "self.all(x, x == 0.0)", 6_291_454),
        (list(&whole, None), "self[0] == 5", 3),
        (list(&list(&number, None), None), "self[0][0] == -1.0", 3),
        (list(&map(&number, None), None), "self.all(x, x.y == 25.2)", 6_291_452),
        (list(&map(&number, None), Some(12)), "self.all(x, x.y == 25.2)", 74),
        (list(&moment, None), "self[2].getMinutes() == 45", 4),
        (text(None), "self.find('[0-9]+') == ''", 629_147),
        (text(Some(10)), "self.find('[0-9]+') == ''", 11),
        (list(&text(None), None), "self.join(' ') == 'aa bb'", 329_853_068_905),
        (list(&text(Some(10)), Some(10)), "self.join(' ') == 'aa bb'", 43),
        (list(&text(None), None), "self.isSorted() == true", 329_854_432_052),
        (list(&text(Some(10)), Some(10)), "self.isSorted() == true", 52),
        (text(None), "self.lowerAscii() == 'lower!'", 314_575),
        (map(&json!({ "type": "integer" }), None), "oldSelf.size() == self.size()", 5),
        (map(&moment, None), r#"self["a"] == self["b"]"#, 8),
        (whole.clone(), "isQuantity(self)", 314_574),
    ] {
        assert_eq!(cost(rule, &schema), expected, "{rule} of {schema}");
    }
}

/// APP-20: sizes of what a call makes are computed on, and an enumeration is as long as its longest value.
#[test]
fn what_a_call_makes_has_a_size() {
    let object = |most: Option<u64>| {
        json!({ "type": "object", "properties": {
            "str": text(most), "before": text(Some(2)), "after": text(Some(4)) } })
    };
    let replaced = "self.str.replace(self.before, self.after) == 'does not matter'";
    assert_eq!((cost(replaced, &object(None)), cost(replaced, &object(Some(4)))), (629_154, 12));
    let named = json!({ "type": "string", "enum": ["A", "LongValue"] });
    assert_eq!(cost("self.contains('A')", &named), 2);
    let names = list(&text(Some(63)), Some(10));
    let rule = "self.all(x, !format.dns1123Label().validate(x).hasValue())";
    // Twice ten bytes for the text of 252, by a pattern of 128; for each of ten items.
    assert_eq!(cost(rule, &names), 2 + 10 * (2 + 1 + 1 + 1 + 1 + 1 + 26 * 32));
}
