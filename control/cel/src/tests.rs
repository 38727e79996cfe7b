#![allow(clippy::unwrap_used, reason = "a test may panic")]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn object() -> Value {
    json!({
        "spec": { "size": 3, "min": 1, "max": 5, "ratio": 2, "name": "abc", "tags": ["a", "b"], "flag": true,
            "items": [{ "key": "x", "n": 1 }, { "key": "y", "n": 2 }], "labels": { "a": "1", "b/c": "2" },
            "memory": "1.5Gi", "at": "2026-01-02T03:04:05Z", "wait": "90s", "some-field": 7, "namespace": "n" },
        "metadata": { "name": "me", "labels": { "x": "y" } },
    })
}

fn schema() -> Value {
    json!({ "properties": { "spec": { "properties": {
        "ratio": { "type": "number" }, "at": { "type": "string", "format": "date-time" },
        "wait": { "type": "string", "format": "duration" } } } } })
}

fn answer(rule: &str) -> Result<bool, String> {
    let program = CelProgram::parse(rule, &["self", "oldSelf"]).map_err(|why| why.why)?;
    let mut steps = EvalBudget::default();
    let this = CelValue::of(&object(), &schema(), true, &mut steps).unwrap();
    let old = EvalScope { name: "oldSelf", value: this.clone(), outer: None };
    let scope = EvalScope { name: "self", value: this, outer: Some(&old) };
    match program.evaluate(&scope, &mut steps) {
        Ok(CelValue::Bool(truth)) => Ok(truth),
        Ok(other) => Err(format!("a {}", other.type_name())),
        Err(EvalError::BudgetExceeded) => Err("over".into()),
        Err(EvalError::Mismatch(why)) => Err(why),
    }
}

