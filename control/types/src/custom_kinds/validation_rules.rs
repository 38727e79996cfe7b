//! A definition's own rules (`x-kubernetes-validations`), each evaluated for the part of an object that its schema describes.

use std::collections::HashMap;

use serde_json::Value;

use super::rule_costs::RuleCosts;
use super::structural_schema::{LIST_KEYS, LIST_TYPE, below};
use super::work::{At, ROOT_PATH};
use crate::field_errors::FieldErrors;
use cel::{CelProgram, CelType, CelValue, CompileError, EvalBudget, EvalError, EvalScope, SizeEstimator};

pub(super) const RULES: &str = "x-kubernetes-validations";
/// The variables of a rule.
const NAMES: [&str; 2] = ["self", "oldSelf"];
/// The reasons that a rule may give, as the first words of the message.
const REASONS: [&str; 4] = ["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"];

/// All rules of a schema, read; by their text.
#[derive(Debug, Default)]
pub(super) struct ValidationRules {
    programs: HashMap<String, Result<CelProgram, String>>,
}

/// The context of one evaluation of an object.
struct RuleEvaluation<'a> {
    rules: &'a ValidationRules,
    steps: EvalBudget,
    is_exhausted: bool,
    problems: &'a mut FieldErrors,
}

/// Where a schema is in its definition.
#[derive(Debug, Clone, Copy)]
pub(super) struct RuleLocation<'a> {
    pub(super) path: At<'a>,
    /// It is about whole objects.
    pub(super) is_root: bool,
    /// How often a value of it can be in an object; `None`: as often as a request can carry.
    pub(super) cardinality_max: Option<u64>,
    /// The enclosing list whose items cannot be correlated with the earlier ones.
    pub(super) uncorrelatable_list: Option<At<'a>>,
}

/// Validates the rules that are at a place of a definition.
pub(super) fn validate(schema: &Value, place: RuleLocation<'_>, costs: &mut RuleCosts, problems: &mut FieldErrors) {
    let at = place.path;
    for (index, rule) in schema[RULES].as_array().into_iter().flatten().enumerate() {
        let rules = At::Field(&at, RULES);
        let at = At::Item(&rules, index);
        let written = RuleDeclaration { rule, schema, place };
        match rule["rule"].as_str() {
            Some(text) if !text.trim().is_empty() => {
                match written.compile(text, &CelType::Bool, &costs.sizes) {
                    Ok((cost, compares)) => {
                        let times = place.cardinality_max;
                        let times = times.unwrap_or_else(|| costs.sizes.max_in_request(schema, place.is_root));
                        costs.add(At::Field(&at, "rule"), "rule", cost.saturating_mul(times), problems);
                        written.check_transition_rule(compares, at, problems);
                    }
                    Err(why) => {
                        let why = match why {
                            RuleError::Compile(why) => format!("compilation failed: ERROR: {why}"),
                            RuleError::NotBool => "cel expression must evaluate to a bool".into(),
                        };
                        problems.add(format!("{at}.rule"), format!("Invalid value: {}: {why}", rule_text(rule)));
                    }
                }
                let reported = |field: &str| rule[field].as_str().is_some_and(|text| !text.is_empty());
                if text.contains(['\n', '\r']) && !reported("message") && !reported("messageExpression") {
                    let why = "Required value: message must be specified if rule contains line breaks";
                    problems.add(format!("{at}.message"), why);
                }
            }
            _ => problems.add(format!("{at}.rule"), "Required value: rule is not specified"),
        }
        if let Some(text) = rule["messageExpression"].as_str().filter(|text| !text.is_empty()) {
            let at = At::Field(&at, "messageExpression");
            match written.compile(text, &CelType::String, &costs.sizes) {
                Ok((cost, _)) => costs.add(at, "messageExpression", cost, problems),
                Err(why) => {
                    let why = match why {
                        RuleError::Compile(why) => {
                            format!("messageExpression compilation failed: ERROR: {why}")
                        }
                        RuleError::NotBool => "messageExpression must evaluate to a string".into(),
                    };
                    problems.add(at, format!("Invalid value: {}: {why}", rule_text(rule)));
                }
            }
        }
        if let Some(reason) = rule["reason"].as_str()
            && !REASONS.contains(&reason)
        {
            let all = REASONS.map(|one| format!("{one:?}")).join(", ");
            problems.add(format!("{at}.reason"), format!("Unsupported value: {reason:?}: supported values: {all}"));
        }
    }
}

