use codec::cloudevent::structured;
use codec::record;

use super::*;
use crate::limits::FILTER_STEPS_MAX;

pub(super) fn event(envelope: &str) -> EventRecord {
    let event = structured::parse(envelope.as_bytes()).unwrap();
    let mut bytes = record::encode_head(&event, &[], 0);
    bytes.extend(event.data.bytes());
    EventRecord::decode(bytes.into()).unwrap()
}

fn record() -> EventRecord {
    event(
        r#"{"specversion":"1.0","id":"1","source":"/s","type":"a.b","n":5,"b":true,
            "time":"2018-04-05T17:31:00Z","empty":"","datacontenttype":"Text/Plain; charset=utf-8",
            "dataschema":"urn:schema","data":"type"}"#,
    )
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(Box<str>, Box<str>)> {
    pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn sql(text: &str) -> FilterRule {
    FilterRule::Sql(cesql::parse(text).unwrap())
}

const PASS: FilterRule = FilterRule::Always(FilterVerdict::Pass);
const FAIL: FilterRule = FilterRule::Always(FilterVerdict::Fail);
const NONE: FilterRule = FilterRule::Always(FilterVerdict::NoFilter);

/// EV-RTE-04, EV-RTE-16, EV-OBJ-59, AMB-44, AMB-45, X-FLT-13.
#[test]
fn named_attributes_must_match_exactly() {
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
        assert_eq!(matches(&EventFilter::Exact(pairs(named)), &record(), &Steps::default()), expected, "{named:?}");
    }
    assert!(matches(&EventFilter::Everything, &record(), &Steps::default()));
}