/// APP-20: rules say of an object what CEL says they mean.
#[test]
fn rules_mean_what_they_mean_in_cel() {
    for rule in [
        "self.spec.min <= self.spec.size && self.spec.size <= self.spec.max",
        "self.spec.size % 2 == 1 ? self.spec.name == 'abc' : false",
        "-self.spec.size + 10 * 2 - 4 / 2 == 15",
        "1 + 2 == 3.0 && 1u < 2 && 0x10 == 16 && 1.5e1 == 15.0",
        "self.spec.ratio * 1.5 == 3.0",
        "has(self.spec.name) && !has(self.spec.none)",
        "has(self.spec.none) || self.spec.size == 3",
        "self.spec.none == 1 || true",
        "self.spec.tags.all(t, t in ['a', 'b', 'c']) && self.spec.tags.exists(t, t == 'b')",
        "self.spec.tags.exists_one(t, t.startsWith('a')) && 'a' in self.spec.tags",
        "self.spec.items.map(i, i.n) == [1, 2] && self.spec.items.filter(i, i.n > 1)[0].key == 'y'",
        "self.spec.items.map(i, i.n > 1, i.key) == ['y']",
        "self.spec.items.all(i, self.spec.items.exists_one(j, j.key == i.key))",
        "self.spec.labels['b/c'] == '2' && self.spec.labels.all(k, size(k) < 4)",
        "self.spec.name.matches('^[a-z]+$') && matches(self.spec.name, 'b')",
        "self.spec.name.size() == 3 && size(self.spec.tags) == 2 && self.spec.name.contains('b')",
        "self.spec.name.substring(1) == 'bc' && self.spec.name.charAt(0) == 'a' && 'a-b'.split('-') == ['a', 'b']",
        "self.spec.tags.join(',') == 'a,b' && ' x '.trim() == 'x' && 'aXa'.replace('X', '-') == 'a-a'",
        "'ABC'.lowerAscii() == self.spec.name && 'abcb'.lastIndexOf('b') == 3 && 'abc'.indexOf('z') == -1",
        "[1, 2, 3].sum() == 6 && [3, 1].min() == 1 && [1, 2].isSorted() && !([2, 1].isSorted())",
        "quantity(self.spec.memory).isGreaterThan(quantity('1Gi')) && isQuantity('250m') && !isQuantity('x')",
        "quantity('1500m').compareTo(quantity('1.5')) == 0 && quantity('2Ki').asInteger() == 2048",
        "self.spec.at.getFullYear() == 2026 && self.spec.at > timestamp('2025-01-01T00:00:00Z')",
        "self.spec.wait == duration('1m30s') && self.spec.wait.getSeconds() == 90",
        "self.spec.?none.orValue(4) == 4 && self.spec.?size.hasValue() && self.?gone.deeper.orValue('x') == 'x'",
        "isURL('https://a.example/x') && !isURL('a b') && isIP('::1') && isCIDR('10.0.0.0/8') && !isCIDR('10.0.0.0/40')",
        "self.spec.some__dash__field == 7 && self.spec.__namespace__ == 'n'",
        "'%s is %d'.format([self.spec.name, self.spec.size]) == 'abc is 3'",
        "type(self.spec.size) == int && string(self.spec.size) == '3' && int('4') == 4 && double(1) == 1.0",
        "self.metadata.name == 'me' && !has(self.metadata.labels)",
        "oldSelf.spec.size == self.spec.size",
        "{'a': 1, 2: 'b'}[2] == 'b' && r'\\d' == '\\\\d' && \"\\u0041\\n\".size() == 2 && b'ab'.size() == 2",
        "self.spec.size == 3 // and that is all\n",
        "!(1 > 2) && !!true && --1 == 1",
        "optional.of(1).value() == 1 && !optional.none().hasValue()",
        "self.spec.?size.optMap(n, n + 1).value() == 4 && !self.spec.?none.optMap(n, n / 0).hasValue()",
        "self.spec.?size.optFlatMap(n, self.spec.?name).value() == 'abc' && !optional.of(1).optFlatMap(n, optional.none()).hasValue()",
        "self.spec.?size.optMap(self, self * 2).orValue(0) == 6 && self.spec.size == 3",
        "[1, 2].exists(i, i / 0 == 1 || i == 2)",
        "ip('10.1.2.3').family() == 4 && ip('::1').isLoopback() && ip('fe80::1').isLinkLocalUnicast() && !isIP('::ffff:1.2.3.4')",
        "ip('8.8.8.8').isGlobalUnicast() && ip('224.0.0.5').isLinkLocalMulticast() && ip('0.0.0.0').isUnspecified()",
        "cidr('10.0.0.0/8').containsIP('10.1.2.3') && !cidr('10.0.0.0/8').containsIP(ip('11.0.0.1'))",
        "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.1.0.0/16').containsCIDR(cidr('10.0.0.0/8'))",
        "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8') && cidr('::/0').prefixLength() == 0 && cidr('::/0').containsIP('::1')",
        "cidr('1.2.3.4/32').ip() == ip('1.2.3.4') && string(ip('1.2.3.4')) == '1.2.3.4' && !isCIDR('1.2.3.4/+8')",
        "url('https://u:p@a.example:8443/x/y?z=1').getHost() == 'a.example:8443' && url('https://a').getEscapedPath() == ''",
        "url('https://a.example:8443/x').getPort() == '8443' && url('http://[::1]:80/').getHostname() == '::1'",
        "url('/only/path').getScheme() == '' && url('https://a/b').getScheme() in ['http', 'https'] && url('https://a/b').getPort() == ''",
        "sets.contains([1, 2, 3], [2]) && !sets.contains([1], [2]) && sets.intersects([1, 2], [2, 3]) && sets.equivalent([1, 2], [2, 1, 1])",
        "[[1]].exists(sets, sets.size() == 1)",
    ] {
        assert_eq!(answer(rule), Ok(true), "{rule}");
    }
    for rule in ["self.spec.size > self.spec.max", "'1' == 1", "[1] == [2]", "self.spec.size in [4]"] {
        assert_eq!(answer(rule), Ok(false), "{rule}");
    }
}

