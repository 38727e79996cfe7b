//! JSONPath in printer columns, as kubectl and definitions use it: `.a.b`, `.a['b\.c']`, `[0]`, `[-1:]`,
//! `[0,2]`, `[*]`, `..a` and `[?(@.type=="Ready")]`.
//!
//! Paths come from the registry, and for custom kinds from their definitions. What Kubernetes treats as an error in
//! an object (an index out of range, a filter on a value that is not a list, a text compared with a number) leaves the cell empty.

mod parse;

use std::cmp::Ordering;

use serde_json::Value;

/// Values that one row's paths may visit, and bytes that its cells may show, in addition to one for each byte of its object:
/// `..` again and again could take forever, and many columns of the whole object be larger than memory. What a path has
/// not found by then, it does not find.
const BUDGET_MIN: usize = 1_000;

/// One path, understood.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct JsonPath(Vec<PathStep>);

#[derive(Debug, Clone, PartialEq)]
enum PathStep {
    Field(String),
    /// Elements of a list from, to and how far apart.
    Slice(PathSlice),
    /// All that is in a map or a list.
    Wildcard,
    /// The value itself and all below it that has anything in it.
    RecursiveDescent,
    /// The results of all of these.
    Union(Vec<JsonPath>),
    Filter(Box<PathFilter>),
    Literal(Value),
    /// A word that means nothing here.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathSlice {
    One(i64),
    Range { from: Option<i64>, to: Option<i64>, step: Option<i64> },
}

#[derive(Debug, Clone, PartialEq)]
struct PathFilter {
    lhs: JsonPath,
    /// `None`: what is found on the left is enough.
    rhs: Option<(PathComparison, JsonPath)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathComparison {
    LessThan,
    LessOrEqual,
    Equal,
    NotEqual,
    GreaterOrEqual,
    GreaterThan,
    Unknown,
}

/// The remaining budget of a row's paths.
#[derive(Debug)]
pub(super) struct PathBudget(usize);

/// The object is not such that the path means anything, or too large for it.
#[derive(Debug, PartialEq, Eq)]
struct PathError;

type PathMatches<'a> = Result<Vec<&'a Value>, PathError>;

impl PathBudget {
    /// For the row of an object whose JSON has so many bytes.
    pub(super) fn of(object_bytes: usize) -> Self {
        Self(BUDGET_MIN.saturating_add(object_bytes))
    }

    /// Whether a cell may show so much.
    pub(super) fn take_output(&mut self, bytes: usize) -> bool {
        self.spend(bytes).is_ok()
    }

    fn spend(&mut self, values: usize) -> Result<(), PathError> {
        self.0 = self.0.checked_sub(values).ok_or(PathError)?;
        Ok(())
    }
}

impl JsonPath {
    /// `None` if it is no path.
    pub(super) fn parse(text: &str) -> Option<Self> {
        parse::path(text)
    }

    /// Everything in `value` that the path leads to.
    pub(super) fn find<'a>(&'a self, value: &'a Value, budget: &mut PathBudget) -> Vec<&'a Value> {
        self.evaluate(value, budget).unwrap_or_default()
    }