/// A rule of a definition, and where it stands.
struct RuleDeclaration<'a> {
    rule: &'a Value,
    schema: &'a Value,
    place: RuleLocation<'a>,
}

/// Why a text is no rule.
enum RuleError {
    Compile(String),
    /// It gives a value of the wrong kind.
    NotBool,
}

impl RuleDeclaration<'_> {
    /// The maximum cost of the text, and whether it reads the previous object.
    fn compile(&self, text: &str, wanted: &CelType<'_>, sizes: &SizeEstimator) -> Result<(u64, bool), RuleError> {
        let reported = |why: CompileError| RuleError::Compile(why.render(text));
        let program = CelProgram::parse(text, &NAMES).map_err(reported)?;
        let whole = self.place.is_root;
        let this = CelType::of(self.schema, whole).unwrap_or(CelType::Dyn);
        let optional = self.rule["optionalOldSelf"] == true;
        let was = if optional { CelType::Optional(this.clone().into()) } else { this.clone() };
        let (found, cost) = program.check(&this, was, (self.schema, whole), sizes).map_err(reported)?;
        if found.is_assignable_to(wanted) { Ok((cost, program.uses_old_self)) } else { Err(RuleError::NotBool) }
    }

    /// A rule about a change needs to know what was there before.
    fn check_transition_rule(&self, compares: bool, at: At<'_>, problems: &mut FieldErrors) {
        let optional = &self.rule["optionalOldSelf"];
        if let Some(list) = self.place.uncorrelatable_list.filter(|_| compares) {
            let why = format!(
                "Invalid value: {}: oldSelf cannot be used on the uncorrelatable portion of the schema within {list}",
                self.rule["rule"]
            );
            problems.add(format!("{at}.rule"), why);
        } else if !compares && optional.is_boolean() {
            let why = format!("Invalid value: {optional}: may not be set if oldSelf is not used in rule");
            problems.add(format!("{at}.optionalOldSelf"), why);
        }
    }
}

/// A rule as Kubernetes names it in its complaints.
fn rule_text(rule: &Value) -> String {
    let text = |field: &str| rule[field].as_str().unwrap_or("").into();
    let fields: [(&str, Value); 6] = [
        ("Rule", text("rule")),
        ("Message", text("message")),
        ("MessageExpression", text("messageExpression")),
        ("Reason", rule["reason"].clone()),
        ("FieldPath", text("fieldPath")),
        ("OptionalOldSelf", rule["optionalOldSelf"].clone()),
    ];
    let fields = fields.map(|(name, value)| format!("{name:?}:{value}"));
    let shown = format!("{{{}}}", fields.join(","));
    [("&", "\\u0026"), ("<", "\\u003c"), (">", "\\u003e")]
        .iter()
        .fold(shown, |shown, (plain, escaped)| shown.replace(plain, escaped))
}

impl ValidationRules {
    pub(super) fn of(schema: &Value) -> Self {
        let mut rules = Self::default();
        rules.collect(schema);
        rules
    }

