//! ConfigMap `config-sugar` of Eventing: where a Broker is created for references to it (X-FEA-13).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::{ConfigMapData, ConfigMapSetting, EVENTING};
use crate::field_errors::FieldErrors;
use crate::selector;

const NAMESPACES: &str = "namespace-selector";
const TRIGGERS: &str = "trigger-selector";

#[derive(Debug, Clone, Default, PartialEq)]
pub struct SugarSettings {
    /// Namespaces that get a Broker `default`; `None`: none.
    pub namespaces: Option<ObjectSelector>,
    /// Triggers whose Broker is made if it is not there; `None`: none.
    pub triggers: Option<ObjectSelector>,
}

/// Selects the objects that a setting applies to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObjectSelector(LabelSelector);

impl ObjectSelector {
    #[must_use]
    pub fn matches(&self, meta: &ObjectMeta) -> bool {
        let labels = self.0.match_labels.clone().unwrap_or_default();
        selector::matches(&labels, self.0.match_expressions.as_deref().unwrap_or_default(), meta)
    }
}

/// Empty: of none; `{}`: of all.
pub(super) fn read_selector(data: &ConfigMapData, key: &str, problems: &mut FieldErrors) -> Option<ObjectSelector> {
    let text = data.get(key)?;
    let mut unknown = Vec::new();
    let yaml = serde_norway::Deserializer::from_str(text);
    let read: Result<Option<LabelSelector>, _> =
        serde_ignored::deserialize(yaml, |path| unknown.push(path.to_string()));
    let at = format!("data[{key}]");
    match read {
        _ if text.trim().is_empty() => None,
        Ok(_) if !unknown.is_empty() => {
            problems.add(at, format!("a label selector has no field {}", unknown.join(", ")));
            None
        }
        Ok(read) => {
            let mut wrong = FieldErrors::default();
            let read = read?;
            selector::validate(read.match_expressions.as_deref().unwrap_or_default(), &at, &mut wrong);
            let is_whole = wrong.list.is_empty();
            problems.list.append(&mut wrong.list);
            is_whole.then_some(ObjectSelector(read))
        }
        Err(why) => {
            problems.add(at, format!("invalid value: {why}: a label selector is needed"));
            None
        }
    }
}

impl ConfigMapSetting for SugarSettings {
    const NAMESPACE: &'static str = EVENTING;
    const NAME: &'static str = "config-sugar";
    const EXAMPLE: &'static str = "\
# Namespaces with these labels get a Broker `default`; {} means all of them.
namespace-selector: \"\"
# The Broker that a Trigger with these labels names is made if it is not there.
trigger-selector: \"\"
";

    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self {
        Self {
            namespaces: read_selector(data, NAMESPACES, problems),
            triggers: read_selector(data, TRIGGERS, problems),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> (Option<ObjectSelector>, usize) {
        let mut problems = FieldErrors::default();
        let sugar = SugarSettings::parse(&ConfigMapData::from([(TRIGGERS.to_owned(), text.to_owned())]), &mut problems);
        assert_eq!(sugar.namespaces, None);
        (sugar.triggers, problems.list.len())
    }

    fn labelled(labels: &[(&str, &str)]) -> ObjectMeta {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }
    }

    /// X-FEA-13
    #[test]
    fn nothing_selects_none_and_an_empty_selector_all() {
        assert_eq!((of(""), of("  \n")), ((None, 0), (None, 0)));
        let (all, _) = of("{}");
        assert!(all.unwrap().matches(&ObjectMeta::default()));
        let (some, _) = of("matchLabels:\n  a: b\nmatchExpressions:\n- {key: c, operator: NotIn, values: [d]}\n");
        let some = some.unwrap();
        assert!(some.matches(&labelled(&[("a", "b"), ("c", "e")])));
        assert!(!some.matches(&labelled(&[("a", "b"), ("c", "d")])));
        assert!(!some.matches(&labelled(&[("a", "x")])));
    }

    #[test]
    fn invalid_selector_is_reported_and_selects_nothing() {
        for bad in ["yes", "[]", "{labels: {a: b}}", "{matchExpressions: [{key: a, operator: Like}]}"] {
            assert_eq!(of(bad), (None, 1), "{bad}");
        }
    }
}