    fn evaluate<'a>(&'a self, value: &'a Value, budget: &mut PathBudget) -> PathMatches<'a> {
        let mut found = vec![value];
        for step in &self.0 {
            found = step.apply(&found, budget)?;
            budget.spend(found.len() + 1)?;
        }
        Ok(found)
    }
}

impl PathStep {
    fn apply<'a>(&'a self, values: &[&'a Value], budget: &mut PathBudget) -> PathMatches<'a> {
        let there = || values.iter().copied().filter(|value| !value.is_null());
        let mut found = Vec::new();
        match self {
            Self::Field(name) => found.extend(there().filter_map(|value| value.as_object()?.get(name))),
            Self::Slice(slice) => {
                for value in there() {
                    found.extend(slice.select(value.as_array().ok_or(PathError)?)?);
                }
            }
            Self::Wildcard => there().for_each(|value| found.extend(children(value))),
            Self::RecursiveDescent => {
                for value in there() {
                    descendants(value, &mut found, budget)?;
                }
            }
            Self::Union(paths) => {
                for path in paths {
                    for value in values {
                        found.extend(path.evaluate(value, budget)?);
                    }
                }
            }
            Self::Filter(filter) => {
                for value in values {
                    filter.select(value.as_array().ok_or(PathError)?, &mut found, budget)?;
                }
            }
            Self::Literal(literal) => found.push(literal),
            Self::Unknown => return Err(PathError),
        }
        Ok(found)
    }
}

fn children(value: &Value) -> impl Iterator<Item = &Value> {
    let (list, map) = (value.as_array(), value.as_object());
    list.into_iter().flatten().chain(map.into_iter().flat_map(serde_json::Map::values))
}

/// As deep as an object may nest.
fn descendants<'a>(value: &'a Value, found: &mut Vec<&'a Value>, budget: &mut PathBudget) -> Result<(), PathError> {
    budget.spend(1)?;
    if children(value).next().is_some() {
        found.push(value);
    }
    children(value).try_for_each(|value| descendants(value, found, budget))
}

impl PathSlice {
    fn select(self, list: &[Value]) -> Result<impl Iterator<Item = &Value>, PathError> {
        let length = i64::try_from(list.len()).map_err(|_| PathError)?;
        let from_end = |at: i64| if at < 0 { at + length } else { at };
        let (from, to, step) = match self {
            Self::One(at) => (from_end(at), from_end(at).saturating_add(1), 1),
            Self::Range { from, to, step } => {
                (from_end(from.unwrap_or(0)), from_end(to.unwrap_or(length)), step.unwrap_or(1))
            }
        };
        let known = (0..=length).contains(&from) && (0..=length).contains(&to) && from <= to;
        let step = usize::try_from(step).ok().filter(|step| *step > 0).ok_or(PathError)?;
        let range = if known { from as usize..to as usize } else { return Err(PathError) };
        Ok(list[range].iter().step_by(step))
    }
}

impl PathFilter {
    fn select<'a>(
        &'a self,
        list: &'a [Value],
        found: &mut Vec<&'a Value>,
        budget: &mut PathBudget,
    ) -> Result<(), PathError> {
        for element in list {
            budget.spend(1)?;
            let left = self.lhs.evaluate(element, budget);
            let Some((comparison, right)) = &self.rhs else {
                if left.is_ok_and(|left| !left.is_empty()) {
                    found.push(element);
                }
                continue;
            };
            let (left, right) = (left?, right.evaluate(element, budget)?);
            match (left.as_slice(), right.as_slice()) {
                ([], _) | (_, []) => {}
                ([left], [right]) if comparison.compare(left, right)? => found.push(element),
                ([_], [_]) => {}
                _ => return Err(PathError),
            }
        }
        Ok(())
    }
}