/// X-FLT-04, X-FLT-05, X-FLT-12: all keys; a missing attribute fails.
#[test]
fn exact_prefix_and_suffix_check_every_key() {
    type Dialect = fn(Vec<(Box<str>, Box<str>)>) -> FilterRule;
    type FilterCase = (Dialect, &'static [(&'static str, &'static str)], FilterVerdict);
    let cases: [FilterCase; 17] = [
        (FilterRule::Exact, &[("type", "a.b"), ("n", "5")], FilterVerdict::Pass),
        (FilterRule::Exact, &[("type", "a.b"), ("n", "6")], FilterVerdict::Fail),
        (FilterRule::Exact, &[("absent", "x")], FilterVerdict::Fail),
        (FilterRule::Exact, &[("subject", "x")], FilterVerdict::Fail),
        (FilterRule::Exact, &[("datamediatype", "text/plain")], FilterVerdict::Pass),
        (FilterRule::Exact, &[("datamediatype", "Text/Plain")], FilterVerdict::Fail),
        (FilterRule::Exact, &[("datacontenttype", "Text/Plain; charset=utf-8")], FilterVerdict::Pass),
        (FilterRule::Exact, &[("schemaurl", "urn:schema"), ("dataschema", "urn:schema")], FilterVerdict::Pass),
        (FilterRule::Prefix, &[("type", "a."), ("time", "2018-04")], FilterVerdict::Pass),
        (FilterRule::Prefix, &[("type", "a."), ("time", "2019")], FilterVerdict::Fail),
        (FilterRule::Prefix, &[("type", "A")], FilterVerdict::Fail),
        (FilterRule::Prefix, &[("absent", "x")], FilterVerdict::Fail),
        (FilterRule::Prefix, &[("b", "tr")], FilterVerdict::Pass),
        (FilterRule::Suffix, &[("type", ".b"), ("time", "Z")], FilterVerdict::Pass),
        (FilterRule::Suffix, &[("type", ".b"), ("time", "z")], FilterVerdict::Fail),
        (FilterRule::Suffix, &[("type", "a.b.c")], FilterVerdict::Fail),
        (FilterRule::Suffix, &[("absent", "x")], FilterVerdict::Fail),
    ];
    for (dialect, named, expected) in cases {
        let rule = dialect(pairs(named));
        assert_eq!(judge(&rule, &record(), &Steps::default()), expected, "{rule:?}");
    }
}

/// X-FLT-06, X-FLT-07, X-FLT-08: the combination of the three verdicts.
#[test]
fn all_any_and_not_combine_three_verdicts() {
    let cases = [
        (FilterRule::All(vec![]), FilterVerdict::NoFilter),
        (FilterRule::All(vec![PASS, FAIL, PASS]), FilterVerdict::Fail),
        (FilterRule::All(vec![PASS, NONE]), FilterVerdict::NoFilter),
        (FilterRule::All(vec![NONE, PASS]), FilterVerdict::Pass),
        (FilterRule::Any(vec![]), FilterVerdict::NoFilter),
        (FilterRule::Any(vec![FAIL, PASS, FAIL]), FilterVerdict::Pass),
        (FilterRule::Any(vec![FAIL, NONE]), FilterVerdict::NoFilter),
        (FilterRule::Any(vec![NONE, FAIL]), FilterVerdict::Fail),
        (FilterRule::Not(Box::new(PASS)), FilterVerdict::Fail),
        (FilterRule::Not(Box::new(FAIL)), FilterVerdict::Pass),
        (FilterRule::Not(Box::new(NONE)), FilterVerdict::NoFilter),
        (FilterRule::Not(Box::new(FilterRule::Any(vec![FAIL, FilterRule::Not(Box::new(FAIL))]))), FilterVerdict::Fail),
    ];
    for (rule, expected) in cases {
        assert_eq!(judge(&rule, &record(), &Steps::default()), expected, "{rule:?}");
    }
}

/// X-FLT-02, X-FLT-03: the list is an `all`, and only Fail rejects.
#[test]
fn rule_list_rejects_only_on_fail() {
    for (rules, expected) in [
        (vec![], true),
        (vec![PASS, PASS], true),
        (vec![PASS, FAIL], false),
        (vec![FAIL, PASS], false),
        (vec![PASS, NONE], true),
    ] {
        assert_eq!(
            matches(&EventFilter::Rules(rules.clone().into()), &record(), &Steps::default()),
            expected,
            "{rules:?}"
        );
    }
}

/// X-FLT-09: `true` passes; false, an error or another type does not, negated or not.
#[test]
fn expression_passes_only_on_true() {
    for (text, expected) in [
        ("type = 'a.b'", FilterVerdict::Pass),
        ("type = 'other'", FilterVerdict::Fail),
        ("absent = 'x'", FilterVerdict::Fail),
        ("NOT (absent = 'x')", FilterVerdict::Fail),
        ("type", FilterVerdict::Fail),
        ("'true'", FilterVerdict::Fail),
        ("1", FilterVerdict::Fail),
    ] {
        assert_eq!(judge(&sql(text), &record(), &Steps::default()), expected, "{text}");
    }
}

/// Every rule and every function of the language keeps to its budget, whatever the filter and the event: no
/// filter costs a core more than [`FILTER_STEPS_MAX`] steps. Steps and not time, so that a slow machine
/// fails nothing.
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
        FilterRule::Exact(pairs()),
        FilterRule::Prefix(pairs()),
        FilterRule::Suffix(pairs()),
        FilterRule::Any((0..5_000_000).map(|_| FAIL).collect()),
        FilterRule::Any(vec![FilterRule::Exact(vec![("datamediatype".into(), "text/y".into())]); 10_000]),
    ]);
    for (nth, rule) in rules.enumerate() {
        let steps = Steps::default();
        let _ = matches(&EventFilter::Rules([rule].into()), &event, &steps);
        assert!(steps.used() <= FILTER_STEPS_MAX, "rule {nth}: {} steps", steps.used());
        // A step is a bounded number of bytes: the text processed is bounded as well.
        assert!(steps.used() > 100 || steps.is_over(), "rule {nth} is paid for");
    }
}

/// X-FLT-09: an exceeded budget is an error of the filter, and no `not` around it turns that into a
/// delivery.
#[test]
fn filter_over_budget_does_not_match() {
    let costly = || sql("type LIKE 'a%' AND source = '/s'");
    for rule in [costly(), FilterRule::Not(Box::new(costly())), FilterRule::Any([costly(), PASS].into())] {
        let (steps, rules) = (Steps::new(3), EventFilter::Rules([rule.clone()].into()));
        assert!(!matches(&rules, &record(), &steps) && steps.is_over(), "{rule:?}");
    }
    let steps = Steps::default();
    assert!(matches(&EventFilter::Rules([costly()].into()), &record(), &steps) && steps.used() < 100);
}
