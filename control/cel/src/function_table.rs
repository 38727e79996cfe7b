//! Names of the functions and methods that a rule may call, with their arity.

use crate::formats;

/// Functions by name, with how few and how many arguments they take.
const FUNCTIONS: [(&str, usize, usize); 25] = [
    ("bool", 1, 1),
    ("bytes", 1, 1),
    ("cidr", 1, 1),
    ("double", 1, 1),
    ("duration", 1, 1),
    ("dyn", 1, 1),
    ("int", 1, 1),
    ("ip", 1, 1),
    ("isCIDR", 1, 1),
    ("isIP", 1, 1),
    ("isQuantity", 1, 1),
    ("isURL", 1, 1),
    ("matches", 2, 2),
    ("optional.none", 0, 0),
    ("optional.of", 1, 1),
    ("quantity", 1, 1),
    ("sets.contains", 2, 2),
    ("sets.equivalent", 2, 2),
    ("sets.intersects", 2, 2),
    ("size", 1, 1),
    ("string", 1, 1),
    ("timestamp", 1, 1),
    ("type", 1, 1),
    ("uint", 1, 1),
    ("url", 1, 1),
];

/// ... and those that are called on a value.
const METHODS: [(&str, usize, usize); 62] = [
    ("add", 1, 1),
    ("charAt", 1, 1),
    ("compareTo", 1, 1),
    ("contains", 1, 1),
    ("endsWith", 1, 1),
    ("find", 1, 1),
    ("findAll", 1, 2),
    ("format", 1, 1),
    ("getDate", 0, 1),
    ("getDayOfMonth", 0, 1),
    ("getDayOfWeek", 0, 1),
    ("getDayOfYear", 0, 1),
    ("getFullYear", 0, 1),
    ("getHours", 0, 1),
    ("getMilliseconds", 0, 1),
    ("getMinutes", 0, 1),
    ("getMonth", 0, 1),
    ("getSeconds", 0, 1),
    ("hasValue", 0, 0),
    ("indexOf", 1, 2),
    ("isGreaterThan", 1, 1),
    ("isLessThan", 1, 1),
    ("isSorted", 0, 0),
    ("join", 0, 1),
    ("lastIndexOf", 1, 1),
    ("lowerAscii", 0, 0),
    ("matches", 1, 1),
    ("max", 0, 0),
    ("min", 0, 0),
    ("or", 1, 1),
    ("orValue", 1, 1),
    ("replace", 2, 3),
    ("reverse", 0, 0),
    ("sign", 0, 0),
    ("size", 0, 0),
    ("split", 1, 2),
    ("startsWith", 1, 1),
    ("sub", 1, 1),
    ("substring", 1, 2),
    ("sum", 0, 0),
    ("asInteger", 0, 0),
    ("containsCIDR", 1, 1),
    ("containsIP", 1, 1),
    ("family", 0, 0),
    ("getEscapedPath", 0, 0),
    ("getHost", 0, 0),
    ("getHostname", 0, 0),
    ("getPort", 0, 0),
    ("getScheme", 0, 0),
    ("ip", 0, 0),
    ("isGlobalUnicast", 0, 0),
    ("isLinkLocalMulticast", 0, 0),
    ("isLinkLocalUnicast", 0, 0),
    ("isLoopback", 0, 0),
    ("isUnspecified", 0, 0),
    ("masked", 0, 0),
    ("prefixLength", 0, 0),
    ("isInteger", 0, 0),
    ("trim", 0, 0),
    ("upperAscii", 0, 0),
    ("validate", 1, 1),
    ("value", 0, 0),
];

fn is_in(table: &[(&str, usize, usize)], name: &str, given: usize) -> bool {
    table.iter().any(|(known, least, most)| *known == name && (*least..=*most).contains(&given))
}

pub(crate) fn is_function_name(name: &str) -> bool {
    FUNCTIONS.iter().any(|(known, _, _)| *known == name) || formats::argument_count(name).is_some()
}

pub(crate) fn is_method_name(name: &str) -> bool {
    METHODS.iter().any(|(known, _, _)| *known == name)
}

pub(crate) fn is_function(name: &str, given: usize) -> bool {
    is_in(&FUNCTIONS, name, given) || formats::argument_count(name) == Some(given)
}

pub(crate) fn is_method(name: &str, given: usize) -> bool {
    is_in(&METHODS, name, given)
}
