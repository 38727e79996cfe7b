use super::super::cloudevent::structured;
use super::super::limits::FILTER_STEPS_MAX;
use super::super::record;
use super::*;

pub(super) fn event(envelope: &str) -> Record {
    let event = structured::parse(envelope.as_bytes()).unwrap();
    let mut bytes = record::encode_head(&event, &[], 0);
    bytes.extend(event.data.bytes());
    Record::decode(bytes.into()).unwrap()
}

fn record() -> Record {
    event(
        r#"{"specversion":"1.0","id":"1","source":"/s","type":"a.b","n":5,"b":true,
            "time":"2018-04-05T17:31:00Z","empty":"","datacontenttype":"Text/Plain; charset=utf-8",
            "dataschema":"urn:schema","data":"type"}"#,
    )
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(Box<str>, Box<str>)> {
    pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn sql(text: &str) -> Rule {
    Rule::Sql(cesql::parse(text).unwrap())
}

const PASS: Rule = Rule::Always(Verdict::Pass);
const FAIL: Rule = Rule::Always(Verdict::Fail);
const NONE: Rule = Rule::Always(Verdict::NoFilter);

/// EV-RTE-04, EV-RTE-16, EV-OBJ-59, AMB-44, AMB-45, X-FLT-13.
#[test]
fn every_named_attribute_must_have_exactly_the_value() {
    let cases: [(&[(&str, &str)], bool); 14] = [
        (&[], true),
        (&[("type", "a.b")], true),
        (&[("type", "a.b"), ("source", "/s")], true),
        (&[("type", "a.b"), ("source", "/other")], false),
        (&[("type", "a")], false),
        (&[("type", "A.B")], false),
        (&[("n", "5")], true),
        (&[("n", "05")], false),
        (&[("b", "true")], true),
        (&[("time", "2018-04-05T17:31:00Z")], true),
        (&[("type", "")], true),
        (&[("empty", "")], true),
        (&[("absent", "")], false),
        (&[("subject", "")], false),
    ];
    for (named, expected) in cases {
        assert_eq!(wants(&Filter::Exact(pairs(named)), &record(), &Steps::default()), expected, "{named:?}");
    }
    assert!(wants(&Filter::Everything, &record(), &Steps::default()));
}

/// X-FLT-04, X-FLT-05, X-FLT-12: all keys; a missing attribute fails.
#[test]
fn exact_prefix_and_suffix_look_at_every_key() {
    type Dialect = fn(Vec<(Box<str>, Box<str>)>) -> Rule;
    type Case = (Dialect, &'static [(&'static str, &'static str)], Verdict);
    let cases: [Case; 17] = [
        (Rule::Exact, &[("type", "a.b"), ("n", "5")], Verdict::Pass),
        (Rule::Exact, &[("type", "a.b"), ("n", "6")], Verdict::Fail),
        (Rule::Exact, &[("absent", "x")], Verdict::Fail),
        (Rule::Exact, &[("subject", "x")], Verdict::Fail),
        (Rule::Exact, &[("datamediatype", "text/plain")], Verdict::Pass),
        (Rule::Exact, &[("datamediatype", "Text/Plain")], Verdict::Fail),
        (Rule::Exact, &[("datacontenttype", "Text/Plain; charset=utf-8")], Verdict::Pass),
        (Rule::Exact, &[("schemaurl", "urn:schema"), ("dataschema", "urn:schema")], Verdict::Pass),
        (Rule::Prefix, &[("type", "a."), ("time", "2018-04")], Verdict::Pass),
        (Rule::Prefix, &[("type", "a."), ("time", "2019")], Verdict::Fail),
        (Rule::Prefix, &[("type", "A")], Verdict::Fail),
        (Rule::Prefix, &[("absent", "x")], Verdict::Fail),
        (Rule::Prefix, &[("b", "tr")], Verdict::Pass),
        (Rule::Suffix, &[("type", ".b"), ("time", "Z")], Verdict::Pass),
        (Rule::Suffix, &[("type", ".b"), ("time", "z")], Verdict::Fail),
        (Rule::Suffix, &[("type", "a.b.c")], Verdict::Fail),
        (Rule::Suffix, &[("absent", "x")], Verdict::Fail),
    ];
    for (dialect, named, expected) in cases {
        let rule = dialect(pairs(named));
        assert_eq!(judge(&rule, &record(), &Steps::default()), expected, "{rule:?}");
    }
}

/// X-FLT-06, X-FLT-07, X-FLT-08: which of three verdicts comes of which members.
#[test]
fn all_any_and_not_combine_three_verdicts() {
    let cases = [
        (Rule::All(vec![]), Verdict::NoFilter),
        (Rule::All(vec![PASS, FAIL, PASS]), Verdict::Fail),
        (Rule::All(vec![PASS, NONE]), Verdict::NoFilter),
        (Rule::All(vec![NONE, PASS]), Verdict::Pass),
        (Rule::Any(vec![]), Verdict::NoFilter),
        (Rule::Any(vec![FAIL, PASS, FAIL]), Verdict::Pass),
        (Rule::Any(vec![FAIL, NONE]), Verdict::NoFilter),
        (Rule::Any(vec![NONE, FAIL]), Verdict::Fail),
        (Rule::Not(Box::new(PASS)), Verdict::Fail),
        (Rule::Not(Box::new(FAIL)), Verdict::Pass),
        (Rule::Not(Box::new(NONE)), Verdict::NoFilter),
        (Rule::Not(Box::new(Rule::Any(vec![FAIL, Rule::Not(Box::new(FAIL))]))), Verdict::Fail),
    ];
    for (rule, expected) in cases {
        assert_eq!(judge(&rule, &record(), &Steps::default()), expected, "{rule:?}");
    }
}

/// X-FLT-02, X-FLT-03: the list is an `all`, and only Fail withholds.
#[test]
fn a_list_of_rules_withholds_on_fail_only() {
    for (rules, expected) in [
        (vec![], true),
        (vec![PASS, PASS], true),
        (vec![PASS, FAIL], false),
        (vec![FAIL, PASS], false),
        (vec![PASS, NONE], true),
    ] {
        assert_eq!(
            wants(&Filter::Rules(rules.clone().into()), &record(), &Steps::default()),
            expected,
            "{rules:?}"
        );
    }
}

/// X-FLT-09: `true` passes; false, an error or another type does not, negated or not.
#[test]
fn an_expression_passes_on_true_alone() {
    for (text, expected) in [
        ("type = 'a.b'", Verdict::Pass),
        ("type = 'other'", Verdict::Fail),
        ("absent = 'x'", Verdict::Fail),
        ("NOT (absent = 'x')", Verdict::Fail),
        ("type", Verdict::Fail),
        ("'true'", Verdict::Fail),
        ("1", Verdict::Fail),
    ] {
        assert_eq!(judge(&sql(text), &record(), &Steps::default()), expected, "{text}");
    }
}

/// Every rule and every function of the language keeps to its budget, whatever the filter and the event: no filter
/// costs a core more than [`FILTER_STEPS_MAX`] steps. Steps and not time, so that a slow machine fails nothing.
#[test]
fn every_rule_and_function_keeps_to_its_budget() {
    let long = "ab".repeat(450 << 10);
    let event = event(&format!(
        r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t","subject":"{long}","datacontenttype":"text/{}"}}"#,
        "x".repeat(60 << 10)
    ));
    // As many as fit into one expression.
    let many = |one: &str, by: &str| vec![one; 8000 / (one.len() + by.len())].join(by);
    let texts = [
        many("subject LIKE '%a_b_x'", " OR "),
        many("subject = subject", " AND "),
        many("subject IN (subject, subject, subject)", " AND "),
        many("LENGTH(LOWER(subject)) = 0", " OR "),
        many("UPPER(TRIM(subject)) = 'x'", " OR "),
        many("LEFT(RIGHT(subject, 900000), 800000) = 'x'", " OR "),
        many("SUBSTRING(subject, 2, 800000) = 'x'", " OR "),
        many("CONCAT(subject, subject) = 'x'", " OR "),
        many("INT(subject) = 1", " OR "),
        many("IS_BOOL(subject)", " AND "),
        many("BOOL(STRING(subject))", " OR "),
        many("ABS(LENGTH(subject)) = 1", " OR "),
        many("subject < 1", " OR "),
        many("EXISTS subject", " AND "),
        format!("subject LIKE '%{}b%'", "a_".repeat(4000)),
        format!("subject LIKE '{}x'", "%_a".repeat(2600)),
        format!("subject LIKE '{}%x%'", "_".repeat(8000)),
    ];
    let name: Box<str> = "subject".into();
    let pairs = || vec![(name.clone(), Box::from(&*long)); 64];
    let rules = texts.iter().map(|text| sql(text)).chain([
        Rule::Exact(pairs()),
        Rule::Prefix(pairs()),
        Rule::Suffix(pairs()),
        Rule::Any((0..5_000_000).map(|_| FAIL).collect()),
        Rule::Any(vec![Rule::Exact(vec![("datamediatype".into(), "text/y".into())]); 10_000]),
    ]);
    for (nth, rule) in rules.enumerate() {
        let steps = Steps::default();
        let _ = wants(&Filter::Rules([rule].into()), &event, &steps);
        assert!(steps.used() <= FILTER_STEPS_MAX, "rule {nth}: {} steps", steps.used());
        // A step is at most some bytes of text: what was looked at is bounded as well.
        assert!(steps.used() > 100 || steps.is_over(), "rule {nth} is paid for");
    }
}

/// X-FLT-09: too much work is an error of the filter, and no `not` around it makes a delivery of that.
#[test]
fn filter_over_its_budget_withholds_the_event() {
    let costly = || sql("type LIKE 'a%' AND source = '/s'");
    for rule in [costly(), Rule::Not(Box::new(costly())), Rule::Any([costly(), PASS].into())] {
        let (steps, rules) = (Steps::new(3), Filter::Rules([rule.clone()].into()));
        assert!(!wants(&rules, &record(), &steps) && steps.is_over(), "{rule:?}");
    }
    let steps = Steps::default();
    assert!(wants(&Filter::Rules([costly()].into()), &record(), &steps) && steps.used() < 100);
}