#[test]
fn a_rule_that_does_not_fit_says_why() {
    for (rule, why) in [
        ("self.spec.none > 1", "no such key: none"),
        ("self.spec.size > 'a'", "have no order"),
        ("self.spec.tags[9] == 'a'", "out of bounds"),
        ("1 / 0 == 1", "division by zero"),
        ("9223372036854775807 + 1 > 0", "overflow"),
        ("self.spec.size", "a int"),
        ("self.spec.name + 1 == 'a'", "no such overload"),
        ("'a'.matches('(')", "not a regular expression"),
        ("timestamp('x') == timestamp('y')", "no timestamp"),
        ("ip('x').family() == 4", "no ip"),
        ("self.spec.size.optMap(n, n) == optional.of(3)", "not optional"),
        ("self.spec.?size.optFlatMap(n, n) == optional.of(3)", "not optional"),
        ("cidr('1.2.3.4/33').prefixLength() == 4", "no cidr"),
        ("url('x y').getHost() == ''", "no url"),
    ] {
        let found = answer(rule).unwrap_err();
        assert!(found.contains(why), "{rule}: {found}");
    }
}

/// APP-20: what cannot be followed is found when it is read.
#[test]
fn a_rule_that_means_nothing_is_refused_when_it_is_read() {
    for (rule, why) in [
        ("self.spec.size >", "expected a value"),
        ("foo == 1", "undeclared reference to 'foo'"),
        ("frob(self)", "undeclared reference to 'frob'"),
        ("self.frob()", "undeclared reference to 'frob'"),
        ("size(1, 2) == 1", "applied to 2 arguments"),
        ("has(self)", "takes a field"),
        ("self.all(x)", "\",\""),
        ("'open", "unterminated"),
        ("1 2", "the end"),
        ("self ~ 1", "token recognition error"),
        ("", "a value"),
    ] {
        let found = CelProgram::parse(rule, &["self"]).unwrap_err().why;
        assert!(found.contains(why), "{rule}: {found}");
    }
    for long in [
        format!("{}1{}", "(".repeat(500), ")".repeat(500)),
        format!("{}1", "!".repeat(5) + &"[".repeat(500)),
        vec!["1"; 500].join("+"),
        format!("self{}", ".a".repeat(500)),
        format!("true{}", "?true:true".repeat(200)),
        "x".repeat(RULE_BYTES_MAX + 1),
    ] {
        assert!(CelProgram::parse(&long, &["self"]).is_err(), "{}", &long[..40]);
    }
    assert!(CelProgram::parse(&vec!["self.a.b == 1"; 100].join(" && "), &["self"]).is_ok());
}

/// The cost of every rule is bounded.
#[test]
fn the_work_of_a_rule_is_bounded() {
    let list = format!("[{}]", vec!["1"; 100].join(","));
    let each = |inner: &str| format!("{list}.all(x, {inner})");
    assert_eq!(answer(&each(&each(&each(&each("true"))))), Err("over".into()));
    let patterns = format!("{list}.map(x, x + 1).all(x, 'a'.matches('b') == false)");
    assert_eq!(answer(&patterns), Ok(true), "a pattern is read once");
    let numbers = (0..200).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    assert_eq!(answer(&format!("[{numbers}].all(x, !'a'.matches(string(x)))")), Err("over".into()));
    let double = "'xxxxxxxxxx'.map(x, x)";
    assert!(answer(double).is_err());
    let doubled = (0..30).fold("'xxxxxxxxxx'".to_owned(), |inner, _| format!("[{inner}].map(s, s + s)[0]"));
    assert!(answer(&format!("{doubled} == 'x'")).is_err());
    let shared = (0..25).fold("[1]".to_owned(), |inner, _| format!("[{inner}].map(x, [x, x])[0]"));
    assert_eq!(answer(&format!("'%s'.format([{shared}]) == ''")), Err("over".into()), "2^25 texts");
    assert_eq!(answer("isQuantity('170141183460469231.999E')"), Ok(false));
    let replaced = "'x'.replace('', 'xxxxxxxxxx').replace('x', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx').replace('', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx').replace('x', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx').replace('', 'xxxxxxxxxxxxxxxxxxxx') == 'x'";
    assert_eq!(answer(replaced), Err("over".into()));
}