    fn collect(&mut self, schema: &Value) {
        for rule in schema[RULES].as_array().into_iter().flatten() {
            for text in ["rule", "messageExpression"].iter().filter_map(|name| rule[name].as_str()) {
                self.programs
                    .entry(text.to_owned())
                    .or_insert_with(|| CelProgram::parse(text, &NAMES).map_err(|why| why.render(text)));
            }
        }
        for inner in schema["properties"].as_object().into_iter().flat_map(|fields| fields.values()) {
            self.collect(inner);
        }
        for name in ["items", "additionalProperties"] {
            if schema[name].is_object() {
                self.collect(&schema[name]);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// Reports the rules that an object breaks. Unchanged values are accepted, as in Kubernetes.
    pub(super) fn evaluate(&self, object: &Value, before: Option<&Value>, schema: &Value, problems: &mut FieldErrors) {
        if !self.is_empty() {
            let mut look = RuleEvaluation { rules: self, steps: EvalBudget::default(), is_exhausted: false, problems };
            look.visit(object, before, schema, At::Root(""));
        }
    }
}

impl RuleEvaluation<'_> {
    fn visit(&mut self, value: &Value, before: Option<&Value>, schema: &Value, at: At<'_>) {
        if self.is_exhausted || value.is_null() || before == Some(value) || self.problems.is_full() {
            return;
        }
        for rule in schema[RULES].as_array().into_iter().flatten() {
            self.evaluate_rule(rule, value, before, schema, at);
        }
        match value {
            Value::Object(fields) => {
                for (name, inner) in fields {
                    let was = before.and_then(|before| before.get(name));
                    self.visit(inner, was, below(schema, name), At::Field(&at, name));
                }
            }
            Value::Array(items) => {
                let known = PreviousItems::of(before, schema);
                for (index, item) in items.iter().enumerate() {
                    let was = known.as_ref().and_then(|known| known.find(item));
                    self.visit(item, was, &schema["items"], At::Item(&at, index));
                }
            }
            _ => {}
        }
    }

    fn evaluate_rule(&mut self, rule: &Value, value: &Value, before: Option<&Value>, schema: &Value, at: At<'_>) {
        let text = rule["rule"].as_str().unwrap_or("");
        let kind = schema["type"].as_str().unwrap_or("object");
        let is_root = matches!(at, At::Root(_));
        let field = || match rule["fieldPath"].as_str() {
            Some(path) => format!("{at}{path}").trim_start_matches('.').to_owned(),
            None if is_root => ROOT_PATH.to_owned(),
            None => String::from(at),
        };
        let rules = self.rules;
        let program = match rules.programs.get(text) {
            Some(Ok(program)) => program,
            Some(Err(why)) => {
                let why = format!("Invalid value: {kind:?}: rule compile error: {why}");
                return self.problems.add(field(), why);
            }
            None => return,
        };
        let optional = rule["optionalOldSelf"] == true;
        if program.uses_old_self && before.is_none() && !optional {
            return; // a transition rule, and nothing changed
        }
        let sides =
            [value, before.unwrap_or(&Value::Null)].map(|side| CelValue::of(side, schema, is_root, &mut self.steps));
        let [this, was] = match sides {
            [Ok(this), Ok(was)] => [this, was],
            _ => return self.stop(field(), kind),
        };
        let was = if optional { CelValue::Optional(before.map(|_| was.into())) } else { was };
        let old = EvalScope { name: "oldSelf", value: was, outer: None };
        let scope = EvalScope { name: "self", value: this, outer: Some(&old) };
        match program.evaluate(&scope, &mut self.steps) {
            Ok(CelValue::Bool(true)) => {}
            Ok(CelValue::Bool(false)) => {
                let reported = self.message(rule, &scope);
                self.problems.add(field(), with_reason(rule["reason"].as_str(), kind, &reported));
            }
            Ok(_) => {
                let why = format!("Invalid value: {kind:?}: neither true nor false evaluating rule: {text}");
                self.problems.add(field(), why);
            }
            Err(EvalError::BudgetExceeded) => self.stop(field(), kind),
            Err(EvalError::Mismatch(why)) => {
                let reported = rule["message"].as_str().unwrap_or(text);
                self.problems.add(field(), format!("Invalid value: {kind:?}: {why} evaluating rule: {reported}"));
            }
        }
    }

    fn stop(&mut self, field: String, kind: &str) {
        self.is_exhausted = true;
        let why = "validation failed due to running out of cost budget, no further validation rules will be run";
        self.problems.add(field, format!("Invalid value: {kind:?}: {why}"));
    }

    /// The message of a rule for an object that breaks it.
    fn message(&mut self, rule: &Value, scope: &EvalScope<'_>) -> String {
        let rules = self.rules;
        if let Some(text) = rule["messageExpression"].as_str()
            && let Some(Ok(program)) = rules.programs.get(text)
            && let Ok(CelValue::String(reported)) = program.evaluate(scope, &mut self.steps)
            && !reported.trim().is_empty()
        {
            return reported.to_string();
        }
        match rule["message"].as_str().filter(|reported| !reported.is_empty()) {
            Some(reported) => reported.to_owned(),
            None => format!("failed rule: {}", rule["rule"].as_str().unwrap_or("").trim()),
        }
    }
}

fn with_reason(reason: Option<&str>, kind: &str, reported: &str) -> String {
    match reason {
        Some("FieldValueForbidden") => format!("Forbidden: {reported}"),
        Some("FieldValueRequired") => format!("Required value: {reported}"),
        Some("FieldValueDuplicate") => format!("Duplicate value: {kind:?}"),
        _ => format!("Invalid value: {kind:?}: {reported}"),
    }
}

/// The previous items of a list, by their keys.
struct PreviousItems<'a> {
    keys: Vec<&'a str>,
    items: HashMap<String, &'a Value>,
}

impl<'a> PreviousItems<'a> {
    /// `None`: the items have no keys, so that none is the same as another.
    fn of(before: Option<&'a Value>, schema: &'a Value) -> Option<Self> {
        if schema[LIST_TYPE] != "map" {
            return None;
        }
        let keys: Vec<&str> = schema[LIST_KEYS].as_array()?.iter().filter_map(Value::as_str).collect();
        let items = before?.as_array()?.iter().map(|item| (item_key(&keys, item), item)).collect();
        Some(Self { keys, items })
    }

