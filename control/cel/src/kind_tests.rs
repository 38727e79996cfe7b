#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::RefCell;

use serde_json::{Value, json};

use super::*;

/// The type of `self` in these rules.
fn kinds() -> Value {
    json!({ "type": "object", "properties": {
        "s": { "type": "string" }, "n": { "type": "integer" }, "f": { "type": "number" }, "b": { "type": "boolean" },
        "l": { "type": "array", "items": { "type": "string" } },
        "m": { "type": "object", "additionalProperties": { "type": "integer" } },
        "o": { "type": "object", "properties": { "x": { "type": "string" } } },
        "any": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
        "ios": { "x-kubernetes-int-or-string": true }, "at": { "type": "string", "format": "date-time" },
        "dur": { "type": "string", "format": "duration" }, "by": { "type": "string", "format": "byte" },
        "emb": { "type": "object", "x-kubernetes-embedded-resource": true },
        "un": { "x-kubernetes-preserve-unknown-fields": true },
        "li": { "type": "array", "items": { "type": "object", "properties": {
            "k": { "type": "string" }, "v": { "type": "integer" } } } } } })
}

fn kind_of(rule: &str, whole: bool) -> Result<String, String> {
    let schema = kinds();
    let this = CelType::of(&schema, whole).unwrap();
    let patterns = RefCell::default();
    let old = TypeScope { name: "oldSelf", kind: this.clone(), outer: None, type_map: None, patterns: Some(&patterns) };
    let known = TypeScope { name: "self", kind: this, outer: Some(&old), type_map: None, patterns: None };
    let rendered = |why: CompileError| why.render(rule).lines().next().unwrap().replacen("<input>:", "", 1);
    let program = CelProgram::parse(rule, &["self", "oldSelf"]).map_err(rendered)?;
    type_check::type_of(&program.root, &known).map(|kind| kind.to_string()).map_err(rendered)
}

/// Rules that fit their schema are accepted, as by Kubernetes' API server 1.34.
#[test]
fn a_rule_that_fits_the_schema_is_taken() {
    for rule in [
        "self.n > 1.5",
        "self.f > 1",
        "self.m.a > 1",
        "has(self.m.y)",
        "self.ios == 1 || self.ios == 'a'",
        "self.ios > 5",
        "self.at == timestamp('2020-01-01T00:00:00Z')",
        "self.dur.getHours() == 1",
        "self.by == b'x'",
        "self.by.size() == 1",
        "self.emb.metadata.name == 'x'",
        "self.emb.kind == 'x'",
        "self.li.map(x, x.v).sum() > 1",
        "'a' in self.l",
        "'k' in self.m",
        "'%s'.format([1]) == 'a'",
        "'%.2f'.format([1.0]) == 'a'",
        "self.?s.orValue('x') == 'y'",
        "self.?o.?x.hasValue()",
        "oldSelf.s == self.s",
        "self.o == null",
        "self == oldSelf",
        "type(self.s) == string",
        "self.s in ['a', 'b']",
        "{'a': 1}.a == 1",
        "{'a': 1}.b == 1",
        "dyn(self.s) == 1",
        "self.l.isSorted()",
        "self.l.all(i, v, v == 'a')",
        "self.l.transformList(i, v, v) == ['a']",
    ] {
        assert_eq!(kind_of(rule, false), Ok("bool".into()), "{rule}");
    }
    assert_eq!(kind_of("self.metadata.name.startsWith('a') && self.kind == 'x'", true), Ok("bool".into()));
}