impl PathComparison {
    /// Only what is of one type is compared, and only texts and numbers have an order.
    fn compare(self, left: &Value, right: &Value) -> Result<bool, PathError> {
        let order = match (left, right) {
            (Value::String(left), Value::String(right)) => left.cmp(right),
            (Value::Number(left), Value::Number(right)) => match (left.as_i64(), right.as_i64()) {
                (Some(left), Some(right)) => left.cmp(&right),
                (None, None) => {
                    let (left, right) = (left.as_f64().ok_or(PathError)?, right.as_f64().ok_or(PathError)?);
                    left.partial_cmp(&right).ok_or(PathError)?
                }
                _ => return Err(PathError),
            },
            (Value::Bool(left), Value::Bool(right)) if matches!(self, Self::Equal | Self::NotEqual) => left.cmp(right),
            _ => return Err(PathError),
        };
        match self {
            Self::LessThan => Ok(order == Ordering::Less),
            Self::LessOrEqual => Ok(order != Ordering::Greater),
            Self::Equal => Ok(order == Ordering::Equal),
            Self::NotEqual => Ok(order != Ordering::Equal),
            Self::GreaterOrEqual => Ok(order != Ordering::Less),
            Self::GreaterThan => Ok(order == Ordering::Greater),
            Self::Unknown => Err(PathError),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;
    use serde_json::json;

    use super::*;

    const WORDS: [&str; 28] = [
        ".a",
        ".b",
        "..",
        "[",
        "]",
        "[?(",
        ")]",
        "@",
        "==",
        "!=",
        "<",
        "'",
        "\"",
        "*",
        ":",
        "-1",
        "0",
        "9223372036854775807",
        "-9223372036854775808",
        ",",
        "\\",
        " ",
        "}",
        "ü",
        "true",
        "1.5",
        "[*]",
        "[0]",
    ];

    fn find(path: &str, value: &Value) -> Option<Vec<Value>> {
        let path = JsonPath::parse(path)?;
        let found = path.evaluate(value, &mut PathBudget::of(value.to_string().len())).ok()?;
        Some(found.into_iter().cloned().collect())
    }

    #[test]
    fn a_path_finds_fields_elements_and_conditions() {
        let object = json!({
            "metadata": { "labels": { "a.b/c": "x" } },
            "spec": { "n": 2, "list": [1, 2, 3, 4], "big": 1.5, "on": true, "none": null, "sizes": [{ "n": 1.5 }] },
            "status": { "conditions": [
                { "type": "Ready", "status": "True", "n": 1, "deep": { "x": ["p"] } },
                { "type": "Other", "status": "False", "n": 5 },
            ] },
        });
        for (path, expected) in [
            (".metadata.labels['a\\.b/c']", json!(["x"])),
            (".metadata.labels.a\\.b/c", json!(["x"])),
            (".metadata.labels['a.b/c']", json!([])),
            (r#".status.conditions[?(@.type=="Ready")].status"#, json!(["True"])),
            (".status.conditions[?(@.type=='Other')].status", json!(["False"])),
            (r#".status.conditions[?(@.type != "Ready")].status"#, json!(["False"])),
            (".status.conditions[?(@.n>1)].type", json!(["Other"])),
            (".status.conditions[?(@.n<=1)].type", json!(["Ready"])),
            (".status.conditions[?(@.deep.x[0]=='p')].type", json!(["Ready"])),
            (".status.conditions[?(@.deep)].type", json!(["Ready"])),
            (".spec.sizes[?(@.n>=1.5)].n", json!([1.5])),
            (".status.conditions[1].type", json!(["Other"])),
            (".status.conditions[-1].type", json!(["Other"])),
            (".status.conditions[*].type", json!(["Ready", "Other"])),
            (".spec.list[1:3]", json!([2, 3])),
            (".spec.list[-2:]", json!([3, 4])),
            (".spec.list[:2]", json!([1, 2])),
            (".spec.list[::2]", json!([1, 3])),
            (".spec.list[0,3]", json!([1, 4])),
            (".spec['n','big']", json!([2, 1.5])),
            ("..type", json!(["Ready", "Other"])),
            (".status.conditions[0].deep.*", json!([["p"]])),
            (".spec.none.more", json!([])),
            (".status.missing.deeper", json!([])),
            (".status.missing[0]", json!([])),
            (r#".status.conditions[?(@.type=="None")].status"#, json!([])),
            (".spec.n|.spec.big", json!([])),
        ] {
            assert_eq!(find(path, &object), Some(expected.as_array().unwrap().clone()), "{path}");
        }
    }

    #[test]
    fn what_an_object_is_not_made_for_leaves_the_path_without_an_answer() {
        let object = json!({ "list": [{ "n": 1, "t": "x" }, { "n": 2 }], "text": "t", "map": {} });
        for path in [
            ".list[2]",
            ".list[-3]",
            ".list[0:9]",
            ".list[1:0]",
            ".list[::0]",
            ".text[0]",
            ".map[?(@.a)]",
            ".list[?(@.n=='1')]",
            ".list[?(@.n==1.5)]",
            ".list[?(@.n=true)]",
            ".list range",
        ] {
            assert!(JsonPath::parse(path).is_some(), "{path}");
            assert_eq!(find(path, &object), None, "{path}");
        }
    }

    #[test]
    fn what_is_no_path_is_none() {
        for path in
            [".a[", ".a[x]", ".a[?(@.b=c)", ".a[?(@.b=='c)]", "....a", ".a['b]", ".a (", ".a[1-]", ".a[?(@.b==)]"]
        {
            assert_eq!(JsonPath::parse(path), None, "{path}");
        }
        // Nested filters are read as deep as an object may nest, and no stack runs out.
        assert_eq!(JsonPath::parse(&".a[?(".repeat(10_000)), None);
        assert_eq!(JsonPath::parse(&format!(".a{}{}", "[?(@.a".repeat(10_000), ")]".repeat(10_000))), None);
    }

    proptest! {
        /// Whatever is written, and whatever it is held against.
        #[test]
        fn any_text_is_a_path_or_none(words in vec(select(WORDS.to_vec()), 0..24), plain in ".{0,12}") {
            let object = json!({ "a": [{ "b": 1 }, { "b": "x", "a": [1.5, true, null] }], "b": { "a": {} } });
            for text in [words.concat(), format!(".{plain}"), format!(".a[?({})]", words.concat())] {
                let found = find(&text, &object).unwrap_or_default();
                prop_assert!(found.len() <= BUDGET_MIN + object.to_string().len());
            }
        }
    }

    /// Each `..` multiplies what the one before it found.
    #[test]
    fn a_path_that_would_never_end_finds_nothing() {
        let deep = (0..100).fold(json!({}), |inner, _| json!({ "a": inner }));
        assert_eq!(find("..a..a..a..a..a..a", &deep), None);
        assert_eq!(find("..a", &deep).unwrap().len(), 100);
        let wide = json!({ "a": vec![1; 1000] });
        assert_eq!(find(&format!(".a[{}]", ["*"; 100].join(",")), &wide), None);
    }
}