/// A text's places are filled as a Kubernetes API server 1.34 fills them.
#[test]
fn values_are_written_as_kubernetes_writes_them() {
    for (rule, expected) in [
        ("'%f'.format([1234567.891])", "1,234,567.891000"),
        ("'%.2f'.format([2.675])", "2.67"),
        ("'%.0f'.format([0.5])", "0"),
        ("'%e'.format([1234.5])", "1.234500×10⁰³"),
        ("'%.2e'.format([0.00012])", "1.200000×10⁻⁰⁴"),
        ("'%.1e'.format([0.0])", "0.000000×10⁰⁰"),
        ("'%d'.format([1234567])", "1234567"),
        ("'%b'.format([5])", "101"),
        ("'%b'.format([true])", "1"),
        ("'%b'.format([-5])", "-101"),
        ("'%x'.format([255])", "ff"),
        ("'%X'.format([255])", "FF"),
        ("'%x'.format(['hé'])", "68c3a9"),
        ("'%X'.format([b'ab\\xff'])", "6162FF"),
        ("'%o'.format([8])", "10"),
        ("'%x'.format([-255])", "-ff"),
        ("'%s'.format([1.0])", "1"),
        ("'%s'.format([1e21])", "1e+21"),
        ("'%s'.format([1.5e-9])", "1.5e-09"),
        ("'%s'.format([[1, 2]])", "[1, 2]"),
        ("'%s'.format([['a', 'b']])", "[\"a\", \"b\"]"),
        ("'%s'.format([{'a': 1, 'b': [true]}])", "{\"a\":1, \"b\":[true]}"),
        ("'%s'.format([null])", "null"),
        ("'%s'.format([b'abc'])", "abc"),
        ("'%s'.format([duration('1h30m')])", "5400s"),
        ("'%s'.format([duration('1500ms')])", "1.5s"),
        ("'%s'.format([timestamp('2020-01-02T03:04:05Z')])", "2020-01-02T03:04:05Z"),
        ("'%s'.format([timestamp('2020-01-02T03:04:05.5Z')])", "2020-01-02T03:04:05.5Z"),
        ("'%s'.format([int])", "int"),
        ("'%s'.format([true])", "true"),
        ("'%.2d'.format([1])", "1"),
        ("'%.2s'.format(['abc'])", "abc"),
        ("'%%'.format([])", "%"),
        ("string(1.0)", "1"),
        ("string(1e21)", "1e+21"),
        ("string(duration('90m'))", "5400s"),
        ("string(timestamp('2020-01-02T03:04:05.5Z'))", "2020-01-02T03:04:05.5Z"),
        ("string(12345678.9)", "1.23456789e+07"),
        ("string(1234567.0) + ' ' + string(123456.0) + ' ' + string(0.00001)", "1.234567e+06 123456 1e-05"),
        ("'%f'.format([-1234.5])", "-1,234.500000"),
    ] {
        let program = CelProgram::parse(rule, &[]).unwrap();
        let scope = EvalScope { name: "", value: CelValue::Null, outer: None };
        match program.evaluate(&scope, &mut EvalBudget::default()) {
            Ok(CelValue::String(text)) => assert_eq!(&*text, expected, "{rule}"),
            other => panic!("{rule}: {other:?}"),
        }
    }
    for rule in [
        "'%q'.format([1]) == ''",
        "'%5d'.format([1]) == ''",
        "'%'.format([1]) == ''",
        "'%.2'.format([1]) == ''",
        "'%.9999f'.format([1.0]) == ''",
        "'%d'.format(['a']) == ''",
        "'%f'.format([1]) == ''",
        "'%s'.format([]) == ''",
    ] {
        assert!(answer(rule).is_err(), "{rule}");
    }
}