/// Rules that are refused, and what is said.
const CANNOT_HOLD: &[(&str, &str)] = &[
    ("self.nope == 1", "1:5: undefined field 'nope'"),
    ("self.s == 1", "1:8: found no matching overload for '_==_' applied to '(string, int)'"),
    ("self.n == 'a'", "1:8: found no matching overload for '_==_' applied to '(int, string)'"),
    ("self.n == 1.5", "1:8: found no matching overload for '_==_' applied to '(int, double)'"),
    ("self.f == 1", "1:8: found no matching overload for '_==_' applied to '(double, int)'"),
    ("self.s.frob()", "1:12: undeclared reference to 'frob' (in container '')"),
    ("frob(self)", "1:5: undeclared reference to 'frob' (in container '')"),
    ("foo == 1", "1:1: undeclared reference to 'foo' (in container '')"),
    ("self.s.startsWith(1)", "1:18: found no matching overload for 'startsWith' applied to 'string.(int)'"),
    ("size(1) == 1", "1:5: found no matching overload for 'size' applied to '(int)'"),
    ("self.l.all(x, x > 1)", "1:17: found no matching overload for '_>_' applied to '(string, int)'"),
    ("self.l.all(x, x.y == 1)", "1:16: type 'string' does not support field selection"),
    ("self.l[0] == 1", "1:11: found no matching overload for '_==_' applied to '(string, int)'"),
    ("self.l['a'] == 'x'", "1:7: found no matching overload for '_[_]' applied to '(list(string), string)'"),
    ("self.m['a'] > 'x'", "1:13: found no matching overload for '_>_' applied to '(int, string)'"),
    ("self.m.all(k, k == 1)", "1:17: found no matching overload for '_==_' applied to '(string, int)'"),
    ("self.o.x == 1", "1:10: found no matching overload for '_==_' applied to '(string, int)'"),
    ("self.o.y == 'a'", "1:7: undefined field 'y'"),
    ("has(self.o.y)", "1:4: undefined field 'y'"),
    ("self.any.foo == 1", "1:9: undefined field 'foo'"),
    ("self.at > 'x'", "1:9: found no matching overload for '_>_' applied to '(timestamp, string)'"),
    ("self.emb.spec.x == 1", "1:9: undefined field 'spec'"),
    ("self.un.x == 1", "1:5: undefined field 'un'"),
    ("self.metadata.name == 'x'", "1:5: undefined field 'metadata'"),
    ("'a' + 1 == 'b'", "1:5: found no matching overload for '_+_' applied to '(string, int)'"),
    ("self.s + 1 == 'a'", "1:8: found no matching overload for '_+_' applied to '(string, int)'"),
    ("self.s && true", "1:5: expected type 'bool' but found 'string'"),
    ("!self.s", "1:1: found no matching overload for '!_' applied to '(string)'"),
    ("-self.s == 'a'", "1:1: found no matching overload for '-_' applied to '(string)'"),
    ("self.n ? true : false", "1:8: found no matching overload for '_?_:_' applied to '(int, bool, bool)'"),
    ("self.b ? 1 : 'a'", "1:8: found no matching overload for '_?_:_' applied to '(bool, int, string)'"),
    ("(self.b ? 1 : 'a') == 1", "1:9: found no matching overload for '_?_:_' applied to '(bool, int, string)'"),
    ("[1, 'a'].size() == 2", "1:5: expected type 'int' but found 'string'"),
    ("self.l.exists(x, x)", "1:18: expected type 'bool' but found 'string'"),
    ("self.li.map(x, x.v).sum() == 'a'", "1:27: found no matching overload for '_==_' applied to '(int, string)'"),
    ("self.li.filter(x, x.zz > 1).size() == 0", "1:20: undefined field 'zz'"),
    ("self.li.all(x, x.v == 'a')", "1:20: found no matching overload for '_==_' applied to '(int, string)'"),
    ("1 in self.l", "1:3: found no matching overload for '@in' applied to '(int, list(string))'"),
    ("1 in self.m", "1:3: found no matching overload for '@in' applied to '(int, map(string, int))'"),
    ("'%q'.format([1]) == 'a'", "1:12: could not parse formatting clause: unrecognized formatting clause \"q\""),
    ("'%s'.format(1) == 'a'", "1:12: found no matching overload for 'format' applied to 'string.(int)'"),
    (
        "quantity('1') > quantity('2')",
        "1:15: found no matching overload for '_>_' applied to '(kubernetes.Quantity, kubernetes.Quantity)'",
    ),
    (
        "quantity('1').isGreaterThan(1)",
        "1:28: found no matching overload for 'isGreaterThan' applied to 'kubernetes.Quantity.(int)'",
    ),
    (
        "quantity('1').isGreaterThan('a')",
        "1:28: found no matching overload for 'isGreaterThan' applied to 'kubernetes.Quantity.(string)'",
    ),
    (
        "self.?s.orValue(1) == 1",
        "1:16: found no matching overload for 'orValue' applied to 'optional_type(string).(int)'",
    ),
    ("self.?nope.orValue(1) == 1", "1:5: undefined field 'nope'"),
    ("self.?s.optMap(x, x + 1).hasValue()", "1:21: found no matching overload for '_+_' applied to '(string, int)'"),
    (
        "self.?s.optMap(x, x).orValue(1) == 1",
        "1:29: found no matching overload for 'orValue' applied to 'optional_type(string).(int)'",
    ),
    ("optional.of(1).value() == 'a'", "1:24: found no matching overload for '_==_' applied to '(int, string)'"),
    ("oldSelf.nope == 1", "1:8: undefined field 'nope'"),
    ("self.s == null", "1:8: found no matching overload for '_==_' applied to '(string, null)'"),
    ("type(self.s) == 'a'", "1:14: found no matching overload for '_==_' applied to '(type(string), string)'"),
    ("self.s.matches('(')", "1:16: invalid matches argument"),
    ("self.s.find('a') == 1", "1:18: found no matching overload for '_==_' applied to '(string, int)'"),
    ("self.s.split(',').exists(x, x == 1)", "1:31: found no matching overload for '_==_' applied to '(string, int)'"),
    ("{'a': 1}['a'] == 'x'", "1:15: found no matching overload for '_==_' applied to '(int, string)'"),
    ("self.s.lowerAscii() == 1", "1:21: found no matching overload for '_==_' applied to '(string, int)'"),
    ("self.n + 1u > 2u", "1:8: found no matching overload for '_+_' applied to '(int, uint)'"),
    ("self.n.size() == 1", "1:12: found no matching overload for 'size' applied to 'int.()'"),
    ("self.b.x == 1", "1:7: type 'bool' does not support field selection"),
    ("self.n / 2.0 == 1.0", "1:8: found no matching overload for '_/_' applied to '(int, double)'"),
    ("int(self.s) == 'a'", "1:13: found no matching overload for '_==_' applied to '(int, string)'"),
    ("string(self.l) == 'a'", "1:7: found no matching overload for 'string' applied to '(list(string))'"),
    ("duration(self.s) > 1", "1:18: found no matching overload for '_>_' applied to '(duration, int)'"),
    ("timestamp(self.s).getFullYear() > 'a'", "1:33: found no matching overload for '_>_' applied to '(int, string)'"),
    ("self.l.sum() == 'a'", "1:11: found no matching overload for 'sum' applied to 'list(string).()'"),
    ("self.l + [1] == []", "1:8: found no matching overload for '_+_' applied to '(list(string), list(int))'"),
    ("self.l.map(x, x.size())[0] == 'a'", "1:28: found no matching overload for '_==_' applied to '(int, string)'"),
];

/// ... and what does not is refused in its words.
#[test]
fn a_rule_that_cannot_hold_is_refused_where_it_fails() {
    for (rule, why) in CANNOT_HOLD {
        assert_eq!(kind_of(rule, false), Err((*why).into()), "{rule}");
    }
    assert_eq!(kind_of("self.metadata.labels == {}", true), Err("1:14: undefined field 'labels'".into()));
    let mistake = CelProgram::parse("true &&\n  frob(self)", &["self"]).unwrap_err();
    let rendered = "<input>:2:7: undeclared reference to 'frob' (in container '')\n |   frob(self)\n | ......^";
    assert_eq!(mistake.render("true &&\n  frob(self)"), rendered);
    assert!(
        CompileError::new(99, "x").render("ä").ends_with("x\n | ä\n | .^"),
        "behind the end, and no character's start"
    );
}