    fn find(&self, item: &Value) -> Option<&'a Value> {
        self.items.get(&item_key(&self.keys, item)).copied()
    }
}

fn item_key(keys: &[&str], item: &Value) -> String {
    keys.iter().map(|key| item[*key].to_string()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(schema: &Value, object: &Value, before: Option<&Value>) -> Vec<(String, String)> {
        let mut problems = FieldErrors::default();
        ValidationRules::of(schema).evaluate(object, before, schema, &mut problems);
        problems.list.into_iter().map(|one| (one.field, one.message)).collect()
    }

    fn schema() -> Value {
        json!({ "type": "object",
            RULES: [{ "rule": "self.metadata.name != 'root'", "message": "not this name" }],
            "properties": { "spec": { "type": "object",
                RULES: [
                    { "rule": "self.min <= self.max", "messageExpression": "'min %d is above max %d'.format([self.min, self.max])" },
                    { "rule": "!has(self.color) || self.color != 'green'", "reason": "FieldValueForbidden",
                      "message": "no green", "fieldPath": ".color" },
                ],
                "properties": {
                    "min": { "type": "integer" }, "max": { "type": "integer" },
                    "color": { "type": "string", RULES: [{ "rule": "self == oldSelf", "message": "immutable" }] },
                    "parts": { "type": "array", LIST_TYPE: "map", LIST_KEYS: ["name"], "items": { "type": "object",
                        RULES: [{ "rule": "self.n >= oldSelf.n" }],
                        "properties": { "name": { "type": "string" }, "n": { "type": "integer" } } } },
                } } } })
    }

    /// APP-20: a definition's own rules are held against its objects.
    #[test]
    fn broken_rule_is_reported_at_its_path_with_its_message() {
        let object = |spec: Value| json!({ "metadata": { "name": "a" }, "spec": spec });
        let good = object(json!({ "min": 1, "max": 2, "color": "red" }));
        assert_eq!(found(&schema(), &good, None), []);
        for (spec, field, why) in [
            (json!({ "min": 3, "max": 2 }), "spec", r#"Invalid value: "object": min 3 is above max 2"#),
            (json!({ "min": 1, "max": 2, "color": "green" }), "spec.color", "Forbidden: no green"),
            (
                json!({ "min": 1 }),
                "spec",
                r#"Invalid value: "object": no such key: max evaluating rule: self.min <= self.max"#,
            ),
        ] {
            assert_eq!(found(&schema(), &object(spec), None), [(field.to_owned(), why.to_owned())]);
        }
        let root = json!({ "metadata": { "name": "root" } });
        assert_eq!(found(&schema(), &root, None)[0].0, ROOT_PATH);
    }

    /// APP-20: rules about a change speak of changes alone, and what was wrong before may stay.
    #[test]
    fn what_was_there_before_is_compared_and_left_in_peace() {
        let object = |spec: Value| json!({ "metadata": { "name": "a" }, "spec": spec });
        let before = object(
            json!({ "min": 1, "max": 2, "color": "red", "parts": [{ "name": "a", "n": 5 }, { "name": "b", "n": 1 }] }),
        );
        let mut after = before.clone();
        after["spec"]["parts"] = json!([{ "name": "b", "n": 2 }, { "name": "c", "n": 0 }]);
        assert_eq!(found(&schema(), &after, Some(&before)), []);
        after["spec"]["parts"] = json!([{ "name": "a", "n": 4 }]);
        after["spec"]["color"] = "blue".into();
        let reported = found(&schema(), &after, Some(&before));
        assert_eq!(reported[0], ("spec.color".into(), r#"Invalid value: "string": immutable"#.into()));
        assert_eq!(reported[1].1, r#"Invalid value: "object": failed rule: self.n >= oldSelf.n"#);
        let wrong = object(json!({ "min": 9, "max": 2 }));
        let mut other = wrong.clone();
        other["metadata"]["labels"] = json!({ "x": "y" });
        assert_eq!(found(&schema(), &other, Some(&wrong)), []);
    }

    #[test]
    fn a_rule_that_costs_too_much_stops_them_all() {
        let schema = json!({ "type": "object", "properties": { "list": { "type": "array",
            RULES: [{ "rule": "self.all(a, self.all(b, self.all(c, a + b + c > 0)))" }], "items": { "type": "integer" } } } });
        let object = json!({ "list": vec![1; 200] });
        let reported = found(&schema, &object, None);
        assert!(reported.len() == 1 && reported[0].1.contains("cost budget"), "{reported:?}");
    }

    #[test]
    fn a_definition_with_a_rule_that_means_nothing_is_refused_there() {
        for (rule, field) in [
            (json!({ "rule": "self ==" }), "s.x-kubernetes-validations[0].rule"),
            (json!({ "rule": " " }), "s.x-kubernetes-validations[0].rule"),
            (
                json!({ "rule": "true", "messageExpression": "frob()" }),
                "s.x-kubernetes-validations[0].messageExpression",
            ),
            (json!({ "rule": "true", "reason": "Because" }), "s.x-kubernetes-validations[0].reason"),
        ] {
            let mut problems = FieldErrors::default();
            let place = RuleLocation {
                path: At::Root("s"),
                is_root: false,
                cardinality_max: Some(1),
                uncorrelatable_list: None,
            };
            validate(&json!({ "type": "object", RULES: [rule] }), place, &mut RuleCosts::default(), &mut problems);
            assert_eq!(problems.list.len(), 1);
            assert_eq!(problems.list[0].field, field);
        }
    }
}