/// A pattern's look at a text is charged by both: a long one costs more than a short one.
#[test]
fn a_look_for_a_pattern_is_charged_by_text_and_pattern() {
    let text = format!("'{}'", "x".repeat(4000));
    let looks = |pattern: &str| format!("[{}].all(i, {text}.matches('{pattern}'))", vec!["1"; 100].join(","));
    assert_eq!(answer(&looks("xx")), Ok(true));
    assert_eq!(answer(&looks(&"x".repeat(200))), Err("over".into()));
    let long = format!("[{}].map(i, {text}).join('').findAll('x').size() > 1", vec!["1"; 20].join(","));
    assert_eq!(answer(&long), Err("over".into()), "80,000 looks at 80,000 bytes");
}

/// APP-20: a text is held against a format by its name, which may come from an object.
#[test]
fn a_text_is_held_against_a_format_by_name() {
    for rule in [
        "!format.dns1123Label().validate('a-b').hasValue()",
        "format.dns1123Label().validate('A').value()[0].startsWith('a lowercase RFC 1123 label')",
        "format.named('uuid').value().validate('x') == optional.of(['does not match the UUID format'])",
        "!format.named('email').hasValue()",
        "format.date() == format.named('date').value()",
    ] {
        assert_eq!(answer(rule), Ok(true), "{rule}");
    }
    for rule in ["format.email().validate('x').hasValue()", "format.date(1) == 1", "format.named() == 1"] {
        assert!(CelProgram::parse(rule, &["self"]).is_err(), "{rule}");
    }
}

/// Comparing bytes, looking for a key and for a time zone cost one step each, however long they took.
#[test]
fn what_takes_long_is_charged_for_it() {
    let hundred = format!("[{}]", vec!["1"; 100].join(","));
    let often = |what: &str| answer(&format!("{hundred}.all(i, {hundred}.all(j, {what}))"));
    let long = "x".repeat(2000);
    assert_eq!(often("b'x' == b'x'"), Ok(true));
    assert_eq!(often(&format!("b'{long}' == b'{long}'")), Err("over".into()));
    assert_eq!(often(&format!("b'{long}' <= b'{long}'")), Err("over".into()));
    assert_eq!(often(&format!("'{long}' in {{'{long}': 1}}")), Err("over".into()));
    assert_eq!(often(&format!("{{'{long}': 1}}['{long}'] == 1")), Err("over".into()));
    assert_eq!(often("timestamp('2020-01-01T00:00:00Z').getHours('UTC') == 0"), Err("over".into()));
}

/// With two names the first is the index or the key.
#[test]
fn a_macro_may_have_two_names() {
    for rule in [
        "self.spec.tags.all(i, t, t == ['a', 'b'][i])",
        "self.spec.labels.exists(k, v, k == 'a' && v == '1')",
        "self.spec.items.existsOne(i, x, x.n == 2 && i == 1)",
        "self.spec.tags.transformList(i, t, t + string(i)) == ['a0', 'b1']",
    ] {
        assert_eq!(answer(rule), Ok(true), "{rule}");
    }
    assert!(CelProgram::parse("self.all(x, y)", &["self"]).is_err());
}

proptest! {
    /// Whatever is in a definition is read or refused, and what is read has an answer or a reason.
    #[test]
    fn any_text_is_read_or_refused(text in "[a-c0-9.()\\[\\]{}<>=!&|?:'\"+*/%,\\\\ -]{0,60}|self[.a-z()'0-9<>= ]{0,40}") {
        if let Ok(program) = CelProgram::parse(&text, &["self", "a", "b"]) {
            let scope = EvalScope { name: "self", value: CelValue::Null, outer: None };
            let _ = program.evaluate(&scope, &mut EvalBudget::default());
        }
    }
}
